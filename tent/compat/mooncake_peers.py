"""The peers of an engine in Mooncake's form, "host:port" or a name that a metadata service lists.

They are opened at the first use, and met again after a restart.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _native
from ..errors import InvalidArgumentError, NotImplementedError, PeerRestartedError, PeerUnreachableError
from .looking import ended

if TYPE_CHECKING:
    from ..engine import Engine
    from ..errors import TransferError
    from ..segment import Segment
    from ..transfer import Transfer

logger = logging.getLogger("tent.compat.mooncake")

_PEER_TO_PEER = ("P2PHANDSHAKE", "p2p", "")
_SERVICES = ("etcd", "redis", "http")  # of names

CONNECT_LIMIT = 10.0  # seconds in which a peer answers


class Begun(NamedTuple):
    """A transfer, and its peer by name and by the segment through which it goes."""

    transfer: Transfer | None  # None: there was nothing to move
    peer: str
    segment: Segment

    def ended(self) -> bool:
        """Whether it has ended. The look drives it, as upstream's does."""
        return self.transfer is None or ended(self.transfer)

    def error(self) -> TransferError | None:
        """Waits for the end and returns the error that it brought."""
        return None if self.transfer is None else self.transfer.exception()


class Wishes:
    """Transports that calls wish for by transport_hint. As upstream, one that cannot carry a call is no error of it;
    the log says so once."""

    def __init__(self) -> None:
        self._missed: set[str] = set()

    def begin(self, begins: Callable[..., Transfer], hint: str) -> Transfer:
        """Begins a transfer over the transport that is wished for, or else over any."""
        if not hint or hint in self._missed:
            return begins()
        try:
            return begins(hint=hint)
        except InvalidArgumentError as error:
            transfer = begins()  # which raises where something else is wrong
            self._missed.add(hint)
            logger.warning("transport_hint %r is not used any more: %s", hint, error)
            return transfer


class Peers:
    """The peers of one engine. Any thread may use them; calls raise tent's errors."""

    def __init__(self, engine: Engine, name: str = "") -> None:
        """`name` is the engine's own where a metadata service lists it."""
        self._engine = engine
        self._own = name
        self._lock = _native.renewed(threading.RLock())
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

    def use(self, peer: str, begin: Callable[[Segment], Transfer | None]) -> Begun:
        """Begins a transfer with a peer. One that is known and gone is met again once: it may have a successor."""
        known = peer in self._segments
        segment = self.segment(peer)
        try:
            return Begun(begin(segment), peer, segment)
        except (PeerUnreachableError, PeerRestartedError) as error:
            self.note(peer, segment, error)
            if not known:
                raise
        segment = self.segment(peer)
        return Begun(begin(segment), peer, segment)

    def probe(self, peer: str) -> None:
        """Raises PeerUnreachableError when a peer does not answer; it is forgotten then."""
        segment = self.segment(peer)
        if not segment.alive():
            error = PeerUnreachableError(f"{peer} does not answer, or has restarted")
            self.note(peer, segment, error)
            raise error

    def note(self, peer: str, segment: Segment, error: BaseException | None) -> None:
        """Forgets a peer when an error of its segment says that it is gone, so that the next call meets its successor.
        One that has been met already keeps its own segment."""
        if isinstance(error, (PeerUnreachableError, PeerRestartedError)):
            with self._lock:
                if self._segments.get(peer) is not segment:
                    return
                del self._segments[peer]
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
