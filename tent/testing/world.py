"""World: the engines and the seed that the fixtures of one test share, and the end of all that."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import tent

from . import leaks
from .faults import Faults, struck
from .oracle import Oracle
from .pair import Cluster, Pair
from .peer import PeerProcess

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
        """Faults of the engines of this process that are open; `.peer` of all peers. Those to come get none of them."""
        return Faults(self._inject, peer=[self._inject_there], rails=self._rails)

    def _rails(self) -> int:
        """The rails of the cluster that has most; 0 if there is none, or an engine with addresses of its own."""
        return 0 if self._engines else max((cluster.rails for cluster in self._clusters), default=0)

    def _open(self) -> list[tent.Engine]:
        """The engines of this process that can be asked."""
        engines = [*self._engines, *(cluster.engine for cluster in self._clusters)]
        return [engine for engine in engines if not engine.closed]

    def _peers(self) -> list[PeerProcess]:
        return [peer for cluster in self._clusters for peer in cluster.peers]

    def _inject(self, text: str) -> None:
        self._tell("tent faults", text)
        Faults(*self._open()).inject(text)

    def _inject_there(self, text: str) -> None:
        self._tell("tent faults of peers", text)
        Faults(*(peer.inject for peer in self._peers())).inject(text)

    def close(self, check_leaks: bool, failed: bool = False) -> None:
        """Ends everything. Raises AssertionError for bytes that landed late, for leaks, and for faults that never
        struck, unless the test has `failed` already."""
        with contextlib.ExitStack() as ends:  # they come also where a peer does not answer
            for engine in self._engines:
                ends.callback(engine.close, timeout=0)
            for cluster in self._clusters:
                ends.callback(cluster.close)
            unused = "" if failed else self._unused()
            for engine in self._open():
                engine.close(timeout=0)
            for peer in self._peers():
                if peer.alive:
                    peer.resume()
                    peer.ask("close")
            self.oracle.look_again()
        self._engines.clear()
        self._clusters.clear()
        gc.collect()
        if check_leaks and (leaked := leaks.leaked_since(self._before)):
            raise AssertionError(f"the test has left behind: {leaked}")
        if unused:
            raise AssertionError(f"never struck, so nothing was tested with it (unused_ok=True allows that): {unused}")

    def _unused(self) -> str:
        """The faults that have struck no engine of their side, "" for none. One that has ended cannot be asked."""
        there = []
        for peer in self._peers():
            if peer.alive:
                peer.resume()
                there.append(peer.struck())
        found = []
        for where, counts in (("", [struck(engine) for engine in self._open()]), (" (at the peer)", there)):
            # A text that was injected again is another fault. An engine that came later lacks the first ones, so those
            # of one text are numbered from the last.
            hits: Counter[tuple[str, int]] = Counter()
            for engine in counts:
                again: Counter[str] = Counter()
                for fault in reversed(engine):
                    again[fault.text] += 1
                    hits[fault.text, again[fault.text]] += fault.hits + fault.unused_ok
            found += [f"{text!r}{where}" for (text, _), n in reversed(hits.items()) if not n]
        return ", ".join(found)
