"""Notifications: in order, exactly once, after their data, bounded, and none for a failed transfer."""

from __future__ import annotations

import select
import signal
import threading
from collections.abc import Callable
from typing import Any, cast

import peer_side
import pytest
from conftest import Pair

import tent
from tent.testing import PeerProcess


def test_order_and_exactly_once(pair: Callable[..., Pair]) -> None:
    both = pair(1 << 16)
    for i in range(300):
        both.near.write(both.local[i : i + 10], both.remote[i : i + 10], notify=("n", str(i))).result(10)
    both.theirs.expect(0, both.mine.expected[:309])
    got = both.far.notifications.drain()
    assert [note.message for note in got] == [str(i) for i in range(300)]
    assert {note.peer for note in got} == {both.near.address}
    assert both.far.notifications.drain() == []


def test_it_comes_after_its_data(pair: Callable[..., Pair]) -> None:
    both = pair(1 << 20)
    for i in range(50):
        data = bytes([i]) * (1 << 20)
        both.mine.view[:] = data
        both.near.write(both.local, both.remote, notify=("round", str(i)))
        assert both.far.notifications.get(10).message == str(i)
        assert bytes(both.theirs.view) == data
    both.mine.expect(0, data)
    both.theirs.expect(0, data)


@pytest.mark.interpreter
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("done", "step 7"),
        ("", ""),
        ("ünïcode", "☃" * 1000),
        (b"bytes", b"\x00\xff\xfe" * 100),
        ("n" * 255, b"m" * 65536),
    ],
    ids=["text", "empty", "unicode", "bytes", "largest"],
)
def test_names_and_messages_arrive_as_they_are(pair: Callable[..., Pair], name: Any, message: Any) -> None:
    both = pair(64)
    assert both.near.notify(both.peer, name, message).result(10) == 0
    note = both.far.notifications.get(10)
    text = name if isinstance(name, str) else name.decode()
    data = message.encode() if isinstance(message, str) else message
    assert (note.name, note.data, note.peer) == (text, data, both.near.address)
    assert note.message == note.msg == data.decode("utf-8", "surrogateescape")
    assert note == tent.Notification(text, message, both.near.address)
    assert repr(note).startswith("Notification(name=")


def test_a_read_tells_the_owner_that_its_memory_is_free(pair: Callable[..., Pair]) -> None:
    both = pair(4096)
    both.near.read(both.local, both.remote, notify=("free", "kv")).result(10)
    assert both.far.notifications.get(10).name == "free"
    both.mine.expect(0, both.theirs.expected)
    both.check()


def test_none_for_a_transfer_that_failed(pair: Callable[..., Pair], keep: Any) -> None:
    both = pair(4096)
    keep(both.far.register(bytearray(64), name="read only", permission=tent.Permission.GlobalReadOnly))
    with pytest.raises(tent.TentError):
        both.near.write(both.local[0:64], both.peer["read only"], notify=("bad", "")).result(10)
    both.near.notify(both.peer, "good").result(10)
    assert [note.name for note in both.far.notifications.drain()] == ["good"]
    both.check()


def test_waiting_runs_out_and_draining_never_blocks(engines: Callable[..., tent.Engine]) -> None:
    notes = engines().notifications
    assert notes.drain() == notes.drain(5) == []
    with pytest.raises(TimeoutError):
        notes.get(timeout=0.05)
    with pytest.raises(TimeoutError):
        notes.get(timeout=0)


def test_the_descriptor_is_readable_while_some_wait(pair: Callable[..., Pair]) -> None:
    both = pair(64)
    fd = both.far.notifications.fileno()
    assert select.select([fd], [], [], 0)[0] == []
    both.near.notify(both.peer, "a").result(10)
    both.near.notify(both.peer, "b").result(10)
    assert select.select([fd], [], [], 5)[0] == [fd]
    assert [note.name for note in both.far.notifications.drain(1)] == ["a"]
    assert select.select([fd], [], [], 5)[0] == [fd]
    assert both.far.notifications.get(1).name == "b"
    assert select.select([fd], [], [], 0)[0] == []


@pytest.mark.interpreter
def test_iterating_ends_with_the_engine(pair: Callable[..., Pair]) -> None:
    both = pair(64)
    got: list[str] = []
    came = threading.Semaphore(0)

    def collect() -> None:
        for note in both.far.notifications:
            got.append(note.name)
            came.release()

    thread = threading.Thread(target=collect)
    thread.start()
    for i in range(5):
        both.near.notify(both.peer, str(i)).result(10)
        assert came.acquire(timeout=10)
    both.far.close()
    thread.join(10)
    assert not thread.is_alive() and got == list("01234")


def test_several_readers_share_the_stream(pair: Callable[..., Pair]) -> None:
    both = pair(64)
    got: list[list[str]] = [[] for _ in range(4)]

    def collect(mine: list[str]) -> None:
        mine.extend(note.message for note in both.far.notifications)

    threads = [threading.Thread(target=collect, args=(mine,)) for mine in got]
    for thread in threads:
        thread.start()
    for i in range(200):
        both.near.notify(both.peer, "n", str(i)).result(10)
    while both.far.metrics() and select.select([both.far.notifications.fileno()], [], [], 0)[0]:
        pass  # the readers are at it
    both.far.close()
    for thread in threads:
        thread.join(10)
    assert sorted(map(int, sum(got, []))) == list(range(200))
    assert all(mine == sorted(mine, key=int) for mine in got)


def test_many_from_several_processes_each_in_order(
    engines: Callable[..., tent.Engine], peers: Callable[..., PeerProcess]
) -> None:
    engine = engines()
    target = peers(size=4096)
    with engine.open(target.address) as peer:
        transfers = [engine.notify(peer, "many", str(i)) for i in range(2000)]
        tent.wait(transfers, timeout=60)
        assert all(transfer.result() == 0 for transfer in transfers)
    got = target.run(peer_side.drain, n=2000)
    assert [message for _, message, _ in got] == [str(i) for i in range(2000)]


