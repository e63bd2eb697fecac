"""tent's one Python thread, and the hub through which ends of transfers reach waiters that do not poll.

The engine pushes the id of each watched batch that ends on a ring and makes an eventfd readable; nothing in Go ever
calls Python. The reader of that eventfd drains the ring and hands the ends out: an event loop that awaits (see aio), or
tent's thread, which also runs callbacks and hands log records to `logging`. While only awaits are open the thread does
not listen, so an await costs no thread switch.

The thread runs from the first Engine to the close of the last one.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from array import array
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from . import _native
from .errors import TentError, TooManyRequestsError

if TYPE_CHECKING:
    from ._gotent import Library

Watcher = Callable[[int], object]
W = TypeVar("W")

logger = logging.getLogger("tent")

_DRAIN = 256  # ends taken off the ring by one call
_LOGS = 256  # log records taken by one call
_LOG_CALLS = 8  # in a row: all that the engine keeps, and more, before other hubs have their turn
_CALLBACKS_SECONDS = 5  # of a close, for the callbacks that are queued
_HELD_SECONDS = 0.2  # for a thread that may be waiting for a lock of the caller


class Hub:
    """The ends and log records of one engine. Any thread may use it.

    `lock` guards the tables; it is reentrant because a garbage collection inside a guarded section may drop a
    Transfer, which watches its own batch. No watcher is ever called under it.
    """

    def __init__(self, library: Library, engine: int, event_fd: int) -> None:
        self.fd = event_fd
        self.loops: dict[Any, int] = {}  # event loop -> its duplicate of fd; kept by aio, as is the way out of them:
        self.leave_loops: Callable[[], None] | None = None
        self._library = library
        self._engine = engine
        self.lock = threading.RLock()
        self._watchers: dict[int, list[tuple[Watcher, bool]]] = {}
        self._awaits = 0
        self._bound = 0  # watchers that must run on tent's thread
        self._ids = array("Q", bytes(8 * _DRAIN))
        self._listening = True
        self._worker: _Worker | None = _Worker.attach(self)

    @property
    def closed(self) -> bool:
        """Whether close() has handed out the last ends. Under `lock` it stays as it is."""
        return self._library is _native.CLOSED

    def cut_off(self) -> None:
        """In a forked child, where nobody may be left to give the lock back. The thread's epoll is the parent's too."""
        self._library = _native.FORKED
        self.lock = threading.RLock()
        self._worker = None

    def held_here(self) -> bool:
        """Whether the caller, a signal handler or a finalizer, has interrupted the holder of a lock that tent's thread
        takes: of a hub, of the thread itself, or of a handler of `logging`."""
        locks: list[Any] = [self.lock, _Worker._guard]
        handing: logging.Logger | None = logger
        while handing is not None:
            locks += [handler.lock for handler in handing.handlers]
            handing = handing.parent
        return any(getattr(lock, "_is_owned", bool)() for lock in locks)  # as threading.Condition asks it

    def watch(self, batch: int, watcher: Watcher, *, bound: bool = True) -> None:
        """Calls watcher(batch) once when the batch has ended, also if it has already; at once if the hub has closed.

        The call comes on tent's thread if `bound`, else on the thread that hears of the end first.
        """
        with self.lock:
            watchers = self._watchers.setdefault(batch, [])
            watchers.append((watcher, bound))
            self._bound += bound
            self._awaits += not bound
            self._listen()
            if len(watchers) > 1:
                return
        try:
            _native.call(self._library.pybind_Watch, self._engine, batch)
        except TentError:  # the engine has closed, or the batch is gone: it has ended in any case
            self._ended(batch)

    def unwatch(self, batch: int, which: Callable[[Watcher], bool]) -> int:
        """Forgets the watchers of a batch that `which` chooses and that have not been called; returns their number."""
        return len(self._taken_out(batch, which))

    def leave(self, batch: int, kind: type[W]) -> list[W]:
        """Leaves the watchers of a kind to the caller. The batch has ended, so the caller calls them."""
        return self._taken_out(batch, lambda watcher: isinstance(watcher, kind))

    def _taken_out(self, batch: int, which: Callable[[Watcher], bool]) -> list[Any]:
        with self.lock:
            watchers = self._watchers.get(batch, [])
            going = [entry for entry in watchers if which(entry[0])]
            for entry in going:
                watchers.remove(entry)
                self._bound -= entry[1]
                self._awaits -= not entry[1]
            self._listen()
        return [watcher for watcher, _ in going]

    def catch_up(self) -> None:
        """Returns when tent's thread has run all that was queued, or soon where it may be waiting for the caller."""
        if not in_a_close() and not self.held_here():
            ran = threading.Event()
            run_soon(ran.set)
            ran.wait(_HELD_SECONDS)

    def dispatch(self) -> None:
        """Hands out the ends on the ring. A thread that finds the eventfd readable calls it; it never blocks."""
        address = self._ids.buffer_info()[0]
        while True:
            with self.lock:  # the array is shared by all dispatchers
                try:
                    n = self._library.pybind_Drain(self._engine, address, _DRAIN)
                except (RuntimeError, TentError):
                    return  # the engine has closed
                ended = self._ids[:n].tolist()
            for batch in ended:
                self._ended(batch)
            if n < _DRAIN:
                break
        for _ in range(_LOG_CALLS):
            if not self._hand_over_logs():
                return
        with self.lock:  # open until close() has it
            if not self.closed:
                os.eventfd_write(self.fd, 1)  # more wait, and the engine has announced them already

    def _ended(self, batch: int) -> None:
        with self.lock:
            watchers = self._watchers.pop(batch, [])
            for _, bound in watchers:
                self._bound -= bound
                self._awaits -= not bound
            self._listen()
        for watcher, bound in watchers:
            if _native.forked():  # the one before has: the others are the parent's
                return
            if bound:
                run_soon(watcher, batch)
            else:
                watcher(batch)

    def _listen(self) -> None:
        """Lets tent's thread listen unless awaits alone are open. Under lock."""
        wanted = self._bound > 0 or self._awaits == 0
        if wanted != self._listening and self._worker is not None:
            self._listening = wanted
            self._worker.listen(self, wanted)

    def _hand_over_logs(self) -> bool:
        """Whether more may wait."""
        try:
            text = self._library.pybind_Logs(self._engine, _LOGS)
        except (RuntimeError, TentError):
            return False
        if len(text) < 5:  # "[]" or "null"
            return False
        import json

        records = json.loads(text)
        for record in records:
            attributes = record.get("attrs") or {}
            shown = " ".join(f"{name}={value}" for name, value in attributes.items())
            level = logging.getLevelName(str(record["level"]).upper())
            logger.log(
                level if isinstance(level, int) else logging.INFO,
                "%s%s%s",
                record["message"],
                " " if shown else "",
                shown,
                extra={"tent": attributes},
            )
        return len(records) == _LOGS

    def close(self) -> None:
        """Hands out the last ends and leaves the thread. The engine's eventfd may be closed afterwards."""
        _guarded(self.dispatch)  # a handler of `logging` may raise
        with self.lock:
            left, self._library = list(self._watchers), _native.CLOSED  # nobody drains the ring from now on
            worker, self._worker = self._worker, None
        for batch in left:
            self._ended(batch)
        if self.leave_loops is not None:
            self.leave_loops()
        if worker is not None:
            worker.detach(self)


