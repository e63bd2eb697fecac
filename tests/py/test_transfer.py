"""A Transfer as a future: waiting, time-outs, cancelling, callbacks, dropping. Peers that do not move are stopped
ones."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import peer_side
import pytest
from conftest import Pair

import tent
from tent import loop
from tent.testing import Memory, PeerProcess

State = tent.TransferStatusEnum
PEER_SEED = 7


class Stuck:
    """An engine, a region and a peer that is stopped: its requests stay under way."""

    def __init__(self, engine: tent.Engine, peer: PeerProcess, memory: Memory) -> None:
        self.engine, self.process, self.memory = engine, peer, memory
        self.local = engine.register(memory.view)
        self.peer = engine.open(peer.address)
        self.remote = self.peer["kv"]
        engine.write(self.local[0:10], self.remote[0:10]).result(10)  # the link is up
        peer.stop()

    def write(self, **keywords: Any) -> tent.Transfer:
        return self.engine.write(self.local, self.remote, **keywords)


@pytest.fixture
def stuck(engines: Callable[..., tent.Engine], peers: Callable[..., PeerProcess]) -> Iterator[Stuck]:
    size = 16 << 20  # more than sockets hold
    world = Stuck(engines(), peers(size=size, seed=PEER_SEED), Memory(size, 3))
    yield world
    world.process.resume()
    world.engine.close(timeout=0)
    world.memory.check()  # a WRITE never changes its source


def test_result_done_and_all_that_it_tells(pair: Callable[..., Pair]) -> None:
    both = pair(1 << 20)
    transfer = both.near.write(both.local, both.remote)
    assert transfer.total_bytes == 1 << 20
    assert transfer.result() == transfer.result(0) == 1 << 20
    assert transfer.done() and transfer.exception() is None and transfer.wait() == State.COMPLETED
    assert transfer.state == State.COMPLETED
    assert transfer.bytes == 1 << 20
    assert len(transfer.transports) == 1 and transfer.attempts >= 1 and transfer.failovers == 0
    assert 0 < transfer.elapsed < 30
    assert transfer.elapsed == transfer.elapsed
    assert repr(transfer).startswith("<Transfer COMPLETED 1.0 MiB ")
    assert transfer.cancel() is False
    both.theirs.expect(0, both.mine.expected)
    both.check()


def test_a_wait_that_runs_out_is_the_builtin_and_the_transfer_goes_on(stuck: Stuck) -> None:
    transfer = stuck.write()
    for call in (transfer.result, transfer.exception, transfer.wait):
        began = time.monotonic()
        with pytest.raises(TimeoutError) as caught:
            call(0.1)
        assert 0.09 < time.monotonic() - began < 1
        assert not isinstance(caught.value, tent.TentError)
    assert not transfer.done() and transfer.state == State.PENDING
    assert "PENDING" in repr(transfer)
    with pytest.raises(tent.InvalidArgumentError):
        transfer.result(-1)
    stuck.process.resume()
    assert transfer.result(30) == stuck.memory.size
    assert stuck.process.run(peer_side.check, written=[[0, stuck.memory.size, 3, 0]]) == ""


@pytest.mark.interpreter
def test_bytes_never_fall_and_polling_makes_progress(pair: Callable[..., Pair]) -> None:
    both = pair(32 << 20)
    transfer = both.near.write(both.local, both.remote)
    seen = [0]
    while not transfer.done():
        seen.append(transfer.bytes)
    seen.append(transfer.bytes)
    assert seen == sorted(seen) and seen[-1] == 32 << 20
    both.theirs.expect(0, both.mine.expected)
    both.check()


def test_a_deadline_ends_the_transfer_itself(stuck: Stuck) -> None:
    began = time.monotonic()
    transfer = stuck.write(timeout=0.2)
    with pytest.raises(tent.TransferTimeoutError) as caught:
        transfer.result()
    assert 0.15 < time.monotonic() - began < 3
    error = caught.value
    assert isinstance(error, TimeoutError)
    assert (error.state, error.code, error.peer) == (State.TIMEOUT, "TIMEOUT", stuck.process.address)
    assert error.failed_tasks == [0]
    assert transfer.done() and transfer.state == State.TIMEOUT
    assert type(transfer.exception()) is tent.TransferTimeoutError


def test_the_error_of_a_cancel_names_the_peer_whatever_the_operands_are(stuck: Stuck) -> None:
    engine, local, peer, remote, size = stuck.engine, stuck.local, stuck.peer, stuck.remote, stuck.memory.size
    here, there = engine.addresses([(local.address, size)]), peer.addresses([(remote.address, size)])
    grids = engine.pages(local, size), peer.pages(remote, size)
    with engine.batch() as batch:
        batch.write_pages(grids[0], [0], grids[1], [0])
        together = batch.submit()
    for transfer in (
        engine.write(local[0:size], remote[0:size]),
        engine.write(local, remote),
        engine.write(local, peer.memory(remote.address, size)),
        engine.write_pages(local, [0], remote, [0], page_bytes=size),
        engine.write_pages(grids[0], [0], grids[1], [0]),
        engine.write_pages(here, [0], there, [0]),
        engine.write_ranges(engine, [local.address], peer, [remote.address], [size]),
        together,
    ):
        transfer.cancel()
        error = transfer.exception(10)
        assert isinstance(error, tent.TransferCanceledError) and error.peer == stuck.process.address


def test_cancel_ends_it_and_nothing_lands_later(stuck: Stuck) -> None:
    transfer = stuck.write()
    assert transfer.cancel() is True
    with pytest.raises(tent.TransferCanceledError) as caught:
        transfer.result(10)
    assert caught.value.code == "CANCELED" and transfer.state == State.CANCELED
    assert transfer.cancel() is False
    # The source is ours again: bytes that are written there now must never travel.
    stuck.memory.view[:] = bytes(stuck.memory.size)
    stuck.memory.expect(0, bytes(stuck.memory.size))
    stuck.process.resume()
    with stuck.engine.open(stuck.process.address) as peer:
        got = stuck.engine.allocate(stuck.memory.size)
        stuck.engine.read(got, peer["kv"]).result(30)
        theirs, mine = Memory(stuck.memory.size, PEER_SEED), Memory(stuck.memory.size, 3)
        for at in range(0, stuck.memory.size, 4096):  # each byte is the old one, or the one that was sent
            arrived = bytes(got.view[at : at + 4096])
            if arrived not in (bytes(theirs.view[at : at + 4096]), bytes(mine.view[at : at + 4096])):
                pairs = zip(arrived, theirs.view[at : at + 4096], mine.view[at : at + 4096])
                assert all(a in (b, c) for a, b, c in pairs), at
        got.close()


@pytest.mark.interpreter
def test_callbacks_run_once_on_tents_thread(pair: Callable[..., Pair]) -> None:
    both = pair(4 << 20)
    got: list[tuple[object, str]] = []
    both_came = threading.Semaphore(0)

    def note(transfer: tent.Transfer) -> None:
        got.append((transfer, threading.current_thread().name))
        both_came.release()

    transfer = both.near.write(both.local, both.remote)
    transfer.add_done_callback(note)
    transfer.result(10)
    transfer.add_done_callback(note)  # it has ended: all the same
    for _ in range(2):
        assert both_came.acquire(timeout=10)
    assert got == [(transfer, "tent")] * 2
    both.theirs.expect(0, both.mine.expected)


@pytest.mark.interpreter
@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), RuntimeError("boom")], ids=repr)
def test_a_callback_that_fails_is_logged_and_hurts_nobody(
    pair: Callable[..., Pair], caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(_: tent.Transfer) -> None:
        raise error

    both = pair(4096)
    came = threading.Event()
    transfer = both.near.write(both.local, both.remote)
    transfer.add_done_callback(fail)
    transfer.add_done_callback(lambda _: came.set())
    assert came.wait(10)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == [
        f"exception in a callback of tent: {error!r}"
    ]
    both.theirs.expect(0, both.mine.expected)


def test_a_callback_may_close_the_engine(pair: Callable[..., Pair]) -> None:
    both = pair(4096)
    came = threading.Event()

    def close(transfer: tent.Transfer) -> None:
        both.near.close()
        came.set()

    both.near.write(both.local, both.remote).add_done_callback(close)
    assert came.wait(20)
    assert both.near.closed
    both.theirs.expect(0, both.mine.expected)


def test_callbacks_have_run_when_close_returns(pair: Callable[..., Pair]) -> None:
    """Also where another engine keeps tent's thread alive, and while a callback is in the way."""
    both = pair(4096)
    begun, closed, seen = threading.Event(), threading.Event(), []

    def slow(_: tent.Transfer) -> None:
        begun.set()
        seen.append(closed.wait(0.3))

    transfer = both.near.write(both.local, both.remote)
    transfer.add_done_callback(slow)
    transfer.add_done_callback(lambda ended: seen.append(ended.state))
    assert begun.wait(10)
    both.near.close()
    closed.set()
    assert seen == [False, tent.TransferStatusEnum.COMPLETED]
    both.theirs.expect(0, both.mine.expected)


