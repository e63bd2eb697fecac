"""A transport of a plug-in, on every face of Python: by its name as a hint and in require=, and with files."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tent
import tent.compat.mooncake
from tent import buffers

SOURCES = Path(__file__).parents[2] / "transports" / "plugin"
PAGE = 4096
SIZE = 2 * PAGE


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Compiles an example of a plug-in as a user does."""

    @functools.cache
    def compiled(name: str) -> str:
        folder = tmp_path_factory.mktemp("plug-ins")
        folder.chmod(0o755)
        made = folder / f"{name}.so"
        flags = ["-std=c99", "-O2", "-shared", "-fPIC", "-pthread", f"-I{SOURCES / 'include'}"]
        subprocess.run(["gcc", *flags, SOURCES / "example" / f"{name}.c", "-o", made], check=True, timeout=60)
        made.chmod(0o755)
        return str(made)

    return compiled


def settings_with(*plug_ins: str) -> dict[str, Any]:
    """Policies prefer tcp, so a request meets the plug-in only if it asks for it."""
    usual = {"name": "usual", "segment_type": "memory", "transports": ["tcp", "inside"]}
    return {"plugins": list(plug_ins), "transports/shm/enable": False, "policy": [usual]}


class World:
    """An engine, and memory of another one in this process to which each face writes SIZE bytes."""

    def __init__(self, engine: tent.TransferEngine, address: str, segment: tent.Segment, theirs: bytearray) -> None:
        self.engine, self.objects, self.target = engine, engine.engine, segment["kv"]
        self.handle = engine.open_segment(address + "/kv")
        self.theirs = theirs
        self.mine = bytearray(SIZE)
        self.region = self.objects.register(self.mine)
        self.before = 0.0
        for rail in ("tcp", "inside"):  # each is up from now on: a route without one is passed over
            self.write(require=rail)
        self.before = self.written()

    def written(self) -> float:
        """Bytes that went over the plug-in."""
        return self.objects.metrics().get('tent_write_bytes_total{transport="inside"}', 0) - self.before

    def failovers(self, old: str, new: str) -> float:
        """Requests that went on over another transport: on a busy machine a peer may be silent for too long."""
        return self.objects.metrics().get(f'tent_transport_failover_total{{from="{old}",to="{new}"}}', 0)

    def write(self, **terms: Any) -> None:
        self.objects.write(self.region, self.target, **terms).result(20)

    def write_ranges(self, **terms: Any) -> None:
        starts, sizes = [0, PAGE], [PAGE, PAGE]
        self.objects.write_ranges(self.region, starts, self.target, starts, sizes, **terms).result(20)

    def write_pages(self, **terms: Any) -> None:
        self.objects.write_pages(self.region, [0, 1], self.target, [0, 1], page_bytes=PAGE, **terms).result(20)

    def batch(self, **terms: Any) -> None:
        with self.objects.batch(**terms) as batch:
            batch.write(self.region, self.target)
            batch.submit().result(20)

    def request_of_a_batch(self, **terms: Any) -> None:
        if "require" in terms:
            self.batch(**terms)  # it is a term of the whole batch
            return
        with self.objects.batch() as batch:
            batch.write(self.region, self.target, **terms)
            batch.submit().result(20)

    def request(self, **terms: Any) -> None:
        source = buffers.address_of(memoryview(self.mine))
        request = tent.Request(tent.OpCode.WRITE, source, self.handle, 0, SIZE, **self.numbers(terms))
        self.engine.transfer_sync([request])

    def request_array(self, **terms: Any) -> None:
        requests = tent.RequestArray(1)
        requests.opcode[:] = tent.OpCode.WRITE
        requests.source = [buffers.address_of(memoryview(self.mine))]
        requests.target_id[:] = self.handle
        requests.length[:] = SIZE
        for name, value in self.numbers(terms).items():
            setattr(requests, name, [value])
        self.engine.transfer_sync(requests)

    @staticmethod
    def numbers(terms: dict[str, Any]) -> dict[str, Any]:
        """Requests take numbers and masks."""
        number = tent._transports.HINTS["inside"]
        assert 80 <= number < 128
        return {"transport_hint": number} if "hint" in terms else {"require": 1 << number % 64}


