"""The peers of an engine: their identities, and the end of their access."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from . import _native
from .handle import Handle
from .quantities import text_of
from .rights import identities
from .segment import Segment


class PeerInfo(NamedTuple):
    """A peer that has called this engine, or that is open here: a row of Engine.peers().

    `identity` is that of Segment. `connected` says whether it has a connection to the control plane now, and `open`
    whether a segment of it is open here. `seen` is the time since its latest handshake, and `expires` that until the
    end of its certificate, in seconds; None where there is none.
    """

    address: str
    name: str
    id: str
    identity: str
    connected: bool
    open: bool
    seen: float | None
    expires: float | None


class Admission(Handle):
    """The part of an Engine that knows its peers."""

    __slots__ = ()

    def peers(self) -> list[PeerInfo]:
        """Returns the peers that have called since the engine started, and those that are open.

        Example:
            for peer in engine.peers():
                print(peer.address, peer.identity, peer.connected)

        One that has ended stays listed, and is not `connected`. Of those without a connection any more the last
        7,168 are listed; if one identity has most of them, fewer of that one.
        """
        rows = self._call_json(self._library.pybind_Peers)
        return [PeerInfo(*(row[key] for key in _KEYS)) for row in rows]

    def disconnect(self, peer: Segment | PeerInfo | str, *, timeout: float | str = 10.0) -> int:
        """Ends the access of a peer, or of all with an identity, and returns how many they were.

        Example:
            engine.open(address).close()
            engine.disconnect(address)  # or a Segment, a PeerInfo, an id, or a pattern such as "spiffe://prod/**"

        When it returns, none of them can touch memory of this engine, and transfers with them have ended or end. They
        stay out until they start again; security/allow, or another key, keeps an identity out. Raises InvalidEntryError
        if there is no such peer.
        """
        who = peer.id if isinstance(peer, PeerInfo) else text_of(getattr(peer, "peer_id", peer), "peer")
        return self._call_long(self._library.pybind_Disconnect, who, _native.milliseconds(timeout))

    def reload_security(self, *, allow: Iterable[str] | None = None, timeout: float | str = 30.0) -> bool:
        """Reads the files of mode mtls again, and returns whether something has changed.

        Example:
            engine.reload_security()  # or with allow=["spiffe://prod/prefill/*"], which replaces security/allow

        Transfers go on. Peers that are not admitted any more are asked for another certificate, and lose their access
        without one. The engine looks by itself every security/reload_interval. Raises InvalidArgumentError for files
        that do not fit together; those of before count on.
        """
        listed = identities("allow", allow)
        return bool(self._call_long(self._library.pybind_ReloadSecurity, listed, _native.milliseconds(timeout)))


_KEYS = ("address", "name", "id", "identity", "connected", "open", "seen_s", "expires_s")
