"""Engines in several processes, with rails between them on loopback addresses."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import tent
from tent._settings import Given
from tent.errors import InvalidArgumentError

from .faults import Faults, pace_of, swap_transport_for_test
from .peer import PeerProcess

RATE = 256 << 20  # bytes a second of each rail, so that a transfer lasts long enough to be disturbed on any machine


RAILS_MAX = 254  # 127.0.0.1 to 127.0.0.254


def _rails(rails: int) -> int:
    if isinstance(rails, bool) or not isinstance(rails, int) or not 1 <= rails <= RAILS_MAX:
        raise InvalidArgumentError(f"rails is {rails!r}: it must be 1 to {RAILS_MAX}")
    return rails


def _misspelled(settings: Mapping[str, Any]) -> None:
    """Refuses a keyword that is no setting and looks like an argument of Cluster."""
    own = ("rails", "rate", "transports", "seed", "swap", "peer_settings")
    for name in settings:
        if "/" not in name and name not in Given.__annotations__ and name != "name":
            near = difflib.get_close_matches(name, own, 1, 0.7)
            if near:
                raise InvalidArgumentError(f"{name}= is unknown; did you mean {near[0]}=?")


class Cluster:
    """One engine of this process and `n` peers in processes of their own. End it by close(), or use it in a `with`
    block.

    `rails` TCP rails to each peer: 127.0.0.1 to 127.0.0.1, 127.0.0.2 to 127.0.0.2 and so on, each of which carries
    `rate` bytes a second (None: no limit). Chance in faults follows `seed`. `transports` are the used ones;
    None leaves the engines' own choice. Other settings are keywords, as for tent.Engine, and count on both sides;
    `peer_settings` only over there. `swap` maps slots to the transports that stand in for them
    (swap_transport_for_test), on both sides.
    """

    def __init__(
        self,
        n: int = 1,
        *,
        rails: int = 1,
        rate: float | str | None = RATE,
        transports: str | Iterable[str] | None = ("tcp",),
        seed: int = 0,
        swap: Mapping[str, str] | None = None,
        peer_settings: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.rails = _rails(rails)
        _misspelled(settings)
        pace = "" if rate is None else f"transport=tcp slow={pace_of(rate, 'rate')} ambient"
        self.peers: list[PeerProcess] = []
        self.segments: list[tent.Segment] = []
        chosen: dict[str, Any] = {"allow_faults": True, "faults": f"seed={seed}; {pace}"}
        chosen["transports/tcp/addresses"] = [f"127.0.0.{1 + i}" for i in range(rails)]
        if transports is not None:
            wanted = {transports} if isinstance(transports, str) else set(transports)
            chosen |= {f"transports/{name}/enable": name in wanted for name in {"tcp", "shm"} | wanted}
        chosen |= settings
        self.engine = tent.Engine(chosen, name="near")
        try:
            for slot, transport in (swap or {}).items():
                swap_transport_for_test(self.engine, slot, transport)
            for i in range(n):
                self.peers.append(PeerProcess({**chosen, **(peer_settings or {})}, f"peer-{i}", swap or {}))
            self.segments += [self.engine.open(peer.address) for peer in self.peers]
        except BaseException:
            self.close()
            raise

    @property
    def faults(self) -> Faults:
        """Faults of this engine; `.peer` of all peers."""
        return Faults(self.engine, peer=[peer.inject for peer in self.peers], rails=self.rails)

    def close(self) -> None:
        """Ends the engine and the peers. Again: no effect."""
        self.engine.close(timeout=0)
        for peer in self.peers:
            peer.end()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.engine!r} and {len(self.peers)} peers>"


class Pair(Cluster):
    """A Cluster with one peer."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(1, **settings)

    @property
    def peer(self) -> PeerProcess:
        """The process at the other end."""
        return self.peers[0]

    @property
    def segment(self) -> tent.Segment:
        """The memory that it offers."""
        return self.segments[0]

    def __enter__(self) -> Pair:
        return self