class _Worker:
    """The thread. Its life is bound to the hubs that are attached.

    `_guard` guards its life: its holder may write to `_wake` of the current worker. It is reentrant for the reason of
    Hub's. The thread closes the two descriptors at its end under the guard, when it is not the current worker any more.
    """

    _current: _Worker | None = None
    _guard = threading.RLock()

    def __init__(self) -> None:
        self.jobs: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._hubs: dict[int, Hub] = {}
        self._stopping = False
        self.thread = threading.Thread(target=self._run, name="tent", daemon=True)
        self._epoll, self._wake = select.epoll(), -1
        try:
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._epoll.register(self._wake, select.EPOLLIN)
            self.thread.start()
        except (OSError, RuntimeError):  # this process may have no more descriptors or threads
            self._epoll.close()
            if self._wake >= 0:
                os.close(self._wake)
            raise

    @classmethod
    def attach(cls, hub: Hub) -> _Worker:
        """The running thread, started if need be, listening for hub."""
        with cls._guard:
            if cls._current is None:
                try:
                    cls._current = cls()
                except (OSError, RuntimeError) as error:
                    cure = "raise ulimit -n, ulimit -u, or pids.max of the cgroup"
                    raise TooManyRequestsError(f"tent's thread cannot start: {error}", hint=cure) from error
            worker = cls._current
            worker._hubs[hub.fd] = hub
            worker._epoll.register(hub.fd, select.EPOLLIN)
            return worker

    def detach(self, hub: Hub) -> None:
        """Stops listening for hub, and waits for its callbacks, which are queued. The last one to leave ends the
        thread. Where that may be waiting for the caller, its callbacks come when the caller lets it go."""
        here = threading.current_thread() is self.thread
        ran = threading.Event()
        with self._guard:
            self.listen(hub, False)
            self._hubs.pop(hub.fd, None)
            self.jobs.append((ran.set, ()))  # before the thread may end: it may be awake for something else
            if last := not self._hubs:
                _Worker._current = None
                self._stopping = True
            self.wake()
        if here:
            return
        held = hub.held_here()
        if not ran.wait(_HELD_SECONDS if held else _CALLBACKS_SECONDS):
            if not held:
                logger.warning("a callback of tent still runs %d s after the close of its engine", _CALLBACKS_SECONDS)
        elif last and not self._guard._is_owned():  # type: ignore[attr-defined]
            self.thread.join()  # its end takes the guard, which a signal handler or a finalizer may have interrupted

    def listen(self, hub: Hub, wanted: bool) -> None:
        try:
            if wanted:
                self._epoll.register(hub.fd, select.EPOLLIN)
            else:
                self._epoll.unregister(hub.fd)
        except (FileExistsError, FileNotFoundError):
            pass  # it is as wanted

    def wake(self) -> None:
        """Makes the thread look at its jobs. Under _guard, for the current worker."""
        os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        self._serve()
        with _Worker._guard:  # held until it was woken for its end
            self._epoll.close()
            os.close(self._wake)

    def _serve(self) -> None:
        while True:
            for fd, _ in self._epoll.poll():
                if fd == self._wake:
                    os.eventfd_read(fd)
                elif hub := self._hubs.get(fd):
                    _guarded(hub.dispatch)
            while self.jobs and not _native.forked():
                function, arguments = self.jobs.popleft()
                _guarded(function, *arguments)
                del function, arguments  # or the last job would keep its transfer until the next one
            if _native.forked():  # a callback has: the jobs are the parent's
                return
            if self._stopping and not self.jobs:
                return


def run_soon(function: Callable[..., object], *arguments: Any) -> None:
    """Runs function on tent's thread, in order. Without a thread (no engine is open any more), on this one, at once."""
    with _Worker._guard:
        worker = _Worker._current
        if worker is not None and worker.thread is not threading.current_thread() and not sys.is_finalizing():
            worker.jobs.append((function, arguments))
            worker.wake()
            return
    _guarded(function, *arguments)


def on_thread() -> bool:
    """Whether the caller runs on tent's thread."""
    worker = _Worker._current
    return worker is not None and worker.thread is threading.current_thread()


def in_a_close() -> bool:
    """Whether a close may be waiting for the caller: it runs on tent's thread, or on one that closes an engine."""
    return on_thread() or _native.sheltered()


def _forget() -> None:
    """In a forked child: the thread is not there."""
    _Worker._current = None
    _Worker._guard = threading.RLock()


os.register_at_fork(after_in_child=_forget)


def _guarded(function: Callable[..., object], *arguments: Any) -> None:
    try:
        function(*arguments)
    except BaseException as error:
        logger.error("exception in a callback of tent: %r", error, exc_info=True)