def test_a_full_queue_holds_the_sender_back(engines: Callable[..., tent.Engine]) -> None:
    near, far = engines(), engines(notification_queue=16)
    with near.open(far.address) as peer:
        transfers = [near.notify(peer, "n", str(i)) for i in range(40)]
        _, pending = tent.wait(transfers, timeout=0.3)
        assert pending  # nobody reads: somebody is held back
        got: list[str] = []
        while len(got) < 40:
            got.append(far.notifications.get(10).message)
        assert got == [str(i) for i in range(40)]
        assert tent.wait(transfers, timeout=10)[1] == set()
        assert all(transfer.result() == 0 for transfer in transfers)


def test_a_signal_handler_that_takes_notifications_waits_for_nobody(pair: Callable[..., Pair]) -> None:
    """Its interruption may come between the engine's answer and its reading."""
    both = pair(4096)
    engine, back = both.near, both.far.open(both.near.address)
    for name in ("first", "second", "third"):
        both.far.notify(back, name).result(10)
    library, handled = engine._library, []

    class Interrupted:
        """The native module, with a handler that runs behind the first look at notifications."""

        def __getattr__(self, name: str) -> Any:
            return self._take if name == "pybind_NoteTake" else getattr(library, name)

        def _take(self, *arguments: int) -> int:
            n = library.pybind_NoteTake(*arguments)
            engine._library = library
            signal.raise_signal(signal.SIGUSR1)
            return n

    old = signal.signal(signal.SIGUSR1, lambda *_: handled.extend(engine.notifications.drain(1)))
    try:
        engine._library = cast("Any", Interrupted())
        taken = engine.notifications.drain(1)
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert [note.name for note in (*taken, *handled, *engine.notifications.drain())] == ["first", "second", "third"]


@pytest.mark.parametrize("end", ["a cancel", "a deadline"])
@pytest.mark.parametrize("way", ["shm", "tcp"])
def test_a_transfer_that_did_not_complete_is_told_of_by_none(
    way: str, end: str, engines: Callable[..., tent.Engine]
) -> None:
    """One that is under way cannot be had back: then the transfer has COMPLETED, and its end came too late."""
    near, far = engines(**{"transports/shm/enable": way == "shm"}), engines(**{"transports/shm/enable": way == "shm"})
    local, offered = near.allocate(4096), far.allocate(4096, name="kv")
    with near.open(far.address) as peer:
        remote = peer["kv"]
        completed = []
        for number in range(300):
            limit = number % 30 * 1e-5 if end == "a deadline" else None
            transfer = near.write(local, remote, notify=("n", str(number)), timeout=limit)
            if limit is None:
                for _ in range(number % 30):
                    transfer.done()
                transfer.cancel()
            if transfer.wait(20) == tent.TransferStatusEnum.COMPLETED:
                completed.append(str(number))
        near.notify(peer, "last").result(20)
        heard = [note.message for note in far.notifications.drain()]
        assert heard == [*completed, ""]
    local.close()
    offered.close()


@pytest.mark.parametrize("end", ["a cancel", "a deadline"])
def test_a_full_queue_that_has_room_again_takes_those_that_somebody_waits_for(
    end: str, engines: Callable[..., tent.Engine]
) -> None:
    """Three notifications fly in one message, which the queue refuses until the transfers of two of them have ended."""
    near, far = engines(), engines(notification_queue=1)
    local, offered = near.allocate(4096), far.allocate(4096, name="kv")
    with near.open(far.address) as peer:
        near.notify(peer, "fills").result(10)
        ahead, *short, behind = (
            near.write(local, peer["kv"], notify=(name, ""), timeout=0.5 if end == "a deadline" and given else 20)
            for name, given in (("ahead", False), ("a", True), ("b", True), ("behind", False))
        )
        heard = [far.notifications.get(10)]
        ahead.result(10)  # the others fly behind it
        for transfer in short:
            if end == "a cancel":
                transfer.cancel()
            error = transfer.exception(10)
            assert isinstance(error, (tent.TransferCanceledError, tent.TransferTimeoutError))
        heard += [far.notifications.get(10), far.notifications.get(10)]
        behind.result(10)
        near.notify(peer, "last").result(10)
        heard += far.notifications.drain()
    assert [note.name for note in heard] == ["fills", "ahead", "behind", "last"]
    local.close()
    offered.close()


def test_a_batch_that_waits_for_its_notification_alone_is_cancelled_as_a_whole(
    engines: Callable[..., tent.Engine],
) -> None:
    far = engines(notification_queue=1)
    offered = far.allocate(4096, name="kv")
    with tent.TransferEngine() as te:
        segment, address = te.open_segment(f"{far.address}/kv"), te.allocate_local_memory(4096)
        te.send_notifi(segment, tent.Notification("fills", "the queue"))
        batch = te.allocate_transfer_batch(1)
        requests = [tent.Request(tent.OpCode.WRITE, address, segment, 0, 4096)]
        te.submit_transfer_notif(batch, requests, "n", "m")
        while te.get_transfer_status(batch, 0).state != tent.TransferStatusEnum.COMPLETED:
            pass
        te.cancel_transfer(batch, 0)
        assert te.get_transfer_status_overall(batch).state == tent.TransferStatusEnum.PENDING
        te.cancel_transfer(batch)
        assert te.wait(batch, 20).state == tent.TransferStatusEnum.CANCELED
        te.free_transfer_batch(batch)
    assert [note.name for note in far.notifications.drain()] == ["fills"]
    offered.close()
