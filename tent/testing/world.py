"""World: the engines and the seed that the fixtures of one test share, and the end of all that."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import tent

from . import leaks
from .faults import Faults, inject
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

    @property
    def faults(self) -> Faults:
        """Faults of all engines of this process, those to come included; `.peer` of all peers."""
        return Faults(self._inject, peer=[self._inject_there])

    def _inject(self, text: str) -> None:
        self._tell("tent faults", text)
        for engine in self._engines:
            inject(engine, text)
        for cluster in self._clusters:
            cluster.faults.inject(_keeping(text, cluster.base))

    def _inject_there(self, text: str) -> None:
        self._tell("tent faults of peers", text)
        for cluster in self._clusters:
            cluster.faults.peer.inject(_keeping(text, cluster.base))

    def close(self, check_leaks: bool) -> None:
        """Ends everything. Raises AssertionError for bytes that landed late and for leaks."""
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


def _keeping(text: str, base: str) -> str:
    """heal ends everything but the rate that the rails have by themselves."""
    return f"heal; {base}" if base and text == "heal" else text