def test_a_callback_that_never_ends_does_not_keep_close(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tent.loop._CALLBACKS_SECONDS", 0)
    both = pair(4096)
    begun, never = threading.Event(), threading.Event()

    def stuck(_: tent.Transfer) -> None:
        begun.set()
        never.wait(30)

    both.near.write(both.local, both.remote).add_done_callback(stuck)
    assert begun.wait(10)
    both.near.close()
    assert both.near.closed and "still runs" in caplog.text
    both.theirs.expect(0, both.mine.expected)
    never.set()


def test_as_completed_yields_each_once_and_wait_divides(pair: Callable[..., Pair]) -> None:
    both = pair(1 << 20)
    transfers = [both.near.write(both.local[i : i + 64], both.remote[i : i + 64]) for i in range(0, 64_000, 64)]
    both.theirs.expect(0, both.mine.expected[:64_000])
    seen = list(tent.as_completed(transfers, timeout=30))
    assert sorted(map(id, seen)) == sorted(map(id, transfers))
    assert tent.wait(transfers) == (set(transfers), set())
    assert tent.wait([]) == (set(), set())
    assert list(tent.as_completed([])) == []
    with pytest.raises(tent.InvalidArgumentError):
        tent.wait([transfers[0], 3])  # type: ignore[list-item]
    with pytest.raises(tent.InvalidArgumentError):
        tent.wait(transfers, return_when="SOON")


def test_waiting_for_some_of_those_that_do_not_end(stuck: Stuck, pair: Callable[..., Pair]) -> None:
    both = pair(4096)
    slow, quick = stuck.write(), both.near.write(both.local, both.remote)  # of two engines
    both.theirs.expect(0, both.mine.expected)
    assert tent.wait([slow, quick], timeout=0.2) == ({quick}, {slow})
    assert tent.wait([slow, quick], return_when=tent.FIRST_COMPLETED) == ({quick}, {slow})
    others = tent.as_completed([slow, quick], timeout=0.3)
    assert next(others) is quick
    with pytest.raises(TimeoutError):
        next(others)
    third = stuck.write(timeout=0.1)
    assert tent.wait([slow, third], timeout=10, return_when=tent.FIRST_EXCEPTION) == ({third}, {slow})
    slow.cancel()
    assert tent.wait([slow, quick, third], timeout=10)[1] == set()


@pytest.mark.interpreter
def test_a_dropped_transfer_goes_on_and_keeps_its_memory(stuck: Stuck) -> None:
    size = stuck.memory.size
    buffer = bytearray(stuck.memory.view)
    region = stuck.engine.register(buffer)
    transfer = stuck.engine.write(region, stuck.remote)
    del transfer
    gc.collect()
    with pytest.raises(BufferError):
        buffer.append(1)  # still exported: it cannot be resized
    stuck.process.resume()
    stuck.engine.write(stuck.local[0:10], stuck.remote[0:10]).result(30)
    stuck.engine.close()  # waits for transfers under way, dropped or not
    assert stuck.process.run(peer_side.check, written=[[0, size, 3, 0]]) == ""
    del region
    buffer.append(1)


def test_a_failure_that_nobody_asked_for_is_logged(stuck: Stuck) -> None:
    logged: SimpleQueue[str] = SimpleQueue()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "dropped" in record.getMessage():
                logged.put(record.getMessage())

    listener = Listener()
    logging.getLogger("tent").addHandler(listener)
    try:
        stuck.write(timeout=0.05)
        assert "TIMEOUT" in logged.get(timeout=10)
    finally:
        logging.getLogger("tent").removeHandler(listener)


@pytest.mark.parametrize("closes", [False, True])
def test_all_records_of_a_burst_are_logged(closes: bool) -> None:
    standing, going, last = (threading.Event() for _ in range(3))

    def stand_still(record: logging.LogRecord) -> bool:  # as a log does that is rotated
        if "rail=first" in record.getMessage():
            standing.set()
            going.wait(10)
        elif "rail=last" in record.getMessage():
            last.set()
            going.set()
        return True

    logger = logging.getLogger("tent")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addFilter(stand_still)
    try:
        with tent.Engine(log_level="debug") as engine:
            engine.allocate(4096, name="first").close()
            assert standing.wait(10)
            for _ in range(900):  # more than one call takes, and no more than the engine keeps
                engine.allocate(4096).close()
            engine.allocate(4096, name="last").close()
            if not closes:
                going.set()
                assert last.wait(10)
        assert last.is_set()
    finally:
        going.set()
        logger.removeFilter(stand_still)
        logger.setLevel(level)


def test_leaving_the_block_waits_or_cancels(peers: Callable[..., PeerProcess]) -> None:
    peer = peers(size=16 << 20)
    with tent.Engine() as engine:
        local = engine.allocate(16 << 20)
        transfer = engine.write(local, engine.open(peer.address)["kv"])
    assert transfer.result() == 16 << 20  # a normal end waits for transfers under way
    assert peer.run(peer_side.check, written=[]) != ""  # zeros have arrived
    with pytest.raises(KeyError), tent.Engine() as engine:
        other = engine.allocate(16 << 20)
        segment = engine.open(peer.address)
        engine.write(other[0:64], segment["kv"][0:64]).result(
            10
        )  # there is a rail: later requests wait, they do not fail
        peer.stop()
        transfer = engine.write(other, segment["kv"])
        raise KeyError  # an exception cancels
    assert transfer.done() and transfer.state == State.CANCELED
    with pytest.raises(tent.TransferCanceledError):
        transfer.result()
    assert "CANCELED" in repr(transfer)


def test_close_cancels_the_rest_after_its_time(stuck: Stuck) -> None:
    transfer = stuck.write()
    began = time.monotonic()
    stuck.engine.close(timeout=0.3)
    assert 0.25 < time.monotonic() - began < 10
    assert transfer.state == State.CANCELED
    assert transfer.exception().peer == stuck.process.address  # type: ignore[union-attr]


def test_a_waiter_in_another_thread_survives_the_close(stuck: Stuck) -> None:
    transfer = stuck.write()
    got: list[object] = []
    waiting = threading.Thread(target=lambda: got.append(transfer.exception()))
    waiting.start()
    stuck.engine.close(timeout=0.2)
    waiting.join(10)
    assert [type(error) for error in got] == [tent.TransferCanceledError]


def test_an_error_is_that_of_the_transfer_when_its_engine_closes_meanwhile(
    stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine closes between two questions of exception(), as another thread may do it."""
    transfer, asked, failure = stuck.write(), [0], tent.Transfer._failure

    def closes(self: tent.Transfer) -> dict[str, object]:
        found = failure(self)
        if asked[0] == 0:
            asked[0] += 1
            stuck.engine.close(timeout=0.2)
        return found

    monkeypatch.setattr(tent.Transfer, "_failure", closes)
    transfer.cancel()
    assert type(transfer.exception(30)) is tent.TransferCanceledError and asked == [1]


def test_too_many_requests_take_nothing(engines: Callable[..., tent.Engine], peers: Callable[..., PeerProcess]) -> None:
    engine, peer = engines(max_pending_requests=100), peers(size=1 << 20)
    with engine.allocate(1 << 20) as local, engine.open(peer.address) as segment:
        remote = segment["kv"]
        engine.write(local[0:1], remote[0:1]).result(10)
        peer.stop()
        going = engine.write_pages(local, range(90), remote, range(90), page_bytes=8192)
        with pytest.raises(tent.TooManyRequestsError):
            engine.write_pages(local, range(20), remote, range(20), page_bytes=64)
        engine.write_pages(local, range(5), remote, range(5), page_bytes=64).cancel()
        peer.resume()
        assert going.result(30) == 90 * 8192


def test_a_thread_that_is_awake_when_it_is_ended_runs_its_last_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log records had woken it. It closed the descriptor by which close() then woke it, and left a job behind."""
    woken = []
    with tent.Engine() as engine:
        engine.allocate(4096).close()
        worker = loop._Worker._current
        assert worker is not None
        thread, wake = worker.thread, worker.wake

        def awake_already() -> None:
            woken.append(thread)
            wake()  # by something else
            thread.join(0.2)  # it comes to its end, and waits there
            wake()

        monkeypatch.setattr(worker, "wake", awake_already)
    assert woken == [thread]
    assert not thread.is_alive()
    assert not worker.jobs
