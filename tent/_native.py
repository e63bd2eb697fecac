"""The border to the Go engine: when it is loaded, in which processes it may be called, and how its failures become
exceptions.

The extension is loaded by the first Engine, never by `import tent`: a Go runtime does not survive os.fork(), so a
process that forks before its first Engine must find nothing loaded. After a fork every entry of the child answers
ForkError; no call into Go happens there, not even in `__del__` or at exit.

The child has the forking thread alone. A lock that another thread held, and the import of a module that it had begun,
stay as they are for ever there. So each lock that a call of the child may take is `renewed`, waits for another thread
are of slices, and a call asks check_process() before it imports something.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Protocol, TypeVar, cast

from .errors import EngineClosedError, ForkError, InternalError, translate
from .quantities import seconds_of

if TYPE_CHECKING:
    from ._gotent import Library

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L")

WAIT_SLICE_MS = 50  # the longest stay in Go while a Ctrl-C may be waiting
LOOKS_PER_CRANK = 128  # polls of the shared page between two entries into the engine, which cost some 2 us

_library: Library | None = None
_lock = threading.Lock()
_forked = False


class Survivor(Protocol):
    """A thing that must be cut off from Go in a forked child."""

    def _cut_off(self) -> None:
        """Runs in the child, before anything else does."""


_survivors: weakref.WeakSet[Survivor] = weakref.WeakSet()
_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def renewed(lock: L) -> L:
    """Returns a reentrant lock that is free in a forked child, unless the thread that forked holds it."""
    _locks.add(lock)  # an RLock, or a Condition of one: the others do not know their holder
    return lock


class Gone:
    """Stands where the native module was, once it may not be called any more: each use raises the reason."""

    def __init__(self, reason: Callable[[], Exception]) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> NoReturn:
        raise self._reason()


def fork_error() -> ForkError:
    """The answer to every call in a forked child of a process that had an Engine."""
    return ForkError(
        "the Go engine does not survive os.fork()",
        hint='use the "spawn" start method, or create the first Engine in the child',
    )


def closed_error() -> EngineClosedError:
    """The answer to every call on a closed engine."""
    return EngineClosedError("the engine is closed")


FORKED = cast("Library", Gone(fork_error))
CLOSED = cast("Library", Gone(closed_error))


def forked() -> bool:
    """Whether this process is a forked child of one that had loaded the engine."""
    return _forked


def check_process() -> None:
    """Raises ForkError in a forked child of a process that had loaded the engine."""
    if _forked:
        raise fork_error()


def finalizer(method: Callable[P, None]) -> Callable[P, None]:
    """Makes a method one that garbage collection may call: it does nothing in a forked child, and while the interpreter
    ends. At the end the globals of modules are None, so this keeps its question."""
    ending = sys.is_finalizing

    @functools.wraps(method)
    def run(*given: P.args, **named: P.kwargs) -> None:
        if not ending() and not _forked:
            method(*given, **named)

    return run


def load() -> Library:
    """Returns the native module, which the first call loads. Raises ForkError in a forked child."""
    global _library
    check_process()
    if _library is None:
        with _lock:
            if _library is None:
                try:
                    from . import _gotent
                except ImportError as error:
                    raise InternalError(
                        f"the native module tent._gotent cannot be loaded: {error}",
                        hint="install the package (pip install .), or build it in place (make)",
                    ) from error
                _library = _gotent
    return _library


def environment() -> str:
    """The variables of tent as the program has them now, in JSON: Go knows those of the program's start alone. Their
    values are in base64, since a path need not be UTF-8."""
    import base64
    import json

    from ._variables import VARIABLES

    # By their names: another thread may change the environment, which no reader of it all survives.
    found = {name: os.environb.get(name.encode()) for name in VARIABLES}
    return json.dumps({name: base64.b64encode(value).decode() for name, value in found.items() if value is not None})


def cut_off_in_child(thing: Survivor) -> None:
    """Calls `thing._cut_off()` in every forked child. `thing` is kept weakly."""
    _survivors.add(thing)


def _after_fork() -> None:
    global _forked, _lock
    _forked = _forked or _library is not None or _lock.locked()  # by a thread that has perhaps begun to load it
    _lock = threading.Lock()
    for lock in list(_locks):
        if not lock._is_owned():  # one that the forking thread has is given back when its block ends
            lock._at_fork_reinit()
    for thing in list(_survivors):
        thing._cut_off()
    _survivors.clear()  # a child of the child finds them cut off


os.register_at_fork(after_in_child=_after_fork)  # here: a thread may fork while another one loads the module


def call(function: Callable[P, R], *arguments: P.args, **none: P.kwargs) -> R:
    """One call into Go that returns soon; raises tent's exceptions."""
    try:
        return function(*arguments, **none)
    except RuntimeError as error:
        raise translate(error) from None


