"""World: the engines and the seed that the fixtures of one test share, and the end of all that."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import tent

from . import leaks
from .faults import Faults, inject, struck
from .oracle import Oracle
from .pair import Cluster, Pair

_warm = False


def warm_up() -> None:
    """Loads the engine. Its runtime opens descriptors that stay with the process: they are no leak of a test."""
    global _warm
    if not _warm:
        tent.Engine(log_level="error").close()
        _warm = True


class World:
    """The engines of one test. `tell` gets the parts of a failure report."""

    def __init__(self, seed: int, tell: Callable[[str, str], None]) -> None:
        self.seed = seed
        self._tell = tell
        self._engines: list[tent.Engine] = []
        self._clusters: list[Cluster] = []
        self.oracle = Oracle(seed)
        warm_up()
        self._before = leaks.Holdings()

    def engine(self, **settings: Any) -> tent.Engine:
        """An engine of this process that allows faults."""
        self._engines.append(tent.Engine({"allow_faults": True, "faults": f"seed={self.seed}"}, **settings))
        return self._engines[-1]

    def cluster(self, n: int = 2, **settings: Any) -> Cluster:
        """An engine here and `n` peers."""
        self._clusters.append(Cluster(n, seed=self.seed, **settings))
        return self._clusters[-1]

    def pair(self, **settings: Any) -> Pair:
        """An engine here and one peer."""
        made = Pair(seed=self.seed, **settings)
        self._clusters.append(made)
        return made

    def __repr__(self) -> str:
        return f"<World with {len(self._engines)} engines and {len(self._clusters)} clusters, TENT_SEED={self.seed}>"

    @property
    def faults(self) -> Faults:
        """Faults of all engines of this process, those to come included; `.peer` of all peers."""
        return Faults(self._inject, peer=[self._inject_there], rails=self._rails)

    def _rails(self) -> int:
        """The rails of the cluster that has most; 0 if there is none, or an engine with addresses of its own."""
        return 0 if self._engines else max((cluster.rails for cluster in self._clusters), default=0)

    def _inject(self, text: str) -> None:
        self._tell("tent faults", text)
        for engine in self._engines:
            inject(engine, text)
        for cluster in self._clusters:
            inject(cluster.engine, text)

    def _inject_there(self, text: str) -> None:
        self._tell("tent faults of peers", text)
        for cluster in self._clusters:
            cluster.faults.peer.inject(text)

    def close(self, check_leaks: bool, failed: bool = False) -> None:
        """Ends everything. Raises AssertionError for bytes that landed late, for leaks, and for faults that never
        struck, unless the test has `failed` already."""
        unused = "" if failed else self._unused()
        for cluster in self._clusters:
            cluster.engine.close(timeout=0)
        for engine in self._engines:
            engine.close(timeout=0)
        try:
            for cluster in self._clusters:
                for peer in cluster.peers:
                    if peer.alive:
                        peer.resume()
                        peer.ask("close")
            self.oracle.look_again()
        finally:
            for cluster in self._clusters:
                cluster.close()
        self._engines.clear()
        self._clusters.clear()
        gc.collect()
        if check_leaks and (leaked := leaks.leaked_since(self._before)):
            raise AssertionError(f"the test has left behind: {leaked}")
        if unused:
            raise AssertionError(f"never struck, so nothing was tested with it (unused_ok=True allows that): {unused}")

    def _unused(self) -> str:
        """The faults that have struck no engine of their side, "" for none. One that has ended cannot be asked."""
        engines = [*self._engines, *(cluster.engine for cluster in self._clusters)]
        here = [] if any(engine.closed for engine in engines) else [struck(engine) for engine in engines]
        peers = [peer for cluster in self._clusters for peer in cluster.peers]
        there = []
        if all(peer.alive for peer in peers):
            for peer in peers:
                peer.resume()
                there.append(peer.struck())
        found = []
        for where, counts in (("", here), (" (at the peer)", there)):
            hits: dict[str, int] = {}
            for fault in (fault for engine in counts for fault in engine):
                hits[fault.text] = hits.get(fault.text, 0) + fault.hits + fault.unused_ok
            found += [f"{text!r}{where}" for text, n in hits.items() if not n]
        return ", ".join(found)
