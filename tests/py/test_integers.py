"""The integer level: upstream's names, numbers and positional orders."""

from __future__ import annotations

import copy
import ctypes
import pickle
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Pair

import tent
from tent import buffers
from tent.request_array import Column
from tent.testing import Memory, PeerProcess

State = tent.TransferStatusEnum


class World:
    """A TransferEngine with registered memory, and a peer with a region "kv"."""

    def __init__(self, both: Pair) -> None:
        self.both = both
        self.engine = tent.TransferEngine()
        self.memory = Memory(1 << 16, 11)
        self.address = buffers.address_of(self.memory.view)
        self.engine.register_local_memory(self.address, self.memory.size)
        self.segment = self.engine.open_segment(both.far.address + "/kv")

    def request(self, opcode: tent.OpCode, at: int, there: int, n: int, **keywords: Any) -> tent.Request:
        return tent.Request(opcode, self.address + at, self.segment, there, n, **keywords)


@pytest.fixture
def world(pair: Callable[..., Pair]) -> Iterator[World]:
    made = World(pair(1 << 16))
    yield made
    made.engine.close(timeout=0)
    made.memory.check()
    made.both.check()


def finish(engine: tent.TransferEngine, batch: int, n: int) -> list[tent.TransferStatus]:
    """Polls each task to its end, as programs over upstream do."""
    for task in range(n):
        while engine.get_transfer_status(batch, task).state == State.PENDING:
            pass
    return engine.get_transfer_status_list(batch)


@pytest.mark.parametrize("batch", [0, 7, (7 << 32) + 3])
def test_a_wait_for_a_number_that_never_was_a_batch_ends_at_once(world: World, batch: int) -> None:
    with pytest.raises(tent.InvalidEntryError):
        world.engine.wait(batch, timeout=30)


@pytest.mark.interpreter
def test_read_and_write_by_request_objects(world: World) -> None:
    engine = world.engine
    batch = engine.allocate_transfer_batch(16)
    engine.submit_transfer(batch, [world.request(tent.OpCode.WRITE, i * 100, i * 64, 64) for i in range(10)])
    for i in range(10):
        world.both.theirs.expect(i * 64, world.memory.expected[i * 100 : i * 100 + 64])
    assert finish(engine, batch, 10) == [(State.COMPLETED, 64)] * 10
    engine.submit_transfer(batch, [world.request(tent.OpCode.READ, 40_000, 50_000, 777)])  # a second call, same batch
    world.memory.expect(40_000, world.both.theirs.expected[50_000:50_777])
    assert engine.wait(batch, 10) == (State.COMPLETED, 10 * 64 + 777)
    assert engine.get_transfer_status(batch, 10) == tent.TransferStatus(state=State.COMPLETED, bytes=777)
    assert engine.get_transfer_status_overall(batch).state == State.COMPLETED
    engine.progress_batch(batch)
    engine.free_transfer_batch(batch)


def test_by_address_as_upstream_has_it(world: World) -> None:
    handle = world.engine.open_segment(world.both.far.address)
    there = world.both.remote.address
    request = tent.Request(tent.OpCode.WRITE, world.address, handle, there + 5, 100, tent.PRIO_LOW)
    assert world.engine.transfer_sync([request], timeout=10) == (State.COMPLETED, 100)
    world.both.theirs.expect(5, world.memory.expected[:100])
    info = world.engine.get_segment_info(handle)
    assert info.type == tent.SegmentInfoType.Memory
    assert tent.SegmentInfoBuffer(there, 1 << 16, info.buffers[0].location) in info.buffers
    assert world.engine.probe_peer_alive(handle)
    world.engine.close_segment(handle)
    with pytest.raises(tent.InvalidEntryError):
        world.engine.get_segment_info(handle)


def test_the_own_process_is_segment_zero(world: World) -> None:
    assert world.engine.open_segment("") == tent.LOCAL_SEGMENT_ID == 0
    request = tent.Request(tent.OpCode.WRITE, world.address, 0, world.address + 1000, 10)
    world.engine.transfer_sync([request], timeout=10)
    world.memory.expect(1000, world.memory.expected[:10])