FACES = [
    World.write,
    World.write_ranges,
    World.write_pages,
    World.batch,
    World.request_of_a_batch,
    World.request,
    World.request_array,
]


@pytest.fixture
def world(engines: Callable[..., tent.Engine], library: Callable[[str], str]) -> Iterator[World]:
    settings = settings_with(library("inside"))
    theirs = bytearray(SIZE)
    far = engines(name="far", **settings)
    with far.register(theirs, name="kv"), tent.TransferEngine(settings) as engine:
        with engine.engine.open(far.address) as segment:
            yield World(engine, far.address, segment, theirs)


@pytest.mark.parametrize("terms", [{"hint": "inside"}, {"require": "inside"}], ids=lambda terms: next(iter(terms)))
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_a_plug_in_is_asked_for_by_its_name(world: World, face: Callable[..., None], terms: dict[str, Any]) -> None:
    world.mine[:] = bytes(i % 251 for i in range(SIZE))
    world.write()
    before = world.written()
    assert world.theirs == world.mine and before == SIZE * world.failovers("tcp", "inside"), "the policy prefers tcp"
    world.mine[:] = bytes(i % 241 for i in range(SIZE))
    face(world, **terms)
    assert world.theirs == world.mine and world.written() - before == SIZE * (1 - world.failovers("inside", "tcp"))


def test_a_hint_may_be_a_number_and_a_name_in_capitals(world: World) -> None:
    world.write(hint="INSIDE")
    world.write(hint=tent._transports.HINTS["inside"])
    assert world.written() == 2 * SIZE
    for wrong in ("outside", 127):
        with pytest.raises(tent.InvalidArgumentError, match="names no transport") as refused:
            world.write(hint=wrong)
        assert "inside" in refused.value.hint


def test_an_engine_without_the_plug_in_says_so(world: World, engines: Callable[..., tent.Engine]) -> None:
    other = engines(name="other")
    with other.register(bytearray(64), name="own") as own, other.open(other.address) as segment:
        with pytest.raises(tent.InvalidArgumentError, match="a plug-in of this engine"):
            other.write(own, segment["own"], hint="inside").result(20)


def test_the_interface_of_mooncake_takes_the_name(
    world: World, library: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    options = {"config": settings_with(library("inside"))}
    near, far = (tent.compat.mooncake.TransferEngine(options=options) for _ in range(2))
    for engine in (near, far):
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    mine, theirs = bytearray(b"\5" * SIZE), bytearray(SIZE)
    at, there = (buffers.address_of(memoryview(memory)) for memory in (mine, theirs))
    assert near.register_memory(at, SIZE) == far.register_memory(there, SIZE) == 0
    name = f"127.0.0.1:{far.get_rpc_port()}"
    assert near.transfer_sync_write(name, at, there, SIZE, transport_hint="inside") == 0
    assert theirs == mine
    assert near.transfer_sync_write(name, at, there, SIZE, transport_hint="outside") == 0, "a wish, as upstream"
    assert "'outside' is not used any more" in caplog.text
    assert near.unregister_memory(at) == far.unregister_memory(there) == 0
    for engine in (near, far):
        engine.close()


def test_files_go_over_a_plug_in(library: Callable[[str], str], tmp_path: Path) -> None:
    with tent.Engine(plugins=[library("disk")]) as engine:
        mine = bytearray(bytes(i % 251 for i in range(SIZE)))
        with engine.register(mine) as region, engine.open(f"file://{tmp_path}/kv", create=True, size=SIZE) as file:
            engine.write(region, file, require="disk", durability="data").result(20)
            assert (tmp_path / "kv").read_bytes() == mine
            mine[:] = bytes(SIZE)
            engine.read(region, file).result(20)
            assert mine == (tmp_path / "kv").read_bytes() == bytes(i % 251 for i in range(SIZE))
        metrics = engine.metrics()
        assert metrics['tent_write_bytes_total{transport="disk"}'] == SIZE
        assert metrics['tent_read_bytes_total{transport="disk"}'] == SIZE, "a plug-in is preferred"
