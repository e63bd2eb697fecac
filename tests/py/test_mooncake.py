"""tent in Mooncake's place: the calls that vLLM, LMCache and SGLang make, and upstream's numbers for their results."""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from name_server import served

import tent
from tent.buffers import address_of
from tent.compat import mooncake, mooncake_memory, mooncake_peers
from tent.compat.mooncake import TransferEngine, TransferNotify, TransferOpcode
from tent.compat.options import VARIABLE, Options
from tent.testing import Memory, inject

pytestmark = pytest.mark.adapters

Pair = Callable[..., tuple[TransferEngine, TransferEngine, str]]


def at(memory: Memory, offset: int = 0) -> int:
    return address_of(memory.view) + offset


@pytest.fixture
def pair(port: int) -> Iterator[Pair]:
    """Makes two engines, and the address of the second, at which another one may follow."""
    made: list[TransferEngine] = []

    def make(**options: Any) -> tuple[TransferEngine, TransferEngine, str]:
        for name in ("127.0.0.1", f"127.0.0.1:{port}"):
            made.append(TransferEngine(options=options or None))
            assert made[-1].initialize(name, "P2PHANDSHAKE", "tcp", "") == 0
        assert made[-1].get_rpc_port() == port
        return made[-2], made[-1], f"127.0.0.1:{port}"

    yield make
    for engine in made:
        engine.close()


