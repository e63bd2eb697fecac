"""Notifications of NIXL over those of tent: keyed by the agent's name, and up to 16 MiB instead of 64 KiB.

A message that fits goes as it is, with the agent's name as the notification's. A longer one is split; each part's name
has, behind the agent's, the number of the message, the part's index and the number of parts. The receiver joins them.
The part with the highest index goes last, with the transfer, so a message is whole only after the data is there.
"""

from __future__ import annotations

import itertools
import logging
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ... import _native
from ..._text import shown
from ...moving import MESSAGE_MAX
from .errors import nixlInvalidParamError
from .seldom import Seldom

if TYPE_CHECKING:
    from ...records import Notification

logger = logging.getLogger("tent.compat.nixl")

LONGEST = 16 << 20  # bytes of a message
NAME_MAX = 128  # bytes of an agent's name

_JOINED_MOST = 16 * LONGEST  # bytes of one agent's messages that may be incomplete at a time
_ALL_MOST = 2 * _JOINED_MOST  # and of all agents': a peer may take many names
_PART_COST = 1024  # bytes that a part counts beside its own, so that empty ones are bounded too
_AGENTS_MOST = 1024  # with incomplete messages
_TAIL = struct.Struct("=QII")  # message, part, parts
_MARK = b"\0"

Part = tuple[bytes, bytes]  # name and data of a notification
Sender = tuple[str, str]  # an agent, and the address of its peer

_numbers = itertools.count(1)


def encoded(message: bytes | str | memoryview) -> bytes:
    """A message as bytes; text is UTF-8."""
    return message.encode() if isinstance(message, str) else bytes(memoryview(message))  # bytes(5) are five zeros


def checked_name(name: str) -> str:
    """Returns an agent's name, and refuses one that does not fit into a notification's name or would cut it short."""
    if not isinstance(name, str):
        raise TypeError(f"an agent's name is a str, not {type(name).__name__}")
    try:
        data = name.encode()
    except UnicodeEncodeError:
        data = _MARK
    if not 1 <= len(data) <= NAME_MAX or _MARK in data:
        raise nixlInvalidParamError(
            f"the agent's name is {shown(name)}: 1 to {NAME_MAX} bytes of UTF-8 without a zero byte are needed"
        )
    return name


def parts(agent: str, message: bytes) -> list[Part]:
    """The notifications that carry a message, in the order in which they must be sent."""
    name = agent.encode()
    if len(message) <= MESSAGE_MAX:
        return [(name, message)]
    if len(message) > LONGEST:
        raise nixlInvalidParamError(f"a notification has {len(message)} bytes: at most {LONGEST} are allowed")
    n, number = -(-len(message) // MESSAGE_MAX), next(_numbers)
    return [
        (name + _MARK + _TAIL.pack(number, i, n), message[i * MESSAGE_MAX : (i + 1) * MESSAGE_MAX]) for i in range(n)
    ]


class _Incomplete:
    """The messages of one sender of which parts are missing, the oldest first."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.bytes = 0  # that their parts count
        self.messages: OrderedDict[int, tuple[int, dict[int, bytes]]] = OrderedDict()  # by number

    def put(self, number: int, part: int, data: bytes) -> None:
        """Adds a part, or puts it into the place of the same one."""
        found = self.messages[number][1]
        self.bytes += len(data) + _PART_COST
        if part in found:
            self.bytes -= len(found[part]) + _PART_COST
        found[part] = data

    def pop(self, number: int) -> dict[int, bytes]:
        """Takes a message out, and returns its parts."""
        _, found = self.messages.pop(number)
        self.bytes -= sum(len(data) + _PART_COST for data in found.values())
        return found


class Joiner:
    """Puts parts together again. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = _native.renewed(threading.RLock())
        self._open: OrderedDict[Sender, _Incomplete] = OrderedDict()
        self._bytes = 0  # of all of them
        self._dropped = Seldom(logger, logging.ERROR)

    def take(self, notes: Iterable[Notification]) -> dict[str, list[bytes]]:
        """The messages that are whole now, by the name of their agent."""
        whole: dict[str, list[bytes]] = {}
        with self._lock:
            for note in notes:
                name, mark, tail = note.name.encode("utf-8", "surrogateescape").partition(_MARK)
                agent = name.decode("utf-8", "replace")
                message = self._join(agent, note.peer, tail, note.data) if mark else note.data
                if message is not None:
                    whole.setdefault(agent, []).append(message)
        return whole

    def _join(self, agent: str, peer: str, tail: bytes, data: bytes) -> bytes | None:
        if len(tail) != _TAIL.size:
            self._dropped("a notification of %s at %s is no part of a message: it is dropped", agent, peer)
            return None
        number, part, n = _TAIL.unpack(tail)
        if not part < n <= LONGEST // MESSAGE_MAX:
            self._dropped("part %d of %d of a notification of %s at %s is dropped", part, n, agent, peer)
            return None
        sender = agent, peer
        begun = self._open.setdefault(sender, _Incomplete())
        whole, found = begun.messages.setdefault(number, (n, {}))
        if whole != n:
            self._dropped(
                "part %d of %d of a notification of %s at %s is dropped: it has %d", part, n, agent, peer, whole
            )
            return None
        before = begun.bytes
        begun.put(number, part, data)
        self._bytes += begun.bytes - before
        if len(found) == n:
            self._pop(sender, number)
            return b"".join(found[i] for i in range(n))
        while begun.bytes > _JOINED_MOST:
            self._drop(sender)
        while self._bytes > _ALL_MOST:
            self._drop(max(self._open, key=lambda sender: self._open[sender].bytes))
        if len(self._open) > _AGENTS_MOST:
            self._bytes -= self._open.popitem(last=False)[1].bytes
        return None

    def _pop(self, sender: Sender, number: int) -> dict[int, bytes]:
        """Takes a message out, and returns its parts. The caller holds the lock."""
        begun = self._open[sender]
        before = begun.bytes
        found = begun.pop(number)
        self._bytes -= before - begun.bytes
        if not begun.messages:
            del self._open[sender]
        return found

    def _drop(self, sender: Sender) -> None:
        """Drops the oldest message of an agent. The caller holds the lock."""
        found = self._pop(sender, next(iter(self._open[sender].messages)))
        self._dropped(
            "a notification of %s at %s is dropped: %d of its parts came, and there is more of such than there is "
            "room for",
            *sender,
            len(found),
        )

    def forget(self, agent: str) -> None:
        """Drops the incomplete messages of an agent that is gone."""
        with self._lock:
            for key in [key for key in self._open if key[0] == agent]:
                self._bytes -= self._open.pop(key).bytes
