"""Notifications: small messages that arrive after the data they speak of."""

from __future__ import annotations

import struct
import threading
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

from . import _native
from .errors import EngineClosedError
from .records import Notification

if TYPE_CHECKING:
    from .engine import Engine

_HEADER = struct.Struct("=IHHII")  # record bytes, name bytes, peer bytes, message bytes, 0
_BUFFER = 128 << 10  # room for the largest single notification
_MANY = 1024  # taken by one call


class Notifications:
    """What peers have sent to this engine, each exactly once, in order per sender. Any thread, and event loops.

    Several readers share the stream: each notification goes to one of them.
    """

    def __init__(self, engine: Engine, fd: int) -> None:
        """For tent only."""
        self._buffer = array("B", bytes(_BUFFER))
        self._engine = engine
        self._fd = fd
        self._lock = threading.Lock()  # one call at a time fills the buffer and is read out
        self._sleepers: set[Callable[[], None]] = set()  # event loops to wake when the engine closes

    def get(self, timeout: float | None = None) -> Notification:
        """The next one; waits for it. The builtin TimeoutError if none comes within `timeout` seconds."""
        over = None if timeout is None else time.monotonic() + _native.milliseconds(timeout) / 1000
        while True:
            taken = self._take(1)
            if taken:
                return taken[0]
            slice_ms = _native.WAIT_SLICE_MS
            if over is not None:
                left_ms = -int((time.monotonic() - over) * 1000 // 1)
                if left_ms <= 0:
                    raise TimeoutError(f"no notification came within {timeout} s")
                slice_ms = min(slice_ms, left_ms)
            self._engine._call("pybind_NoteWait", slice_ms)

    async def get_async(self, timeout: float | None = None) -> Notification:
        """get() without blocking the event loop."""
        from . import aio

        return await aio.next_note(self, timeout)

    def drain(self, max: int | None = None) -> list[Notification]:
        """All that have come, or the first `max`; never blocks."""
        if max is not None:
            return self._take(max)
        everything: list[Notification] = []
        while taken := self._take(_MANY):
            everything += taken
        return everything

    def fileno(self) -> int:
        """A file descriptor that is readable while some wait; for select and epoll, not for reading."""
        self._engine._check_open()
        return self._fd

    def __iter__(self) -> Iterator[Notification]:
        """One after the other, waiting for each, until the engine is closed."""
        while True:
            try:
                note = self.get()
            except EngineClosedError:
                return
            yield note

    async def __aiter__(self) -> AsyncIterator[Notification]:
        from . import aio

        while True:
            try:
                note = await aio.next_note(self)
            except EngineClosedError:
                return
            yield note

    def _take(self, most: int) -> list[Notification]:
        taken: list[Notification] = []
        with self._lock:
            while len(taken) < most:
                address, size = self._buffer.buffer_info()
                want = min(most - len(taken), _MANY)
                n = self._engine._call("pybind_NoteTake", address, size, want)
                if n < 0:  # the first one does not fit
                    self._buffer = array("B", bytes(-n))
                    continue
                self._unpack(n, taken)
                if n < want:
                    break
        return taken

    def _unpack(self, n: int, into: list[Notification]) -> None:
        view, at = memoryview(self._buffer), 0
        for _ in range(n):
            size, name_bytes, peer_bytes, message_bytes, _ = _HEADER.unpack_from(view, at)
            name = at + _HEADER.size
            peer = name + name_bytes
            message = peer + peer_bytes
            into.append(
                Notification(
                    bytes(view[name:peer]).decode("utf-8", "surrogateescape"),
                    bytes(view[message : message + message_bytes]),
                    bytes(view[peer:message]).decode("utf-8", "replace"),
                )
            )
            at += size

    def _wake_all(self) -> None:
        """For the engine's close: event loops that wait look again, and find it closed."""
        for wake in list(self._sleepers):
            wake()

    def __repr__(self) -> str:
        return f"<Notifications of {self._engine!r}>"

    def __reduce__(self) -> str:
        raise TypeError("Notifications cannot be pickled; they belong to their engine")


