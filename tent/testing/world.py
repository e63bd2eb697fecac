"""World: the engines and the seed that the fixtures of one test share, and the end of all that."""

from __future__ import annotations

import contextlib
import gc
import subprocess
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import tent

from . import leaks
from .faults import NO_FAULT, Faults, struck
from .injections import Injections
from .oracle import Oracle
from .pair import Cluster, Pair
from .peer import PeerProcess

C = TypeVar("C", bound=Cluster)

_warm = False


def warm_up() -> None:
    """Loads the engine. Its runtime opens descriptors that stay with the process: they are no leak of a test."""
    global _warm
    if not _warm:
        tent.Engine(log_level="error").close()
        _warm = True


def _ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None


class World:
    """The engines of one test. `tell` gets the parts of a failure report."""

    def __init__(self, seed: int, tell: Callable[[str, str], None]) -> None:
        self.seed = seed
        self._chance = seed  # of the engines to come
        self._tell = tell
        self._engines: list[tent.Engine] = []
        self._clusters: list[Cluster] = []
        self._processes: list[subprocess.Popen[bytes]] = []  # of peers as they were made
        self._here, self._there = Injections(), Injections()
        self.oracle = Oracle(seed)
        warm_up()
        self._before = leaks.Holdings()

    def engine(self, **settings: Any) -> tent.Engine:
        """An engine of this process that allows faults."""
        self._engines.append(tent.Engine({"allow_faults": True, "faults": f"seed={self._chance}"}, **settings))
        return self._engines[-1]

    def cluster(self, n: int = 2, **settings: Any) -> Cluster:
        """An engine here and `n` peers."""
        return self._add(Cluster(n, seed=self._chance, **settings))

    def pair(self, **settings: Any) -> Pair:
        """An engine here and one peer."""
        return self._add(Pair(seed=self._chance, **settings))

    def _add(self, made: C) -> C:
        self._clusters.append(made)
        self._processes += [peer.process for peer in made.peers]
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

    def _made(self) -> list[tent.Engine]:
        """The engines of this process, closed ones too."""
        return [*self._engines, *(cluster.engine for cluster in self._clusters)]

    def _open(self) -> list[tent.Engine]:
        """The engines of this process that can be asked."""
        return [engine for engine in self._made() if not engine.closed]

    def _alive(self) -> list[PeerProcess]:
        """The peers that can be asked, once they are resumed."""
        return [peer for cluster in self._clusters for peer in cluster.peers if peer.alive]

    def _inject(self, text: str) -> None:
        self._tell("tent faults", text)
        engines = self._open()
        Faults(*engines).inject(text)
        self._keep_seed(text)
        self._here.add(text, [partial(getattr, engine, "closed") for engine in engines])

    def _inject_there(self, text: str) -> None:
        self._tell("tent faults of peers", text)
        peers = self._alive()
        Faults(*(peer.inject for peer in peers)).inject(text)
        self._keep_seed(text)
        self._there.add(text, [partial(_ended, peer.process) for peer in peers])

    def _keep_seed(self, text: str) -> None:
        said = NO_FAULT.fullmatch(text)
        if said and said["seed"]:
            self._chance = int(said["seed"])

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
            for peer in self._alive():
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
        """The faults that have struck no engine of their side, "" for none. One that has ended cannot be asked, so the
        faults that it got may have struck it."""
        there = []
        for peer in self._alive():
            peer.resume()
            there.append(peer.struck())
        found = self._here.unused([struck(engine) for engine in self._open()], any(e.closed for e in self._made()))
        at_peers = self._there.unused(there, any(_ended(process) for process in self._processes))
        return ", ".join([*(f"{text!r}" for text in found), *(f"{text!r} (at the peer)" for text in at_peers)])