def test_request_arrays(world: World) -> None:
    engine = world.engine
    requests = tent.RequestArray(300)
    n = 256
    requests.opcode = [1] * 300
    requests.source[:n] = array("Q", [world.address + 128 * i for i in range(n)])
    requests.target_id[:] = [world.segment] * 300
    requests.target_offset[0:n] = array("i", [64 * (n - 1 - i) for i in range(n)])
    requests.length[:n] = [64] * n
    requests.priority[3] = tent.PRIO_LOW
    assert len(requests) == 300 and list(requests.length)[n - 1 : n + 1] == [64, 0]
    for _ in range(2):  # reusable as soon as submit has returned
        batch = engine.allocate_transfer_batch(n)
        engine.submit_transfer(batch, requests, count=n)
        assert finish(engine, batch, n) == [(State.COMPLETED, 64)] * n
        engine.free_transfer_batch(batch)
    for i in range(n):
        world.both.theirs.expect(64 * (n - 1 - i), world.memory.expected[128 * i : 128 * i + 64])
    batch = engine.allocate_transfer_batch(300)
    with pytest.raises(tent.TentError):  # the rest have length 0: the call takes nothing
        engine.submit_transfer(batch, requests)
    assert engine.get_transfer_status_list(batch) == []
    for count in (0, 301, -1):
        with pytest.raises(tent.InvalidArgumentError):
            engine.submit_transfer(batch, requests, count=count)
    engine.free_transfer_batch(batch)


@pytest.mark.interpreter
@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_copy_of_a_request_array_has_requests_of_its_own(
    world: World, copied: Callable[[tent.RequestArray], tent.RequestArray]
) -> None:
    requests = tent.RequestArray(2)
    requests.opcode = [1] * 2
    requests.source[:] = [world.address] * 2
    requests.target_id[:] = [world.segment] * 2
    requests.target_offset[:] = [0, 1000]
    requests.length[:] = [8] * 2
    twin = copied(requests)
    assert len(twin) == 2 and list(twin.length) == [8, 8] and twin._address != requests._address
    twin.length[:] = [100] * 2
    assert list(requests.length) == [8, 8]
    del requests  # its words may be gone now
    batch = world.engine.allocate_transfer_batch(2)
    world.engine.submit_transfer(batch, twin)
    assert finish(world.engine, batch, 2) == [(State.COMPLETED, 100)] * 2
    world.both.theirs.expect(0, world.memory.expected[:100])
    world.both.theirs.expect(1000, world.memory.expected[:100])


@pytest.mark.interpreter
def test_columns_without_numpy_take_any_integers() -> None:
    words = array("Q", bytes(8 * 12))
    column = Column(memoryview(words)[1::3])
    column[:] = [1, 2, 3, 4]
    column[1:3] = array("h", [20, 30])
    column[3] = 7
    assert column.tolist() == list(column) == [1, 20, 30, 7] and words.tolist()[1::3] == [1, 20, 30, 7]
    column[0:2] = 9
    assert column[0:2].tolist() == [9, 9] and len(column) == 4 and "9" in repr(column)
    for wrong in ([1], [-1] * 4, [1 << 64] * 4, ["x"] * 4, 1.5):
        with pytest.raises(tent.InvalidArgumentError):
            column[:] = wrong
    assert column.tolist() == [9, 9, 30, 7]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"length": 0}, "length"),
        ({"length": 1 << 17}, ""),
        ({"source": 1 << 64}, "64 bits"),
        ({"source": -1}, "64 bits"),
        ({"source": 4096}, "registered"),
        ({"source": (1 << 64) - 1, "length": 10}, ""),
        ({"target_offset": (1 << 64) - 5}, ""),
        ({"target_id": 77}, "77"),
        ({"priority": 3}, "priority"),
        ({"priority": True}, "priority is True: it must be tent.PRIO_HIGH (0)"),
        ({"priority": False}, "priority is False"),
        ({"opcode": 2}, "opcode"),
        ({"transport_hint": 300}, "transport_hint"),
        ({"transport_hint": tent.TransportType.RDMA}, ""),
        ({"length": 1.5}, "64 bits"),
    ],
)
def test_a_wrong_request_takes_the_whole_call_with_it(world: World, change: dict[str, Any], words: str) -> None:
    batch = world.engine.allocate_transfer_batch(4)
    wrong = world.request(tent.OpCode.WRITE, 0, 0, 64)
    for name, value in change.items():
        setattr(wrong, name, value)
    with pytest.raises(tent.TentError) as caught:
        world.engine.submit_transfer(batch, [world.request(tent.OpCode.WRITE, 0, 64, 64), wrong])
    assert words in str(caught.value)
    assert world.engine.get_transfer_status_list(batch) == []
    world.engine.free_transfer_batch(batch)


