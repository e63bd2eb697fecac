"""Notifications: small messages that arrive after the data they speak of."""

from __future__ import annotations

import struct
from array import array
from collections import deque
from typing import TYPE_CHECKING, cast

from . import _native
from .errors import EngineClosedError
from .records import Notification
from .stream import MANY, Stream

if TYPE_CHECKING:
    from .handle import Handle

_HEADER = struct.Struct("=IHHII")  # record bytes, name bytes, peer bytes, message bytes, 0
_BUFFER = 128 << 10  # room for the largest single notification
_SPARE = 2  # buffers that are kept


class Notifications(Stream[Notification]):
    """The notifications that peers have sent, each exactly once, in order per sender. Any thread, and event loops.

    Several readers share the stream: each notification goes to one of them.

    Example:
        for name in ("first", "second", "third"):
            other.notify(other.open(engine.address), name, "pages 1 to 9").result(timeout=10)
        note = engine.notifications.get(timeout=10)
        assert (note.name, note.message, note.data) == ("first", "pages 1 to 9", b"pages 1 to 9")
        assert (await engine.notifications.get_async(timeout=10)).msg == note.message
        assert [note.name for note in engine.notifications.drain()] == ["third"]
        other.notify(other.open(engine.address), "fourth").result(timeout=10)
        assert engine.notifications.get_nowait().name == "fourth"  # queue.Empty if none has come
        print(engine.notifications.fileno())  # for select and epoll
    """

    __slots__ = ("_spare",)

    def __init__(self, engine: Handle, fd: int) -> None:
        """For tent only."""
        super().__init__(engine, fd, "notification")
        engine._streams.add(self)
        self._spare: deque[array[int]] = deque(maxlen=_SPARE)  # buffers; a call has one for itself

    def _dropped(self) -> None:
        self._engine = cast("Handle", _native.CLOSED)  # it was weak: from now on readers find a closed engine
        super()._dropped()

    def _wait(self, milliseconds: int) -> None:
        self._engine._call(self._engine._library.pybind_NoteWait, milliseconds)

    def _take(self, most: int) -> list[Notification]:
        taken: list[Notification] = []
        try:
            buffer = self._spare.pop()
        except IndexError:  # another thread has it, or a signal handler has interrupted the one that has
            buffer = array("B", bytes(_BUFFER))
        while len(taken) < most:
            address, size = buffer.buffer_info()
            want = min(most - len(taken), MANY)
            n = self._engine._call(self._engine._library.pybind_NoteTake, address, size, want)
            if n < 0:  # the first one does not fit
                buffer = array("B", bytes(-n))
                continue
            self._unpack(buffer, n, taken)
            if n < want:
                break
        self._spare.append(buffer)
        return taken

    @staticmethod
    def _unpack(buffer: array[int], n: int, into: list[Notification]) -> None:
        view, at = memoryview(buffer), 0
        for _ in range(n):
            size, name_bytes, peer_bytes, message_bytes, trace_bytes = _HEADER.unpack_from(view, at)
            name = at + _HEADER.size
            peer = name + name_bytes
            message = peer + peer_bytes
            trace = message + message_bytes
            into.append(
                Notification(
                    bytes(view[name:peer]).decode("utf-8", "surrogateescape"),
                    bytes(view[message:trace]),
                    bytes(view[peer:message]).decode("utf-8", "replace"),
                    bytes(view[trace : trace + trace_bytes]).decode("utf-8", "surrogateescape"),
                )
            )
            at += size

    def __repr__(self) -> str:
        try:
            return f"<Notifications of {self._engine.name!r} at {self._engine.address}>"
        except (ReferenceError, EngineClosedError):
            return "<Notifications of an engine that is gone>"

    def __reduce__(self) -> str:
        raise TypeError("Notifications cannot be pickled; they belong to their engine")
