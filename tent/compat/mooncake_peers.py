"""The peers of an engine in Mooncake's form: "host:port", opened at the first use, met again after a restart."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ..errors import PeerRestartedError, PeerUnreachableError

if TYPE_CHECKING:
    from ..engine import Engine
    from ..segment import Segment

T = TypeVar("T")

CONNECT_LIMIT = 10.0  # seconds in which a peer answers


class Peers:
    """The peers of one engine. Any thread may use them; calls raise tent's errors."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._segments: dict[str, Segment] = {}

    def segment(self, peer: str) -> Segment:
        """The peer's address space."""
        with self._lock:
            segment = self._segments.get(peer)
        if segment is not None:
            return segment
        own = peer == self._engine.address
        made = self._engine.open("") if own else self._engine.open_peer(peer, timeout=CONNECT_LIMIT)
        with self._lock:
            kept = self._segments.setdefault(peer, made)
        if kept is not made:
            made.close()
        return kept

    def use(self, peer: str, begin: Callable[[Segment], T]) -> T:
        """Begins something with a peer. One that is known and gone is met again once: it may have a successor."""
        known = peer in self._segments
        try:
            return begin(self.segment(peer))
        except (PeerUnreachableError, PeerRestartedError) as error:
            self.note(peer, error)
            if not known:
                raise
        return begin(self.segment(peer))

    def note(self, peer: str, error: BaseException | None) -> None:
        """Forgets a peer when its error says that it is gone, so that the next call meets its successor."""
        if isinstance(error, (PeerUnreachableError, PeerRestartedError)):
            with self._lock:
                segment = self._segments.pop(peer, None)
            if segment is not None:
                segment.close()
