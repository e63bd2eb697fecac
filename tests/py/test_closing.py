"""Engine.close(), disturbed: by signal handlers, by transfers that are dropped beside it, by steps that fail."""

from __future__ import annotations

import asyncio
import errno
import gc
import itertools
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import apart
import pytest
from conftest import Pair

import tent
from tent import _native, aio, closing, loop, moves
from tent.testing import PeerProcess

pytestmark = pytest.mark.interpreter


class Closing:
    """An engine that offers memory to `other`, has a transfer under way that cannot end by itself, and is interrupted
    by SIGALRM at some steps of its close."""

    def __init__(
        self, engines: Callable[..., tent.Engine], peer: PeerProcess, steps: list[str], patch: pytest.MonkeyPatch
    ) -> None:
        self.engine, self.other = engines(), engines()
        self.offered = self.engine.register(bytearray(4096), name="kv")
        self.to = self.other.open(self.engine.address)
        source = self.engine.allocate(16 << 20)
        segment = self.engine.open(peer.address)
        self.engine.write(source[0:64], segment["kv"][0:64]).result(10)
        peer.stop()
        self.transfer = self.engine.write(source, segment["kv"])
        self._handled = threading.Semaphore(0)
        for step in steps:
            patch.setattr(closing, step, self._interrupted(getattr(closing, step)))

    def _interrupted(self, step: Callable[..., None]) -> Callable[..., None]:
        def interrupted(*arguments: Any) -> None:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
            assert self._handled.acquire(timeout=30)
            step(*arguments)

        return interrupted

    @contextmanager
    def handler(self, of: Callable[[], object]) -> Iterator[None]:
        """SIGALRM calls a function."""

        def handle(*_: object) -> None:
            self._handled.release()
            of()

        old = signal.signal(signal.SIGALRM, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGALRM, old)

    def check_ended(self) -> None:
        """No peer reaches the memory any more, and the transfer has an end."""
        assert self.engine.closed and self.offered._memory.keeper is None
        assert self.transfer.state == tent.TransferStatusEnum.CANCELED
        with self.other.allocate(64) as page, pytest.raises(tent.TentError):
            self.other.write(page, self.to["kv"][0:64]).result(10)


@pytest.mark.parametrize("steps", [["_wait_all"], ["_wait_all", "_settle_all"], ["_finish"]])
def test_a_signal_handler_that_raises_keeps_no_engine_open(
    engines: Callable[..., tent.Engine],
    peers: Callable[..., PeerProcess],
    monkeypatch: pytest.MonkeyPatch,
    steps: list[str],
) -> None:
    under = Closing(engines, peers(size=16 << 20), steps, monkeypatch)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with under.handler(interrupt), pytest.raises(KeyboardInterrupt):
        under.engine.close(timeout="1s" if "_finish" in steps else 30)
    under.check_ended()