def test_batch_ids_are_checked(world: World) -> None:
    engine, request = world.engine, world.request(tent.OpCode.READ, 0, 0, 1)
    world.memory.expect(0, world.both.theirs.expected[:1])
    with engine.allocate_batch_guard(2) as guard:
        batch = guard.id
        engine.submit_transfer(batch, [request, request])
        with pytest.raises(tent.TooManyRequestsError):
            engine.submit_transfer(batch, [request])
        assert engine.wait(batch, 10).state == State.COMPLETED
        with pytest.raises(tent.TentError):
            engine.get_transfer_status(batch, 2)
    with tent.TransferEngine() as other:
        foreign = other.allocate_transfer_batch(1)
        for stale in (0, batch, batch + (7 << 32), 1 << 63, foreign + (9 << 32)):
            for call in (
                lambda b: engine.submit_transfer(b, [request]),
                lambda b: engine.get_transfer_status(b, 0),
                lambda b: engine.get_transfer_status_list(b),
                lambda b: engine.progress_batch(b),
                lambda b: engine.cancel_transfer(b, 0),
                lambda b: engine.free_transfer_batch(b),
            ):
                with pytest.raises(tent.InvalidEntryError):
                    call(stale)
        other.free_transfer_batch(foreign)
    for wrong in (-1, 1 << 64, 1.5, "x"):
        with pytest.raises(tent.InvalidArgumentError):
            engine.progress_batch(wrong)  # type: ignore[arg-type]
        with pytest.raises(tent.InvalidArgumentError):
            engine.free_transfer_batch(wrong)  # type: ignore[arg-type]
        with pytest.raises(tent.InvalidArgumentError):
            engine.get_transfer_status(wrong, 0)  # type: ignore[arg-type]
    for wrong in (0, -1, 1.5):
        with pytest.raises(tent.InvalidArgumentError):
            engine.allocate_transfer_batch(wrong)  # type: ignore[arg-type]
    with pytest.raises(tent.InvalidArgumentError):
        engine.submit_transfer(engine.allocate_transfer_batch(1), [])
    with pytest.raises(tent.InvalidArgumentError):
        engine.submit_transfer(engine.allocate_transfer_batch(1), [3])  # type: ignore[list-item]


