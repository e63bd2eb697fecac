"""Streams of items that come by and by: notifications, events. Read them from threads, event loops, or a loop of one's
own over fileno()."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from . import _aio, _native
from ._text import shown
from .errors import EngineClosedError, InvalidArgumentError
from .quantities import integer_of, limit_of

if TYPE_CHECKING:
    from .handle import Handle

T = TypeVar("T")

MANY = 1024  # taken by one call
_MOST = 1 << 30  # items, more than any stream keeps


class Stream(Generic[T]):
    """Items of an engine, in order, behind a file descriptor that is readable while some wait. Any thread, and event
    loops.

    Several readers share a stream: each item goes to one of them.
    """

    __slots__ = ("__weakref__", "_engine", "_fd", "_sleepers", "_what")

    def __init__(self, engine: Handle, fd: int, what: str) -> None:
        """For tent only. `engine` is weak where the engine keeps the stream."""
        self._engine = engine
        self._fd = fd
        self._what = what
        self._sleepers: set[Callable[[], None]] = set()  # event loops to wake when the engine closes

    @abstractmethod
    def _take(self, most: int) -> list[T]:
        """Up to `most` items that have come; never blocks. Any thread."""

    @abstractmethod
    def _wait(self, milliseconds: int) -> None:
        """Returns when some have come, or after so long."""

    def get(self, timeout: float | str | None = None) -> T:
        """The next one; waits for it. The builtin TimeoutError if none comes within `timeout` seconds."""
        return self._next(lambda _: True, timeout)

    def _next(self, fits: Callable[[T], bool], timeout: float | str | None) -> T:
        over = _native.instant(timeout)
        while True:
            if taken := self._take(1):
                if fits(taken[0]):
                    return taken[0]
                continue
            if (left_ms := _native.left_ms(over)) <= 0:
                raise TimeoutError(f"no {self._what} came within {limit_of(timeout)}")
            self._wait(min(_native.WAIT_SLICE_MS, left_ms))

    async def get_async(self, timeout: float | str | None = None) -> T:
        """get() without blocking the event loop."""
        return await _aio.next_item(self, timeout)

    def get_nowait(self) -> T:
        """The next one, if it has come already; else the builtin TimeoutError, which is also a queue.Empty."""
        for item in self._take(1):
            return item
        from ._empty import Empty

        raise Empty(f"no {self._what} has come")

    def drain(self, max: int | None = None) -> list[T]:
        """All that have come, or the first `max`; never blocks."""
        if max is not None:
            if (most := integer_of(max)) is None or most < 0:
                raise InvalidArgumentError(f"max is {shown(max)}: it must be an integer, at least 0, or None for all")
            return self._take(min(most, _MOST))
        everything: list[T] = []
        while taken := self._take(MANY):
            everything += taken
        return everything

    def fileno(self) -> int:
        """A file descriptor that is readable while some wait; for select and epoll, not for reading."""
        self._engine._check_open()
        return self._fd

    def __iter__(self) -> Iterator[T]:
        """One after the other, waiting for each, until the engine is closed."""
        while True:
            try:
                item = self.get()
            except EngineClosedError:
                return
            yield item

    async def __aiter__(self) -> AsyncIterator[T]:
        while True:
            try:
                item = await _aio.next_item(self)
            except EngineClosedError:
                return
            yield item

    def _wake_all(self) -> None:
        """For the engine's close: event loops that wait look again, and find it closed."""
        for wake in list(self._sleepers):
            wake()

    def _dropped(self) -> None:
        """For an engine that is garbage collected unclosed."""
        self._wake_all()
