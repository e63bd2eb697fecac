"""The byte oracle: it knows every byte of both ends, and looks again later."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import tent
from tent.quantities import bytes_of

from .memory import Memory
from .pair import Cluster
from .peer import PeerProcess


@dataclass
class _Move:
    """Two memories between which bytes are moved, one here and one in a peer."""

    cluster: Cluster
    peer: PeerProcess
    near: Memory
    region: tent.Region
    name: str  # of the peer's region
    read: bool
    source_seed: int
    target_seed: int
    scribble_seed: int
    checked: bool = False  # the destination has the scribble
    wrong: bool = False  # told already

    def wrong_near(self, seed: int | None, or_seed: int | None = None) -> str:
        found = self.near.wrong(seed, or_seed)
        return f"here: {found}" if found else ""

    def wrong_far(self, seed: int | None, or_seed: int | None = None) -> str:
        found = self.peer.wrong(self.name, seed, or_seed)
        return f"in {self.peer.name}: {found}" if found else ""

    def wrong_source(self) -> str:
        return self.wrong_far(self.source_seed) if self.read else self.wrong_near(self.source_seed)

    def wrong_target(self, seed: int | None, or_seed: int | None = None) -> str:
        return self.wrong_near(seed, or_seed) if self.read else self.wrong_far(seed, or_seed)


class Oracle:
    """Hands out pairs of regions and checks every byte of them, in both processes. Failures are AssertionErrors that
    name the byte and the seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._seeds = itertools.count(seed * 1000, 10)
        self._moves: list[_Move] = []

    def regions(
        self, cluster: Cluster, size: int | str, op: str = "write", *, peer: int = 0, alignment: int | str = 0
    ) -> tuple[tent.Region, tent.RemoteRegion]:
        """Returns a region here and one of a peer, each of `size` bytes, with every byte known.

        Each has a pattern of its own between guard bands, `alignment` bytes behind the begin of a page. `op` is the
        direction of the moves to come, "write" or "read".
        """
        if op not in ("write", "read"):
            raise tent.InvalidArgumentError(f'op is {op!r}: "write" or "read"')
        size, alignment = bytes_of(size, "size", least=1), bytes_of(alignment, "alignment")
        seeds = next(self._seeds)
        near_seed, far_seed = (seeds, seeds + 1) if op == "write" else (seeds + 1, seeds)
        there, name = cluster.peers[peer], f"oracle-{len(self._moves)}"
        there.region(name, size, far_seed, alignment)
        near = Memory(size, near_seed, alignment)
        region = cluster.engine.register(near.view)
        move = _Move(cluster, there, near, region, name, op == "read", seeds, seeds + 1, seeds + 2)
        self._moves.append(move)
        segment = cluster.segments[peer]
        segment.refresh()
        return region, segment[name]

    def check(self, complete: bool = True) -> None:
        """Asserts that all regions that were handed out have the right bytes, and that nothing lands later.

        The destination has every byte of the source (or, if not `complete`, each byte is either the source's or the
        old one); source and guard bands are as they were. Then the destination is overwritten, fenced, and looked at
        again, here and when the test ends. Call it when all transfers have ended. Afterwards the bytes of a destination
        mean nothing.
        """
        __tracebackhide__ = True
        for move in self._moves:
            if move.checked or move.wrong:
                continue
            expected = move.source_seed, None if complete else move.target_seed
            self._assert(move, move.wrong_target(*expected) or move.wrong_source(), "")
            move.checked = True
            if move.read:
                move.near.fill(move.scribble_seed)
                move.region.fence()
            else:
                move.peer.fill(move.name, move.scribble_seed)
                move.peer.fence(move.name)
            self._assert(move, move.wrong_target(move.scribble_seed), "something landed after the end")

    def look_again(self) -> None:
        """The last look, once the engines are closed: nothing but the bytes that check() left may be there. Memory of a
        peer that is gone is gone."""
        for move in self._moves:
            if move.wrong:
                continue
            left = move.scribble_seed if move.checked else None
            near, far = (left, move.source_seed) if move.read else (move.source_seed, left)
            wrong = move.wrong_near(near) or (move.wrong_far(far) if move.peer.alive else "")
            self._assert(move, wrong, "after the engines were closed")

    def _assert(self, move: _Move, wrong: str, when: str) -> None:
        __tracebackhide__ = True
        if wrong:
            move.wrong = True
            raise AssertionError(f"{wrong}{', ' if when else ''}{when} (region {move.name!r}, TENT_SEED={self.seed})")
