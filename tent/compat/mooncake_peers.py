"""The peers of an engine in Mooncake's form, "host:port" or a name that a metadata service lists.

They are opened at the first use, and met again after a restart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import NotImplementedError, PeerRestartedError, PeerUnreachableError

if TYPE_CHECKING:
    from ..engine import Engine
    from ..segment import Segment

T = TypeVar("T")

_PEER_TO_PEER = ("P2PHANDSHAKE", "p2p", "")
_SERVICES = ("etcd", "redis", "http")  # of names

CONNECT_LIMIT = 10.0  # seconds in which a peer answers


class Peers:
    """The peers of one engine. Any thread may use them; calls raise tent's errors."""

    def __init__(self, engine: Engine, name: str = "") -> None:
        """`name` is the engine's own where a metadata service lists it."""
        self._engine = engine
        self._own = name
        self._lock = threading.Lock()
        self._segments: dict[str, Segment] = {}

    def segment(self, peer: str) -> Segment:
        """The peer's address space."""
        with self._lock:
            segment = self._segments.get(peer)
        if segment is not None:
            return segment
        own = peer in (self._engine.address, self._own)
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


def host_and_port(host: str) -> tuple[str, int]:
    """The parts of upstream's host name; the port is 0 where it has none."""
    name, colon, port = host.rpartition(":")
    if not colon or not port.isdecimal() or (":" in name and not name.startswith("[")):
        return host.strip("[]"), 0
    return name.strip("[]"), int(port)


def service(metadata: str, kind: str, name: str, port: int) -> dict[str, Any]:
    """The settings of a metadata service in upstream's forms; a bare HOST:PORT is etcd's. Peer to peer has none. A name
    with a port is an address, which needs no entry there."""
    if kind in _PEER_TO_PEER and metadata in _PEER_TO_PEER:
        return {}
    scheme, mark, rest = metadata.partition("://")
    if not kind:
        kind = {"https": "http", "rediss": "redis"}.get(scheme, scheme) if mark else "etcd"
    if kind not in _SERVICES:
        raise NotImplementedError(f"metadata by {kind!r} is not supported", hint=f"known: {', '.join(_SERVICES)}")
    servers = rest if mark and scheme == "etcd" else metadata
    return {"metadata_type": kind, "metadata_servers": servers, "local_segment_name": "" if port else name}
