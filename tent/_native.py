"""The border to the Go engine: when it is loaded, who may call it, and how its failures become exceptions.

The extension is loaded by the first Engine, never by `import tent`: a Go runtime does not survive os.fork(), so a
process that forks before its first Engine must find nothing loaded. After a fork every entry of the child answers
ForkError; no call into Go happens there, not even in `__del__` or at exit.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

from .errors import EngineClosedError, ForkError, InternalError, translate

WAIT_SLICE_MS = 50  # the longest stay in Go while a Ctrl-C may be waiting
LOOKS_PER_CRANK = 128  # polls of the shared page between two entries into the engine, which cost some 2 us

_library: Any = None
_lock = threading.Lock()
_forked = False
_survivors: weakref.WeakSet[Any] = weakref.WeakSet()  # whatever must be cut off in a forked child


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


FORKED = Gone(fork_error)
CLOSED = Gone(closed_error)


def forked() -> bool:
    """Whether this process is a forked child of one that had loaded the engine."""
    return _forked


def load() -> Any:
    """The native module; loads it at the first call. Raises ForkError in a forked child."""
    global _library
    if _forked:
        raise fork_error()
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
                os.register_at_fork(after_in_child=_after_fork)
                _library = _gotent
    return _library


def cut_off_in_child(thing: Any) -> None:
    """Calls `thing.forked()` in every forked child. `thing` is kept weakly."""
    _survivors.add(thing)


def _after_fork() -> None:
    global _forked, _lock
    _forked = True
    _lock = threading.Lock()  # its owner may not exist here
    for thing in list(_survivors):
        thing.forked()


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """One call into Go that returns soon; raises tent's exceptions."""
    try:
        return function(*arguments)
    except RuntimeError as error:
        raise translate(error) from None


def call_long(function: Callable[..., Any], *arguments: Any) -> Any:
    """A call into Go that may take seconds, such that Ctrl-C works: signals wait until Go returns, so the main thread
    lets another thread make the call and waits for that one. After a KeyboardInterrupt the call goes on by itself."""
    if threading.current_thread() is not threading.main_thread():
        return call(function, *arguments)
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((call(function, *arguments), None))
        except BaseException as error:
            outcome.append((None, error))

    worker = threading.Thread(target=run, name="tent-call", daemon=True)
    try:
        worker.start()
    except RuntimeError:  # the interpreter is ending and starts no thread any more
        return call(function, *arguments)
    worker.join()
    value, error = outcome[0]
    if error is not None:
        raise error
    return value


def milliseconds(timeout: float | None, otherwise: int = 1 << 40) -> int:
    """A time-out in seconds as whole milliseconds, rounded up; None is `otherwise`."""
    if timeout is None:
        return otherwise
    if not timeout >= 0:  # NaN too
        from .errors import InvalidArgumentError

        raise InvalidArgumentError(f"timeout is {timeout!r}: it must be a number of seconds, at least 0, or None")
    return min(-int(-timeout * 1000 // 1), otherwise)


def words_at(address: int, n: int) -> memoryview:
    """A view of n 64-bit words at an address that the engine owns; it must be released before they are unmapped."""
    return bytes_at(address, 8 * n).cast("Q")


def bytes_at(address: int, n: int) -> memoryview:
    """A writable view of n bytes at an address; nothing is kept alive by it."""
    return memoryview((ctypes.c_char * n).from_address(address)).cast("B")