WRONG: dict[str, Callable[[tent.TransferEngine], object]] = {
    "addr is 'x'": lambda e: e.unregister_local_memory("x"),  # type: ignore[arg-type]
    "addr is None": lambda e: e.free_local_memory(None),  # type: ignore[arg-type]
    "location is 7": lambda e: e.allocate_local_memory(64, 7),  # type: ignore[arg-type]
    "segment_name is 5": lambda e: e.open_segment(5),  # type: ignore[arg-type]
    "batch_size is 1099511627776: it must be from 1 to 2^31 - 1": lambda e: e.allocate_transfer_batch(1 << 40),
    "request_list is None": lambda e: e.submit_transfer(1, None),  # type: ignore[arg-type]
    "notifi is None": lambda e: e.send_notifi(0, None),  # type: ignore[arg-type]
    "notifi is ('n', 'm')": lambda e: e.submit_transfer(1, [], ("n", "m")),  # type: ignore[arg-type]
    "batch_id is 1.5": lambda e: e.submit_transfer(1.5, [tent.Request()]),  # type: ignore[arg-type]
    "batch_id is -18446744073709551615": lambda e: e.submit_transfer(1 - (1 << 64), [tent.Request()]),
    "count is 1.5": lambda e: e.submit_transfer(1, tent.RequestArray(2), count=1.5),  # type: ignore[arg-type]
    "request_list is 7": lambda e: e.transfer_sync(7),  # type: ignore[arg-type]
    "there are no requests": lambda e: e.transfer_sync([]),
    "addr_list is 7": lambda e: e.register_local_memory_batch(7, [1]),  # type: ignore[arg-type]
    "size_list is 7": lambda e: e.unregister_local_memory_batch([1], 7),  # type: ignore[arg-type]
    "shared_handle is 7": lambda e: e.import_remote_segment(7),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_argument_is_named(world: World, words: str) -> None:
    with pytest.raises(tent.InvalidArgumentError) as caught:
        WRONG[words](world.engine)
    assert str(caught.value).startswith(words)


def test_a_number_of_65_bits_is_no_other_batch(world: World) -> None:
    engine = world.engine
    batch = engine.allocate_transfer_batch(1)
    for wrong in (batch + (1 << 64), batch - (1 << 64)):
        with pytest.raises(tent.InvalidArgumentError, match="batch_id is"):
            engine.submit_transfer(wrong, [world.request(tent.OpCode.WRITE, 0, 0, 64)])
    assert engine.get_transfer_status_list(batch) == []
    engine.free_transfer_batch(batch)


def test_a_wrong_timeout_of_transfer_sync_moves_nothing(world: World) -> None:
    with pytest.raises(tent.InvalidArgumentError, match="timeout is 'soon'"):
        world.engine.transfer_sync([world.request(tent.OpCode.WRITE, 0, 0, 64)], timeout="soon")
    assert world.engine.engine.metrics()["tent_write_bytes_total"] == 0


def test_numbers_of_numpy_are_numbers(world: World, keep: Any) -> None:
    np = pytest.importorskip("numpy")
    engine, start = world.engine, world.address
    at, sizes = np.array([start, start + 100]), np.array([50, 60])
    engine.register_local_memory_batch(at, sizes)
    engine.unregister_local_memory_batch(at, sizes)
    own = keep(engine.engine.allocate(1 << 16))
    assert engine.engine.addresses([own.address], np.int64(64)).n_pages == 1
    assert engine.engine.pages(own, 4096, rows=np.int64(2), row_stride=8192).n_pages == 14


def test_memory_functions(world: World) -> None:
    engine = world.engine
    with engine.allocate_memory_guard(4096) as guard:
        assert guard.size == 4096 and guard.address % 4096 == 0
    with pytest.raises(tent.AddressNotRegisteredError):
        engine.free_local_memory(guard.address)
    address = engine.allocate_local_memory_ex(4096, tent.MemoryOptions("cpu:0", tent.Permission.GlobalReadOnly))
    engine.free_local_memory(address)
    engine.register_local_memory(world.address, world.memory.size)  # the same again is taken as it is
    start = world.address
    engine.register_local_memory_batch([start, start + 100], [50, 60], tent.Permission.LocalReadWrite)
    engine.unregister_local_memory_batch([start, start + 100], [50, 60])
    with pytest.raises(tent.TentError):
        engine.register_local_memory_batch_ex([start, 0], [50, 50], tent.MemoryOptions())  # all or none
    with pytest.raises(tent.AddressNotRegisteredError):
        engine.unregister_local_memory(start, 50)
    with pytest.raises(tent.InvalidArgumentError):
        engine.register_local_memory_batch([start], [1, 2])
    engine.unregister_local_memory(start)
    with pytest.raises(tent.TentError):
        engine.transfer_sync([world.request(tent.OpCode.WRITE, 0, 0, 1)])


def test_allocated_memory_is_registered_and_taken_back_as_upstreams_benchmark_does(world: World) -> None:
    owner, size, half = tent.TransferEngine(), 1 << 16, 1 << 15
    address = owner.allocate_local_memory(size)
    handle = world.engine.open_segment(owner.get_segment_name())
    theirs = (ctypes.c_ubyte * size).from_address(address)
    expected = bytearray(size)

    def write(at: int) -> tent.TransferStatus:
        request = tent.Request(tent.OpCode.WRITE, world.address + at, handle, address + at, 100)
        return world.engine.transfer_sync([request], timeout=10)

    def written(at: int) -> None:
        assert write(at) == (State.COMPLETED, 100)
        expected[at : at + 100] = world.memory.expected[at : at + 100]
        assert bytes(theirs) == expected

    def refused() -> None:
        with pytest.raises(tent.TentError):
            write(0)
        assert bytes(theirs) == expected

    written(0)
    owner.register_local_memory(address, size)  # changes nothing
    with pytest.raises(tent.InvalidArgumentError, match="registered already, with another permission"):
        owner.register_local_memory(address, size, tent.Permission.GlobalReadOnly)
    written(1000)
    owner.unregister_local_memory(address)
    refused()
    with pytest.raises(tent.AddressNotRegisteredError):
        owner.unregister_local_memory(address)
    owner.register_local_memory(address, size)
    written(2000)
    owner.register_local_memory(address, half)
    owner.unregister_local_memory(address)  # the half
    written(half + 1000)
    owner.unregister_local_memory(address)  # the whole
    refused()
    owner.register_local_memory(address, size, tent.Permission.GlobalReadOnly)
    refused()
    read = tent.Request(tent.OpCode.READ, world.address + 5000, handle, address + 950, 200)
    assert world.engine.transfer_sync([read], timeout=10) == (State.COMPLETED, 200)
    world.memory.expect(5000, expected[950:1150])
    owner.free_local_memory(address)
    with pytest.raises(tent.TentError):
        world.engine.transfer_sync([read], timeout=10)
    with pytest.raises(tent.AddressNotRegisteredError):
        owner.unregister_local_memory(address)
    owner.close()


def test_allocated_memory_that_was_registered_anew_outlives_its_engine() -> None:
    with tent.TransferEngine() as owner:
        address = owner.allocate_local_memory(4096)
        owner.unregister_local_memory(address)
        owner.register_local_memory(address, 4096)
    (ctypes.c_ubyte * 4096).from_address(address)[7] = 9
    owner.free_local_memory(address)


def test_notifications_and_identity(world: World) -> None:
    engine, far = world.engine, world.both.far
    handle = engine.open_segment(far.address)
    engine.send_notifi(handle, tent.Notification("name", "text"))
    assert [(n.name, n.msg) for n in far.notifications.drain()] == [("name", "text")]
    world.both.theirs.expect(0, world.memory.expected[:8])
    request = world.request(tent.OpCode.WRITE, 0, 0, 8)
    for name, submit in (
        ("first", lambda b: engine.submit_transfer_notif(b, [request], "first", "1")),
        ("second", lambda b: engine.submit_transfer(b, [request], tent.Notification("second", b"1"))),
    ):
        batch = engine.allocate_transfer_batch(1)
        submit(batch)
        engine.wait(batch, 10)
        engine.free_transfer_batch(batch)
        note = far.notifications.get(10)
        assert (note.name, note.msg) == (name, "1")
    back = far.open(engine.engine.address)
    far.notify(back, "hello", "you").result(10)
    assert [(n.name, n.msg, n.peer) for n in engine.recv_notifi()] == [("hello", "you", far.address)]
    assert engine.available()
    assert f"{engine.get_rpc_server_address()}:{engine.get_rpc_server_port()}" == engine.engine.address
    assert engine.get_segment_name()
    assert engine.get_local_topology().startswith("{")
    blob = far.export()
    imported = engine.import_remote_segment(blob)
    assert engine.probe_peer_alive(imported)
    assert isinstance(engine.export_local_segment(), bytes)


def test_cancel_timeouts_and_sync(peers: Callable[..., PeerProcess], pair: Callable[..., Pair]) -> None:
    peer = peers(size=16 << 20)
    with tent.TransferEngine() as engine:
        address = engine.allocate_local_memory(16 << 20)
        segment = engine.open_segment(peer.address + "/kv")
        request = tent.Request(tent.OpCode.WRITE, address, segment, 0, 16 << 20)
        engine.transfer_sync([tent.Request(tent.OpCode.READ, address, segment, 0, 10)], 10)
        peer.stop()
        batch = engine.allocate_transfer_batch(4)
        engine.submit_transfer(batch, [request])
        with pytest.raises(TimeoutError):
            engine.wait(batch, 0.1)
        assert engine.get_transfer_status(batch, 0).state == State.PENDING
        engine.cancel_transfer(batch, 0)
        assert engine.wait(batch, 10).state == State.CANCELED
        request.deadline_ns = time.monotonic_ns() + 100_000_000
        engine.submit_transfer(batch, [request])
        assert engine.wait(batch, 10).state in (State.TIMEOUT, State.CANCELED)
        assert engine.get_transfer_status(batch, 1).state == State.TIMEOUT
        request.deadline_ns = 0
        with pytest.raises(tent.TransferTimeoutError):
            engine.transfer_sync([request], timeout=0.1)
        peer.resume()
        engine.free_transfer_batch(batch)
        engine.free_local_memory(address)


def test_ctrl_c_in_transfer_sync_comes_out_behind_the_end(
    peers: Callable[..., PeerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = peers(size=16 << 20)
    with tent.TransferEngine() as engine:
        address = engine.allocate_local_memory(16 << 20)
        segment = engine.open_segment(peer.address + "/kv")
        engine.transfer_sync([tent.Request(tent.OpCode.READ, address, segment, 0, 10)], 10)
        peer.stop()
        wait, ends = engine.wait, []

        def interrupted(batch: int, timeout: float | str | None = None) -> tent.TransferStatus:
            if not ends:
                ends.append(State.PENDING)
                raise KeyboardInterrupt
            ends.append((status := wait(batch, timeout)).state)
            return status

        monkeypatch.setattr(engine, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.transfer_sync([tent.Request(tent.OpCode.WRITE, address, segment, 0, 16 << 20)])
        assert ends == [State.PENDING, State.CANCELED]


@pytest.mark.interpreter
def test_numbers_and_orders_are_upstreams() -> None:
    assert [int(p) for p in (tent.PRIO_HIGH, tent.PRIO_MEDIUM, tent.PRIO_LOW)] == [0, 1, 2]
    assert [s.name for s in State] == ["INITIAL", "PENDING", "INVALID", "CANCELED", "COMPLETED", "TIMEOUT", "FAILED"]
    assert (tent.OpCode.READ, tent.OpCode.WRITE) == (0, 1)
    assert tent.Permission.GlobalReadWrite is tent.Permission.GLOBAL_READ_WRITE
    assert [t.value for t in tent.TransportType] == list(range(14))
    assert (tent.TransportType.TCP, tent.TransportType.UB, tent.TransportType.MPCOMM) == (7, 11, 12)
    assert [i.name for i in tent.IntentType][5:] == ["WEIGHT_LOADING", "STAGING_INTERNAL"]
    assert tent.kWildcardLocation == "*"
    request = tent.Request(tent.OpCode.WRITE, 1, 2, 3, 4, 1, tent.TransportType.TCP, "", 5, tent.IntentType.MIGRATION)
    assert (request.source, request.target_id, request.target_offset, request.length) == (1, 2, 3, 4)
    assert (request.priority, request.transport_hint, request.deadline_ns, request.intent_type) == (1, 7, 5, 3)
    assert tent.Request().priority == tent.PRIO_HIGH
    with pytest.raises(TypeError):
        tent.Request(prio=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        request.prio = 1  # type: ignore[attr-defined]
    assert tent.Request(policy_name="p").policy_name == "p"