def test_the_calls_of_vllm(pair: Pair, seed: int) -> None:
    """One range a layer, and a batch that is written by several threads at once."""
    layers, size = 4, 64 << 10
    here, there, peer = pair()
    ours, theirs = ([Memory(size, seed + 10 * side + i) for i in range(layers)] for side in range(2))
    for engine, memories in ((here, ours), (there, theirs)):
        assert engine.batch_register_memory([at(m) for m in memories], [size] * layers) == 0
    results: list[int] = []

    def write(part: int) -> None:
        offsets = [part * 4096 + 512 * i for i in range(8)]
        src = [at(m, o) for m in ours for o in offsets]
        dst = [at(m, o + 8192) for m in theirs for o in offsets]
        results.append(here.batch_transfer_sync_write(peer, src, dst, [500] * len(src)))

    threads = [threading.Thread(target=write, args=(part,)) for part in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [0] * 10
    for mine, other in zip(ours, theirs):
        for part in range(10):
            for i in range(8):
                offset = part * 4096 + 512 * i
                other.expect(offset + 8192, mine.expected[offset : offset + 500])
        other.check()
        mine.check()
    assert there.batch_unregister_memory([at(m) for m in theirs]) == 0
    assert here.transfer_sync_write(peer, at(ours[0]), at(theirs[0]), 8) == -1
    for memory in theirs:
        memory.check()


def test_the_calls_of_lmcache(pair: Pair, seed: int) -> None:
    here, there, peer = pair()
    ours, theirs = Memory(8192, seed), Memory(8192, seed + 1)
    assert here.register_memory(at(ours), 8192) == there.register_memory(at(theirs), 8192) == 0
    batch = here.batch_transfer_async_read(peer, [at(ours), at(ours, 5000)], [at(theirs, 100), at(theirs)], [64, 32])
    assert batch not in (0, (1 << 64) - 1)
    while (state := here.transfer_check_status(batch)) == 0:
        pass
    assert state == 1
    assert here.transfer_check_status(batch) == -1, "it was forgotten"
    ours.expect(0, theirs.expected[100:164])
    ours.expect(5000, theirs.expected[:32])
    ours.check()
    several = [here.transfer_submit_write(peer, at(ours, 64 * i), at(theirs, 4096 + 64 * i), 64) for i in range(5)]
    assert here.get_batch_transfer_status(several) == 0
    theirs.expect(4096, ours.expected[:320])
    theirs.check()
    assert here.get_batch_transfer_status([several[0]]) == -1


def test_every_form_of_a_transfer_moves_its_bytes(pair: Pair, seed: int) -> None:
    here, there, peer = pair(priority="low", integrity="crc32c")
    ours, theirs = Memory(4096, seed), Memory(4096, seed + 1)
    assert here.register_memory(at(ours), 4096) == there.register_memory(at(theirs), 4096, "cpu:0") == 0
    note = TransferNotify("kv", "step 1")
    assert here.transfer_sync_write(peer, at(ours), at(theirs), 100) == 0
    assert here.transfer_sync(peer, at(ours, 200), at(theirs, 200), 50, TransferOpcode.Write, note) == 0
    assert here.batch_transfer_sync(peer, [at(ours, 300)], [at(theirs, 300)], [9], TransferOpcode.WRITE, note) == 0
    theirs.expect(0, ours.expected[:100])
    theirs.expect(200, ours.expected[200:250])
    theirs.expect(300, ours.expected[300:309])
    theirs.check()
    assert here.transfer_sync_read(peer, at(ours, 1000), at(theirs, 2000), 70) == 0
    assert here.batch_transfer_sync_read(peer, [at(ours, 1100)], [at(theirs, 2100)], [7]) == 0
    assert here.transfer_sync(peer, at(ours, 1200), at(theirs, 2200), 7, TransferOpcode.Read) == 0
    ours.expect(1000, theirs.expected[2000:2070])
    ours.expect(1100, theirs.expected[2100:2107])
    ours.expect(1200, theirs.expected[2200:2207])
    ours.check()
    told = there.get_notifies()
    assert [(n.name, n.msg) for n in told] == [("kv", "step 1")] * 2 and there.get_notifies() == []
    numbers = [
        here.batch_transfer_async_write(peer, [at(ours)], [at(theirs, 3000)], [5]),
        here.batch_transfer_async(peer, [at(ours)], [at(theirs, 3100)], [5], TransferOpcode.WRITE, notify=note),
    ]
    assert here.get_batch_transfer_status(numbers) == 0
    theirs.expect(3000, ours.expected[:5])
    theirs.expect(3100, ours.expected[:5])
    theirs.check()


def test_ranges_without_bytes_move_nothing(pair: Pair, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    here, there, peer = pair()
    ours, theirs = Memory(4096, seed), Memory(4096, seed + 1)
    assert here.register_memory(at(ours), 4096) == there.register_memory(at(theirs), 4096) == 0
    assert here.batch_transfer_sync_write(peer, [], [], []) == 0
    assert here.transfer_sync_read(peer, at(ours), at(theirs), 0) == 0
    assert here.batch_transfer_sync_write(peer, [8, at(ours)], [8, at(theirs, 50)], [0, 10]) == 0
    theirs.expect(50, ours.expected[:10])
    theirs.check()
    for batch in (
        here.batch_transfer_async_read(peer, [], [], []),
        here.transfer_submit_write(peer, at(ours), at(theirs), 0),
    ):
        assert batch and here.transfer_check_status(batch) == 1
    assert here.get_batch_transfer_status([here.batch_transfer_async_write(peer, [], [], [])]) == 0
    note = TransferNotify("kv", "nothing")
    assert here.batch_transfer_sync(peer, [], [], [], TransferOpcode.WRITE, note) == 0
    assert [(n.name, n.msg) for n in there.get_notifies()] == [("kv", "nothing")]
    assert not caplog.records
    assert here.batch_transfer_sync_write(peer, [at(ours)], [], []) == -1
    assert here.batch_transfer_sync_write(peer, [at(ours)], [at(theirs), 8], [8, 0]) == -1
    assert here.batch_transfer_sync_write("127.0.0.1:1", [], [], []) == -1


def test_integers_of_numpy_name_memory(pair: Pair, seed: int) -> None:
    numpy = pytest.importorskip("numpy")
    one, two, peer = pair()
    ours, theirs = Memory(4096, seed), Memory(4096, seed + 1)
    for engine, memory in ((one, ours), (two, theirs)):
        addresses, sizes = numpy.array([at(memory)], numpy.uint64), numpy.array([memory.size])
        assert engine.batch_register_memory(addresses, sizes) == 0 == engine.batch_unregister_memory(addresses)
        assert engine.register_memory(addresses[0], sizes[0]) == 0
    assert one.transfer_sync_write(peer, numpy.uint64(at(ours)), numpy.int64(at(theirs)), numpy.int32(4096)) == 0
    theirs.expect(0, ours.expected)
    theirs.check()
    assert two.unregister_memory(at(theirs)) == 0
    assert two.register_memory(float(at(theirs)), 4096) == -1


def test_the_first_buffer_is_that_which_was_registered_first(pair: Pair, seed: int) -> None:
    one, two, peer = pair()
    assert one.get_first_buffer_address(peer) == 0
    memory = Memory(12 * 4096, seed)
    places = [at(memory, i * 4096) for i in range(12)]
    for place in reversed(places):  # ten and more of them: numbers are no texts
        assert two.register_memory(place, 4096) == 0
    for last in reversed(range(len(places))):
        assert one.get_first_buffer_address(peer) == places[last]
        assert two.unregister_memory(places[last]) == 0


def test_the_topology_is_that_of_the_machine_before_initialize_too(pair: Pair) -> None:
    made, _, _ = pair()
    assert json.loads(TransferEngine().get_local_topology()).keys() == json.loads(made.get_local_topology()).keys()


def test_managed_memory(pair: Pair) -> None:
    here, there, peer = pair()
    mine, theirs = here.allocate_managed_buffer(4096), there.allocate_managed_buffer(4096)
    assert mine and theirs and here.get_first_buffer_address(peer) == theirs
    assert here.write_bytes_to_buffer(mine, b"hello", 5) == 0
    assert here.transfer_sync_write(peer, mine, theirs, 5) == 0
    assert there.read_bytes_from_buffer(theirs, 6) == b"hello\0"
    assert here.write_bytes_to_buffer(mine, "h\u00e9", 3) == 0 and here.read_bytes_from_buffer(mine, 4) == b"h\xc3\xa9l"
    assert here.write_bytes_to_buffer(mine + 4094, b"hello", 5) == -1
    assert here.write_bytes_to_buffer(mine, b"hello", 6) == -1
    with pytest.raises(TypeError):
        here.write_bytes_to_buffer(mine, 4, 4)  # type: ignore[arg-type]  # bytes(4) are four zeros
    with pytest.raises(tent.InvalidArgumentError):
        here.read_bytes_from_buffer(mine + 4090, 7)
    assert here.free_managed_buffer(mine, 4096) == 0 == there.free_managed_buffer(theirs, 4096)
    assert here.free_managed_buffer(mine, 4096) == -1
    assert here.allocate_managed_buffer(1 << 60) == 0


def test_a_range_that_is_not_back_in_time_stays_registered(
    pair: Pair, seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, there, _ = pair()
    memories = [Memory(4096, seed + i) for i in range(3)]
    addresses = [at(memory) for memory in memories]
    assert there.batch_register_memory(addresses, [4096] * 3) == 0
    buffer = there.allocate_managed_buffer(4096)
    with monkeypatch.context() as patch:
        patch.setattr(tent.Region, "close", late(1))
        assert there.batch_unregister_memory(addresses) == -1
        patch.setattr(tent.Region, "close", late(1))
        assert there.free_managed_buffer(buffer, 4096) == -1
    assert caplog.text.count("a peer is inside") == 2
    assert [there.unregister_memory(address) for address in addresses] == [0, -1, -1]
    assert there.free_managed_buffer(buffer, 4096) == 0


def late(times: int) -> Callable[..., None]:
    """Region.close() that a peer holds up the first times."""
    close, calls = tent.Region.close, itertools.count()

    def closed(region: tent.Region, *arguments: Any) -> None:
        if next(calls) < times:
            raise TimeoutError("a peer is inside")
        close(region, *arguments)

    return closed


def test_a_peer_that_is_gone_is_told_once_and_met_again(
    pair: Pair, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    here, there, peer = pair()
    memory, theirs = Memory(4096, seed), Memory(4096, seed + 1)
    here.register_memory(at(memory), 4096)
    there.register_memory(at(theirs), 4096)
    assert here.send_probe(peer) == 0 == here.warmup_efa_segment(peer)
    port = there.get_rpc_port()
    there.close()
    with caplog.at_level(logging.ERROR, "tent.compat.mooncake"):
        assert here.transfer_sync_write(peer, at(memory), at(theirs), 8) == -1
    told = [record.getMessage() for record in caplog.records if record.name == "tent.compat.mooncake"]
    assert len(told) == 1 and "PEER_" in told[0] and peer in told[0]  # the engine may have said that a link is down
    assert here.send_probe(peer) == -1
    second = TransferEngine()
    try:
        assert second.initialize(f"127.0.0.1:{port}", "P2PHANDSHAKE", "rdma", "mlx5_0") == 0
        assert second.register_memory(at(theirs), 4096) == 0
        assert here.transfer_sync_write(peer, at(memory), at(theirs), 8) == 0
        theirs.expect(0, memory.expected[:8])
        theirs.check()
    finally:
        second.close()


def test_a_late_failure_of_a_predecessor_leaves_its_successor_alone(pair: Pair, seed: int) -> None:
    """A peer ends below two requests. The second is looked at when its successor is in use already."""
    here, first, peer = pair(config={"allow_faults": True, "transports": {"shm": {"enable": False}}})
    memory, theirs = Memory(4096, seed), Memory(4096, seed + 1)
    here.register_memory(at(memory), 4096)
    first.register_memory(at(theirs), 4096)
    inject(here.engine, "op=WRITE blackhole")
    old = [here.transfer_submit_write(peer, at(memory), at(theirs), 8) for _ in range(2)]
    first.close()
    assert here.get_batch_transfer_status(old[:1]) == -1
    inject(here.engine, "heal")
    second = TransferEngine()
    try:
        assert second.initialize(peer, "P2PHANDSHAKE", "tcp", "") == 0
        assert second.register_memory(at(theirs), 4096) == 0
        assert here.transfer_sync_write(peer, at(memory), at(theirs), 8) == 0
        successor = here._peers.segment(peer)
        assert here.get_batch_transfer_status(old[1:]) == -1
        assert here._peers.segment(peer) is successor
        theirs.expect(0, memory.expected[:8])
        theirs.check()
    finally:
        second.close()


def test_wrong_calls_have_upstreams_numbers(pair: Pair, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    here, _, peer = pair()
    memory = Memory(64, seed)
    with caplog.at_level(logging.ERROR, "tent.compat.mooncake"):
        assert here.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1
        assert here.unregister_memory(at(memory)) == -1
        assert here.register_memory(8, 8) == -1
        assert here.batch_register_memory([at(memory)], [8, 8]) == -1
        assert here.transfer_sync_read(peer, at(memory), 8, 8) == -1
        assert here.batch_transfer_async_read(peer, [at(memory)], [8], [8]) == 0
        assert here.transfer_check_status(77) == -1
        assert here.send_probe("no such host") == -1
        assert here.get_first_buffer_address("127.0.0.1:1") == 0
    assert len(caplog.records) == 9, [r.getMessage() for r in caplog.records]
    fresh = TransferEngine()
    assert fresh.register_memory(at(memory), 64) == -1 and "call initialize() first" in caplog.text
    with pytest.raises(tent.NotImplementedError, match="'zookeeper' is not supported"):
        fresh.initialize("127.0.0.1", "zookeeper://10.0.0.1:2181", "tcp", "")
    for call in (fresh.get_engine, fresh.transfer_write_on_cuda, fresh.batch_transfer_read_on_cuda):
        with pytest.raises(tent.NotImplementedError):
            call()
    assert "not initialized" in repr(fresh) and mooncake.SUPPORT_CUDA is False
    assert '"nics"' in here.get_local_topology()


def test_peers_meet_by_a_metadata_server(seed: int) -> None:
    """A host name without a port is a name there; one with a port is an address."""
    with served() as store:
        here, there = TransferEngine(), TransferEngine()
        ours, theirs = Memory(4096, seed), Memory(4096, seed + 1)
        try:
            assert here.initialize("127.0.0.1", store.url, "tcp", "") == 0
            assert there.initialize_ext("localhost", store.url, "tcp", "", "http") == 0
            assert here.register_memory(at(ours), 4096) == there.register_memory(at(theirs), 4096) == 0
            assert here.get_first_buffer_address("127.0.0.1") == at(ours)
            for peer in ("localhost", f"localhost:{there.get_rpc_port()}"):
                assert here.send_probe(peer) == 0
                assert here.transfer_sync_write(peer, at(ours, 8), at(theirs, 16), 1000) == 0
            theirs.expect(16, ours.expected[8:1008])
            theirs.check()
            assert here.send_probe("nobody") == -1
        finally:
            here.close()
            there.close()
        assert not store.values, "a name outlived its engine"


def test_the_time_limit_is_upstreams(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TransferEngine()._limit == 30
    monkeypatch.setenv(mooncake.TIMEOUT, "7.5")
    assert TransferEngine()._limit == 7.5
    monkeypatch.setenv(mooncake.TIMEOUT, "1")
    assert TransferEngine()._limit == 5
    monkeypatch.setenv(mooncake.TIMEOUT, "soon")
    with pytest.raises(tent.InvalidArgumentError, match="MC_TRANSFER_TIMEOUT"):
        TransferEngine()


class Split(TransferEngine):
    """An engine with calls of a list that are made of those of one range, by a program that replaces them."""

    def batch_transfer_sync(self, peer: str, *lists: Any) -> int:  # type: ignore[override]
        return self.transfer_sync(peer, *(listed[0] for listed in lists[:3]), lists[3])

    def batch_transfer_async(self, peer: str, *lists: Any) -> int:  # type: ignore[override]
        return self.transfer_submit_write(peer, *(listed[0] for listed in lists[:3]))


def test_a_call_that_is_replaced_changes_no_other_call(seed: int) -> None:
    """Upstream's calls are those of a library in C++, which knows nothing of a class over it."""
    engine, memory = Split(), Memory(4096, seed)
    try:
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        assert engine.register_memory(at(memory), 4096) == 0
        peer, lists = f"127.0.0.1:{engine.get_rpc_port()}", ([at(memory)], [at(memory, 2048)], [100])
        assert engine.batch_transfer_sync(peer, *lists, TransferOpcode.Write) == 0
        assert engine.batch_transfer_sync_write(peer, *lists) == 0
        posted = engine.batch_transfer_async(peer, *lists, TransferOpcode.Write)
        assert posted and engine.get_batch_transfer_status([posted]) == 0
    finally:
        engine.close()
    memory.expect(2048, memory.expected[:100])
    memory.check()


@pytest.mark.parametrize(
    ("host", "parts"),
    [
        ("decode-0", ("decode-0", 0)),
        ("decode-0:4791", ("decode-0", 4791)),
        ("decode-0:http", ("decode-0:http", 0)),
        ("::1", ("::1", 0)),
        ("fe80::1:2", ("fe80::1:2", 0)),
        ("[::1]", ("::1", 0)),
        ("[::1]:4791", ("::1", 4791)),
    ],
)
def test_a_host_may_have_a_port_and_colons_of_its_own(host: str, parts: tuple[str, int]) -> None:
    assert mooncake_peers.host_and_port(host) == parts


@pytest.mark.parametrize(
    ("metadata", "kind", "expected"),
    [
        ("etcd://a:2379,b:2379", "", ("etcd", "a:2379,b:2379")),
        ("a:2379", "", ("etcd", "a:2379")),
        ("a:2379", "etcd", ("etcd", "a:2379")),
        ("redis://a:6379", "", ("redis", "redis://a:6379")),
        ("rediss://a:6379", "", ("redis", "rediss://a:6379")),
        ("https://a/metadata", "", ("http", "https://a/metadata")),
    ],
)
def test_the_form_of_a_metadata_service_names_its_kind(metadata: str, kind: str, expected: tuple[str, str]) -> None:
    for port, name in ((0, "decode-0"), (4791, "")):
        assert mooncake_peers.service(metadata, kind, "decode-0", port) == {
            "metadata_type": expected[0],
            "metadata_servers": expected[1],
            "local_segment_name": name,
        }


def test_a_region_of_another_name_is_no_first_buffer() -> None:
    assert mooncake_memory.registered_as("7") == mooncake_memory.registered_as("kv") == float("inf")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"prio": 1}, "'prio' is unknown"),
        ({"priority": "highest"}, "must be high, medium or low"),
        ({"priority": 9}, "must be high, medium or low"),
        ({"priority": True}, "must be high, medium or low"),
        ({"timeout": "soon"}, "timeout"),
        ({"integrity": "md5"}, 'must be "crc32c" or null'),
        ({"config": ["log_level"]}, "an object of settings"),
    ],
)
def test_wrong_options_name_their_key(given: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(tent.InvalidArgumentError, match=words):
        Options.of(given)
    monkeypatch.setenv(VARIABLE, json.dumps(given))
    with pytest.raises(tent.InvalidArgumentError, match=f"{VARIABLE}: .*{words}"):
        Options.of(None)


def test_the_environment_gives_options_as_an_object_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, words in (("{", "is not JSON"), ("[1]", "must be a JSON object"), ("7", "must be a JSON object")):
        monkeypatch.setenv(VARIABLE, text)
        with pytest.raises(tent.InvalidArgumentError, match=words):
            Options.of(None)
    monkeypatch.setenv(VARIABLE, '{"priority": "LOW", "timeout": "30s", "integrity": "crc32c"}')
    assert Options.of(None).terms == {"priority": tent.PRIO_LOW, "timeout": 30, "integrity": "crc32c"}
    assert Options.of({}).terms == {"priority": None, "timeout": None, "integrity": None}


def test_calls_that_mooncake_takes_are_taken(pair: Pair, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """A hint is a wish, numbers may be NumPy's everywhere, and the texts of a notification may be bytes."""
    numpy = pytest.importorskip("numpy")
    here, there, peer = pair()
    ours, theirs = Memory(4096, seed), Memory(4096, seed + 1)
    assert here.register_memory(at(ours), 4096) == there.register_memory(at(theirs), 4096) == 0
    for hint in ("rdma", "barex", "rdma"):
        assert here.transfer_sync_write(peer, at(ours), at(theirs), 64, hint) == 0
    told = [record.getMessage() for record in caplog.records if "transport_hint" in record.getMessage()]
    assert len(told) == 2 and "'rdma'" in told[0] and "'barex'" in told[1]
    assert here.transfer_sync_write(peer, at(ours), 1, 64, "tcp") == -1, "something else is wrong"
    theirs.expect(0, ours.expected[:64])
    theirs.check()
    address, n = numpy.uint64(at(ours)), numpy.int64(3)
    assert here.write_bytes_to_buffer(address, b"abc", n) == 0 and here.read_bytes_from_buffer(address, n) == b"abc"
    ours.expect(0, b"abc")
    ours.check()
    note = TransferNotify(b"n", b"m")
    assert (note.name, note.msg) == ("n", "m")
    assert here.transfer_sync(peer, at(ours), at(theirs), 3, TransferOpcode.Write, note) == 0
    assert [(n.name, n.msg) for n in there.get_notifies()] == [("n", "m")]
    theirs.expect(0, b"abc")