class _End:
    """The end of a call that another thread makes. No wait for it goes on in a forked child, where nobody makes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def come(self) -> None:
        """It is there."""
        self._lock.release()

    def wait(self) -> bool:
        """Waits for a slice of time, and returns whether it is there. A signal just before does not shorten that."""
        came = self._lock.acquire(timeout=WAIT_SLICE_MS / 1000)
        check_process()  # a signal handler may have forked
        return came


def call_long(function: Callable[P, R], *arguments: P.args, **none: P.kwargs) -> R:
    """Makes a call into Go that may take seconds, such that Ctrl-C works.

    Signals wait until Go returns, so the main thread lets another thread make the call and waits for that one. After a
    KeyboardInterrupt the call goes on by itself.
    """
    if threading.current_thread() is not threading.main_thread():
        return call(function, *arguments, **none)
    values: list[R] = []
    errors: list[BaseException] = []
    end = _End()

    def run() -> None:
        try:
            values.append(call(function, *arguments, **none))
        except BaseException as error:
            errors.append(error)
        finally:
            end.come()

    try:
        threading.Thread(target=run, name="tent-call", daemon=True).start()
    except RuntimeError:  # the interpreter is ending and starts no thread any more
        return call(function, *arguments, **none)
    while not end.wait():
        pass
    if errors:
        raise errors[0]
    return values[0]


@contextmanager
def result_of(function: Callable[[], R], undo: Callable[[R], object]) -> Iterator[R]:
    """call_long() with a result that somebody has to have. If a signal handler raises before the block has ended, or
    the block fails, `undo` gets the result: here if it is there, else on the thread that makes the call."""
    made: list[R] = []
    left: list[bool] = []

    def give_back() -> None:
        try:
            result = made.pop()
        except IndexError:  # it is not there yet, or the other thread gives it back
            return
        if not _forked:  # it is the parent's
            undo(result)

    def run() -> None:
        made.append(function())
        if left:
            give_back()

    try:
        call_long(run)
        yield made[0]
    except BaseException:
        left.append(True)
        give_back()
        raise


class _Shelter(threading.Thread):
    """A thread of call_to_end()."""


def sheltered() -> bool:
    """Whether the caller runs inside call_to_end(), on a thread of its own."""
    return isinstance(threading.current_thread(), _Shelter)


def call_to_end(function: Callable[[], object], hurry: Callable[[], object]) -> None:
    """Calls a function that must run to its end, on a thread where no signal handler of the program interrupts it.

    When a handler raises meanwhile, `hurry` is called. The first error, of a handler or of the function, comes after
    the end.
    """
    if threading.current_thread() is not threading.main_thread():
        function()  # handlers run on the main thread only
        return
    errors: list[BaseException] = []
    ended: list[bool] = []
    turn = threading.Lock()
    end = _End()

    def run() -> None:
        if not turn.acquire(blocking=False):
            return
        try:
            function()
        except BaseException as error:
            errors.append(error)
        finally:
            ended.append(True)
            end.come()

    while not _forked:  # by a signal handler
        try:
            if errors:
                hurry()
            if ended:
                break
            if not turn.locked():
                try:
                    _Shelter(target=run, name="tent-call", daemon=True).start()
                except (RuntimeError, MemoryError):  # the interpreter is ending and starts no thread any more
                    run()
            end.wait()
        except BaseException as error:  # also of a handler that has interrupted the start of the thread: another one
            errors.append(error)
    check_process()
    if errors:
        raise errors[0]


def milliseconds(timeout: float | str | None, otherwise: int = 1 << 40, name: str = "timeout") -> int:
    """A time-out as whole milliseconds, rounded up; None is `otherwise`. An error calls the argument by `name`."""
    if timeout is None:
        return otherwise
    timeout = seconds_of(timeout, name, none=", or None for no limit")
    return min(-int(-timeout * 1000 // 1), otherwise)


def instant(timeout: float | str | None) -> float:
    """The instant on time.monotonic()'s clock that is `timeout` away; None is decades away."""
    return time.monotonic() + milliseconds(timeout) / 1000


def left_ms(over: float) -> int:
    """The whole milliseconds until an instant, rounded up: none, or fewer, once it has come."""
    return -int((time.monotonic() - over) * 1000 // 1)
