"""Notifications of an agent: sent by themselves, joined from their parts, and kept until they are looked for."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from ... import _native
from . import messages
from .errors import translating
from .seldom import Seldom

if TYPE_CHECKING:
    from ...engine import Engine
    from ...segment import Segment
    from ...transfer import Transfer

logger = logging.getLogger("tent.compat.nixl")

KEPT_MOST = 256 << 20  # bytes of messages that are kept
KEPT_COST = 1024  # bytes that a message counts beside its own


class Mailbox:
    """Outgoing and incoming notifications of one agent. Any thread may use it.

    Upstream keeps every message until somebody looks for it. Here the oldest are dropped where there is no more room,
    of the agents with the most, and the log says so. A full queue that holds the senders back would make their
    transfers fail for messages that nobody reads.
    """

    def __init__(self, engine: Engine, owner: str) -> None:
        """`owner` is the agent's name, which every notification carries."""
        self.kept: dict[str, list[bytes]] = {}
        self._engine = engine
        self._owner = owner
        self._lock = _native.renewed(threading.RLock())
        self._joiner = messages.Joiner()
        self._sent: list[Transfer] = []
        self._bytes = 0  # of those kept, or more: the program may take some out of `kept`
        self._dropped = Seldom(logger, logging.ERROR)

    def parts(self, message: bytes) -> list[messages.Part]:
        """The notifications that carry a message; none for an empty one."""
        return messages.parts(self._owner, message) if message else []

    def post(self, segment: Segment, parts: list[messages.Part]) -> list[Transfer]:
        """Sends notifications and returns their transfers."""
        return [self._engine.notify(segment, *part) for part in parts]

    def send(self, segment: Segment, message: bytes | str) -> None:
        """Sends a message by itself. A failure that shows later is logged at the next call."""
        parts = messages.parts(self._owner, messages.encoded(message))
        self._log_failures()
        with translating():
            sent = self.post(segment, parts)
        with self._lock:
            self._sent += sent

    def _log_failures(self) -> None:
        with self._lock:
            before, self._sent = self._sent, []
            failed = []
            for transfer in before:
                if not transfer.done():
                    self._sent.append(transfer)
                elif (error := transfer.exception()) is not None:
                    failed.append(error)
        for error in failed:
            logger.error("a notification was not delivered: %s", error)

    def take(self) -> dict[str, list[bytes]]:
        """The messages that have come since the last call, by the name of their agent."""
        with translating():
            return self._joiner.take(self._engine.notifications.drain())

    def keep(self) -> dict[str, list[bytes]]:
        """Takes the messages that have come and returns all that are kept."""
        new = self.take()
        with self._lock:
            for name, listed in new.items():
                self.kept.setdefault(name, []).extend(listed)
                self._bytes += _cost(listed)
            if self._bytes > KEPT_MOST:
                self._drop_oldest()
            return self.kept

    def _drop_oldest(self) -> None:
        """Makes room, and some more, so that it is not made for each message. The caller holds the lock."""
        costs = {name: _cost(listed) for name, listed in self.kept.items()}
        self._bytes = sum(costs.values())
        if self._bytes <= KEPT_MOST:
            return
        while self._bytes > KEPT_MOST - KEPT_MOST // 8:
            name = max(costs, key=lambda name: costs[name])
            listed = self.kept[name]
            n = max(1, len(listed) // 8)
            freed = _cost(listed[:n])
            del listed[:n]
            costs[name] -= freed
            self._bytes -= freed
            self._dropped(
                "%d notifications of %s are dropped: nobody has looked for them, and %d MiB are kept at most. "
                "check_remote_xfer_done() takes one, and notifs.clear() all",
                n,
                name,
                KEPT_MOST >> 20,
            )

    def find(self, name: str, tag: bytes, is_prefix: bool) -> bool:
        """Whether a message is kept that begins with the tag, or has it anywhere; it is taken then."""
        self.keep()
        with self._lock:
            listed = self.kept.get(name, [])
            for i, message in enumerate(listed):
                if message.startswith(tag) if is_prefix else tag in message:
                    del listed[i]
                    self._bytes -= _cost([message])
                    return True
        return False

    def forget(self, name: str) -> None:
        """Drops the incomplete messages of an agent that is gone."""
        self._joiner.forget(name)


def _cost(listed: list[bytes]) -> int:
    return sum(map(len, listed)) + KEPT_COST * len(listed)