@pytest.mark.parametrize("left", [-5, 1234, 60_000])
def test_the_end_in_go_has_the_time_that_is_left(
    engines: Callable[..., tent.Engine], monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """Transfers may have used it all: a close would take twice its time then."""
    engine, given = engines(), []
    call, end = _native.call, engine._library.pybind_Close

    def noted(function: Callable[..., Any], *arguments: Any) -> Any:
        if function == end:
            given.append(arguments[1])
        return call(function, *arguments)

    monkeypatch.setattr(_native, "call", noted)
    monkeypatch.setattr(_native, "left_ms", lambda over: left)
    engine.close()
    assert given == [max(0, min(left, 5000))]


class Interruption:
    """Raises KeyboardInterrupt behind the n-th call that tent's Python makes to C, where a signal handler may."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "c_return" and frame.f_code.co_filename.startswith(tent.__path__[0]):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

    def during(self, call: Callable[[], object]) -> bool:
        """Whether the call was interrupted."""
        gc.collect()
        gc.disable()  # a finalizer of an older object would swallow the error
        sys.setprofile(self)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
            gc.enable()
        return False


def test_an_engine_that_calls_itself_closed_is_closed_wherever_a_handler_raises(
    engines: Callable[..., tent.Engine],
) -> None:
    other = engines()
    with other.allocate(64) as page:
        for n in itertools.count(1):
            engine = engines()
            region = engine.register(bytearray(64), name="kv")
            to = other.open(engine.address)
            interrupted = Interruption(n).during(lambda engine=engine: engine.close(0))  # type: ignore[misc]
            assert engine.closed == (engine._library is _native.CLOSED), n
            engine.close(0)
            assert region._memory.keeper is None
            with pytest.raises(tent.TentError):
                other.write(page, to["kv"][0:64]).result(10)
            if not interrupted:
                break


def test_a_signal_handler_may_close_the_engine_that_is_closing(
    engines: Callable[..., tent.Engine], peers: Callable[..., PeerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    under = Closing(engines, peers(size=16 << 20), ["_wait_all"], monkeypatch)

    def close() -> None:
        under.engine.close(timeout=1)
        under.offered.close()
        raise SystemExit  # as handlers of SIGTERM do

    with under.handler(close), pytest.raises(SystemExit):
        under.engine.close()
    under.check_ended()


CLOSE_UNDER_A_LOCK = """
import io
import logging
import threading
import tent
from tent import loop

lock = threading.RLock()
handler = logging.StreamHandler(io.StringIO())
logging.basicConfig(level=logging.DEBUG, handlers=[handler])

class Buffer(bytearray):
    def __del__(self):
        with lock:
            print("given back")

engine = tent.Engine({"log_level": "debug"})
engine.register(Buffer(4096), name="kv")
with %s:
    engine.close()
print(engine.closed)
"""


@pytest.mark.parametrize(
    "lock", ["engine._hub.lock", "loop._Worker._guard", "engine._tail._lock", "handler.lock", "lock"]
)
def test_a_close_returns_under_a_lock_that_its_thread_holds(lock: str) -> None:
    """A signal handler or a finalizer closes so where it has interrupted the holder; the program does, by a lock of
    its own."""
    done = apart.run(CLOSE_UNDER_A_LOCK % lock)
    assert (done.stdout, done.stderr) == ("given back\nTrue\n", "")


class Woken(threading.Event):
    """Set when tent's thread is about to take a hub's lock."""

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        dispatch = loop.Hub.dispatch

        def told(hub: loop.Hub) -> None:
            if loop.on_thread():
                self.set()
            dispatch(hub)

        monkeypatch.setattr(loop.Hub, "dispatch", told)


def test_a_close_waits_for_no_thread_that_waits_for_its_caller(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler closes so where it has interrupted the holder of the lock. The callback comes behind it."""
    woken, ended = Woken(), threading.Event()
    both = pair(4096)
    monkeypatch.setattr(loop, "_CALLBACKS_SECONDS", 1000)
    woken.watch(monkeypatch)
    with both.near._hub.lock:
        transfer = both.near.write(both.local, both.remote)
        both.theirs.expect(0, both.mine.expected)
        transfer.add_done_callback(lambda _: ended.set())
        assert woken.wait(30)
        both.near.close()
        assert not ended.is_set()
    assert ended.wait(30)


class Dropped:
    """Stands for a transfer that another thread is dropping: its batch was given back."""

    def _settle(self) -> None:
        raise tent.InvalidEntryError("no such batch")


def test_a_transfer_that_is_dropped_beside_a_close_does_not_disturb_it(pair: Callable[..., Pair]) -> None:
    both, dropped = pair(4096), Dropped()
    both.near._live[0] = weakref.ref(dropped)
    transfer = both.near.write(both.local, both.remote)
    both.theirs.expect(0, both.mine.expected)
    assert transfer.wait(10) == tent.TransferStatusEnum.COMPLETED
    both.near.close()
    assert transfer.result() == 4096


@pytest.mark.parametrize("step", ["_wait_all", "_settle_all"])
def test_a_submit_beside_a_close_is_refused(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Its thread has found the engine open. The transfer would be settled before its end, and never have one."""
    both, taken = pair(4096), getattr(closing, step)

    def beside(engine: Any, *arguments: Any) -> None:
        engine._closed = False
        with pytest.raises(tent.EngineClosedError):
            engine.write(both.local, both.remote)
        engine._closed = True
        taken(engine, *arguments)

    monkeypatch.setattr(closing, step, beside)
    both.near.close()


@pytest.mark.parametrize("fault", ["delay=5ms", "op=WRITE blackhole"])
def test_a_transfer_that_comes_back_from_go_beside_a_close_has_its_end(
    engines: Callable[..., tent.Engine], keep: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    near, far = engines(**{"allow_faults": True, "faults": fault, "transports/shm/enable": False}), engines()
    local, memory = keep(near.allocate(8192)), keep(far.allocate(8192, name="kv"))
    local.view[:4096] = b"1" * 4096
    peer = near.open(far.address)
    made = moves.Transfer

    def late(engine: tent.Engine, *arguments: Any) -> tent.Transfer:  # the batch is under way
        engine.close(timeout=10 if "delay" in fault else 0)
        return made(engine, *arguments)

    monkeypatch.setattr(moves, "Transfer", late)
    transfer = near.write_ranges(local, [0, 4096], peer["kv"], [0, 4096], [4096, 4096])
    assert transfer.done() and not transfer.cancel()
    if transfer.state == tent.TransferStatusEnum.COMPLETED:
        assert "delay" in fault and transfer.result() == transfer.total_bytes == 8192
        assert transfer.transports == ("tcp",) and memory.view[:4096] == b"1" * 4096
    else:
        error = transfer.exception()
        assert isinstance(error, tent.TransferCanceledError) and error.failed_tasks == [0, 1]
        assert error.peer == far.address and "CANCELED" in repr(transfer)
    assert tent.wait([transfer], timeout=10) == ({transfer}, set())
    ended = threading.Event()
    transfer.add_done_callback(lambda _: ended.set())
    assert ended.wait(10)


@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_region_that_is_registered_beside_a_close_leaves_the_buffer_to_the_program(
    engine: tent.Engine, keep: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    buffer, register = bytearray(4096), tent.Engine._register

    def beside(self: tent.Engine, into: list[int], *memory: Any) -> None:
        if when == "before":
            self.close()
        register(self, into, *memory)
        self.close()

    monkeypatch.setattr(tent.Engine, "_register", beside)
    if when == "before":
        with pytest.raises(tent.EngineClosedError):
            engine.register(buffer)
    else:
        region = keep(engine.register(buffer))
        region.close()
    buffer.append(1)  # an exported one cannot grow


@pytest.mark.parametrize("step", ["_wait_all", "_cancel_all", "_settle_all"])
def test_a_step_that_fails_keeps_no_engine_open(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    both = pair(4096)

    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(closing, step, fail)
    with pytest.raises(RuntimeError, match="a bug"):
        both.near.close()
    assert both.near.closed and both.local._memory.keeper is None
    with pytest.raises(tent.TentError):
        both.far.open(both.near.address)


def test_a_lease_ends_with_its_engine_and_no_sooner(
    engine: tent.Engine, keep: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers reach it until Go has closed."""
    region = keep(engine.allocate(4096))
    lease = keep(region.share(region[0:64]))
    seen, finish = [], closing._finish

    def beside(*arguments: Any) -> None:
        seen.append((engine.closed, lease.closed))
        finish(*arguments)

    monkeypatch.setattr(closing, "_finish", beside)
    engine.close()
    assert seen == [(True, False)] and lease.closed


@pytest.mark.parametrize("bound", [True, False])
def test_a_watcher_that_comes_beside_a_close_is_called(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, bound: bool
) -> None:
    """Callbacks are bound to tent's thread, awaits are not."""
    both = pair(4096)
    transfer = both.near.write(both.local, both.remote)
    both.theirs.expect(0, both.mine.expected)
    called, cut_off = threading.Event(), closing._cut_off

    def beside(engine: Any) -> None:  # the hub has closed, and Go has not
        engine._hub.watch(transfer._batch, lambda _: called.set(), bound=bound)
        cut_off(engine)

    monkeypatch.setattr(closing, "_cut_off", beside)
    both.near.close()
    assert called.wait(10)


def test_an_await_that_comes_beside_a_close_returns(pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    both = pair(4096)
    transfer = both.near.write(both.local, both.remote)
    both.theirs.expect(0, both.mine.expected)
    cut_off = closing._cut_off

    def beside(engine: Any) -> None:
        asyncio.run(asyncio.wait_for(aio._end(transfer), 10))
        assert not engine._hub.loops, "a loop listens to a descriptor that is about to be closed"
        cut_off(engine)

    monkeypatch.setattr(closing, "_cut_off", beside)
    both.near.close()
    assert transfer.result() == 4096


def test_a_close_between_a_look_at_a_stream_and_the_wait_for_it_ends_the_wait(
    engines: Callable[..., tent.Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, (ours, theirs) = engines(), os.pipe()
    notifications = engine.notifications

    def fileno(_: object) -> int:
        thread = threading.Thread(target=engine.close)
        thread.start()
        thread.join()
        return ours

    monkeypatch.setattr(tent.Notifications, "fileno", fileno)
    try:
        with pytest.raises(tent.EngineClosedError):
            asyncio.run(notifications.get_async(timeout=10))
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("again", [False, True], ids=["free", "another file's"])
def test_a_close_behind_the_number_of_a_stream_is_no_error_of_the_system(
    again: bool, engines: Callable[..., tent.Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines()
    notifications, numbers = engine.notifications, list[int]()
    with (tmp_path / "file").open("wb") as file:  # epoll takes none

        def fileno(_: object) -> int:
            number = notifications._fd
            thread = threading.Thread(target=engine.close)
            thread.start()
            thread.join()
            if again:
                numbers.append(os.dup2(file.fileno(), number))
            return number

        monkeypatch.setattr(tent.Notifications, "fileno", fileno)
        with pytest.raises(tent.EngineClosedError):
            asyncio.run(notifications.get_async(timeout=10))
        for number in numbers:
            os.close(number)


def test_readers_of_notifications_end_with_an_engine_that_is_dropped_unclosed() -> None:
    async def read(notifications: tent.Notifications) -> list[tent.Notification]:
        return [note async for note in notifications]

    async def run() -> list[tent.Notification]:
        engine = tent.Engine()
        notifications = engine.notifications
        task = asyncio.ensure_future(read(notifications))
        while not notifications._sleepers:
            await asyncio.sleep(0)
        with pytest.warns(ResourceWarning, match="without close"):
            del engine
            gc.collect()
        with pytest.raises(tent.EngineClosedError):
            notifications.drain()
        assert "gone" in repr(notifications)
        return await asyncio.wait_for(task, 10)

    assert asyncio.run(run()) == []


@pytest.mark.parametrize(
    ("failing", "error", "raised"),
    [
        ("tent.loop.threading.Thread.start", RuntimeError("can't start new thread"), tent.TooManyRequestsError),
        ("tent.loop.os.eventfd", OSError(errno.EMFILE, "Too many open files"), tent.TooManyRequestsError),
        ("tent.engine.Notifications.__init__", RuntimeError("a defect"), RuntimeError),
    ],
)
def test_an_engine_that_cannot_begin_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, failing: str, error: Exception, raised: type[Exception]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    tent.Engine().close()  # the runtime has opened its own
    gc.collect()
    before, threads = descriptors(), threading.active_count()
    monkeypatch.setattr(failing, fail)
    for _ in range(3):
        with pytest.raises(raised, match=error.args[-1]):
            tent.Engine()
    monkeypatch.undo()
    assert descriptors() <= before and threading.active_count() <= threads  # those of earlier tests may end now
    with tent.Engine() as engine:
        assert engine.metrics()
