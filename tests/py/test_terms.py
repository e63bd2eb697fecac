"""Every term of a request on every face of Python: objects, batches, Request and RequestArray."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tent
from tent import _abi, buffers
from tent._transports import HINTS

SIZE = 8192
PAGE = 4096

# A term's keyword on objects, where it is not the name of the column.
KEYWORDS = {"transport_hint": "hint", "policy_name": "policy", "intent_type": "intent"}


# Policies by name, with the transport of each; the first one counts where none is named. Shared memory is switched off.
POLICIES = {"usual": "tcp", "vain": "shm"}


class World:
    """An engine with SIZE bytes of memory, and a target that each face writes them to."""

    def __init__(self, engine: tent.TransferEngine, handle: int, target: Any) -> None:
        self.engine = engine
        self.handle = handle
        self.target = target
        self.memory = bytearray(b"\5" * SIZE)
        self.region = engine.engine.register(self.memory)

    def write(self, terms: dict[str, Any]) -> None:
        self.engine.engine.write(self.region, self.target, **objects(terms)).result(20)

    def write_with_a_notification(self, terms: dict[str, Any]) -> None:
        note = None if isinstance(self.target, tent.Segment) else ("done", "")  # a file takes none
        self.engine.engine.write(self.region, self.target, notify=note, **objects(terms)).result(20)

    def write_ranges(self, terms: dict[str, Any]) -> None:
        starts, sizes = [0, PAGE], [PAGE, PAGE]
        self.engine.engine.write_ranges(self.region, starts, self.target, starts, sizes, **objects(terms)).result(20)

    def write_pages(self, terms: dict[str, Any]) -> None:
        self.engine.engine.write_pages(
            self.region, [0, 1], self.target, [0, 1], page_bytes=PAGE, **objects(terms)
        ).result(20)

    def batch(self, terms: dict[str, Any]) -> None:
        with self.engine.engine.batch(**objects(terms)) as batch:
            batch.write(self.region, self.target)
            batch.submit().result(20)

    def request(self, terms: dict[str, Any]) -> None:
        address = buffers.address_of(memoryview(self.memory))
        request = tent.Request(tent.OpCode.WRITE, address, self.handle, 0, SIZE, **terms)
        assert {name: getattr(request, name) for name in terms} == terms
        self.engine.transfer_sync([request])

    def request_array(self, terms: dict[str, Any]) -> None:
        requests = tent.RequestArray(2)
        requests.opcode[:] = tent.OpCode.WRITE
        requests.source = [buffers.address_of(memoryview(self.memory)) + i * PAGE for i in range(2)]
        requests.target_id[:] = self.handle
        requests.target_offset = [0, PAGE]
        requests.length[:] = PAGE
        for name, value in terms.items():
            setattr(requests, name, value if value is None or isinstance(value, str) else [value] * 2)
        self.engine.transfer_sync(requests)


def objects(terms: dict[str, Any]) -> dict[str, Any]:
    """Terms by the keywords of calls on objects."""
    keywords = {KEYWORDS.get(name, name): value for name, value in terms.items()}
    if "require" in keywords:
        keywords["require"] = [name for name, number in HINTS.items() if keywords["require"] >> number % 64 & 1]
    if "deadline_ns" in keywords:
        keywords["timeout"] = max(0.0, (keywords.pop("deadline_ns") - time.monotonic_ns()) / 1e9)
    return keywords


FACES = [
    World.write,
    World.write_with_a_notification,
    World.write_ranges,
    World.write_pages,
    World.batch,
    World.request,
    World.request_array,
]
Face = Callable[[World, dict[str, Any]], None]
each_face = pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)


@pytest.fixture
def peer(engines: Callable[..., tent.Engine]) -> Iterator[World]:
    """A World over TCP; its target is a region of another engine."""
    policies = [{"name": name, "segment_type": "memory", "transports": [way]} for name, way in POLICIES.items()]
    quiet = {"transports/shm/enable": False, "allow_faults": True, "policy": policies}
    far = engines(name="far", **quiet)
    with far.register(bytearray(SIZE), name="kv"), tent.TransferEngine(quiet) as engine:
        with engine.engine.open(far.address) as segment:
            yield World(engine, engine.open_segment(far.address + "/kv"), segment["kv"])


@pytest.fixture
def file(tmp_path: Path) -> Iterator[World]:
    """A World with a file as its target, on a disk that loses its bytes."""
    with tent.TransferEngine({"allow_faults": True, "faults": "fail_sync"}) as engine:
        name = f"file://{tmp_path}/kv"
        handle = engine.open_segment(name, create=True, size=SIZE)
        with engine.engine.open(name) as segment:
            yield World(engine, handle, segment)


def metric(world: World, name: str) -> float:
    return world.engine.engine.metrics().get(name, 0)


def outcome(world: World, face: Face, terms: dict[str, Any]) -> str:
    """The code of the error by which a WRITE ends, "" if it completes."""
    try:
        face(world, terms)
    except tent.TentError as error:
        return error.code
    return ""


@each_face
def test_integrity_arrives_at_the_transport(peer: World, face: Face) -> None:
    tent.testing.inject(peer.engine.engine, "corrupt")
    assert outcome(peer, face, {}) == "", "without a checksum nobody notices"
    assert outcome(peer, face, {"integrity": "crc32c"}) == "CORRUPTED"


@each_face
def test_integrity_without_a_transport_that_has_it_is_a_wrong_argument(
    face: Face, engines: Callable[..., tent.Engine]
) -> None:
    settings = {"transports/tcp/enable": False}
    far = engines(**settings)
    with far.register(bytearray(SIZE), name="kv"), tent.TransferEngine(settings) as engine:
        with engine.engine.open(far.address) as segment:
            world = World(engine, engine.open_segment(far.address + "/kv"), segment["kv"])
            assert outcome(world, face, {}) == ""
            with pytest.raises(tent.InvalidArgumentError, match="shm: it carries no checksums") as refused:
                face(world, {"integrity": "crc32c"})
            assert "integrity was asked for" in str(refused.value) and "transports/<name>/enable" in refused.value.hint
        far.close()


@each_face
def test_require_admits_the_transports_that_it_names(peer: World, face: Face) -> None:
    tcp, rdma = 1 << tent.TransportType.TCP, 1 << tent.TransportType.RDMA
    assert outcome(peer, face, {"require": tcp}) == outcome(peer, face, {"require": tcp | rdma}) == ""
    begun = metric(peer, 'tent_transport_attempts_total{transport="tcp"}')
    with pytest.raises(tent.PeerUnreachableError, match="tcp: the request requires others") as refused:
        face(peer, {"require": rdma})
    assert "require=" in refused.value.hint
    assert metric(peer, 'tent_transport_attempts_total{transport="tcp"}') == begun, "nothing moved"


@each_face
def test_durability_syncs_the_file(file: World, face: Face) -> None:
    assert outcome(file, face, {}) == "", "nobody waits for the disk"
    assert outcome(file, face, {"durability": "data"}) == "STORAGE_ERROR"


@each_face
def test_durability_needs_a_file(peer: World, face: Face) -> None:
    with pytest.raises(tent.InvalidArgumentError, match="no file is written"):
        face(peer, {"durability": "data"})


@each_face
def test_the_deadline_ends_a_request(peer: World, face: Face) -> None:
    assert outcome(peer, face, {"deadline_ns": time.monotonic_ns() + 60_000_000_000}) == ""
    assert outcome(peer, face, {"deadline_ns": time.monotonic_ns() - 1}) == "TIMEOUT"


@each_face
def test_the_priority_is_that_of_the_slices(peer: World, face: Face) -> None:
    for priority, name in ((tent.PRIO_MEDIUM, "medium"), (tent.PRIO_LOW, "low")):
        counter = f'tent_write_requests_total{{transport="tcp",class="{name}"}}'
        before = peer.engine.engine.metrics().get(counter, 0)
        assert outcome(peer, face, {"priority": priority}) == ""
        assert peer.engine.engine.metrics()[counter] > before


@each_face
def test_the_hint_chooses_the_transport(peer: World, face: Face) -> None:
    assert outcome(peer, face, {"transport_hint": tent.TransportType.TCP}) == ""
    with pytest.raises(tent.InvalidArgumentError, match="shm"):
        face(peer, {"transport_hint": tent.TransportType.SHM})


@each_face
@pytest.mark.parametrize("term", [name for name in _abi.TAKES if name not in ("opcode", "require")])
def test_a_value_out_of_range_is_refused_by_name(peer: World, face: Face, term: str) -> None:
    keyword = term if face in (World.request, World.request_array) else KEYWORDS.get(term, term)
    if term in _abi.WORDS:
        wrong: list[Any] = ["perhaps"]
    elif term == "deadline_ns":
        wrong = [1 << 63] if face in (World.request, World.request_array) else []
    else:
        wrong = [999]
    for value in wrong:
        with pytest.raises(tent.InvalidArgumentError, match=f"{term}|{keyword}"):
            face(peer, {term: value})


@each_face
def test_an_intent_is_taken(peer: World, face: Face) -> None:
    for intent in tent.IntentType:
        assert outcome(peer, face, {"intent_type": intent}) == ""


@each_face
def test_a_policy_is_chosen_by_its_name(peer: World, face: Face) -> None:
    assert outcome(peer, face, {}) == outcome(peer, face, {"policy_name": ""}) == ""
    assert outcome(peer, face, {"policy_name": "usual"}) == ""
    assert outcome(peer, face, {"policy_name": "vain"}) == "NO_ROUTE"
    with pytest.raises(tent.InvalidArgumentError, match="policy_name"):
        face(peer, {"policy_name": "nobody"})


def test_columns_and_fields_have_the_same_names() -> None:
    fields = [name.lstrip("_") for name in _abi.PACKED]
    assert fields == list(_abi.COLUMNS)
    assert len(_abi.COLUMNS) == _abi.RECORD_WORDS
    assert [*_abi.COLUMNS][-len(_abi.TAKES) :] == [*_abi.TAKES]
    requests = tent.RequestArray(1)
    for name in _abi.COLUMNS:
        if name != "target_region":  # the integer level goes by segment
            setattr(requests, name, [7])
            assert list(getattr(requests, name)) == [7]
            assert getattr(tent.RequestArray, name).__doc__ == _abi.DOCS[name]
            assert hasattr(tent.Request(), name)
    assert list(requests._words) == [7, 7, 7, 7, 0, *[7] * len(_abi.TAKES)]


def test_a_request_says_its_words() -> None:
    request = tent.Request(integrity="crc32c", durability="data")
    assert (request.integrity, request.durability) == ("crc32c", "data")
    request.integrity = None
    assert request.integrity is None
    with pytest.raises(tent.InvalidArgumentError, match='"crc32c" or None'):
        request.integrity = "md5"
    with pytest.raises(tent.InvalidArgumentError, match='"data" or None'):
        tent.Request(durability="metadata")


def test_require_takes_names_and_nothing_else() -> None:
    request = tent.Request(require=["tcp", "SHM"])
    assert request.require == 1 << tent.TransportType.TCP | 1 << tent.TransportType.SHM
    request.require = "rdma"
    assert request.require == 1 << tent.TransportType.RDMA
    with pytest.raises(tent.InvalidArgumentError, match="names of transports"):
        request.require = "ethernet"
    with tent.Engine() as engine, engine.allocate(64) as a, engine.allocate(64) as b:
        for wrong in ([], "", 7, True, ["tcp", None]):
            with pytest.raises(tent.InvalidArgumentError, match="require is"):
                engine.write(a, b, require=wrong)  # type: ignore[arg-type]
