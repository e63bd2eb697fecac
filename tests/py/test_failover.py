"""Failover between transports, end to end: the six cases of the failover seed, by their names.

They run over real transports with injected faults, once between the memories of two processes (shm, then tcp) and once
with a file (io-uring, then buf-io).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tent
from tent.testing import Faults, Memory, Oracle, Pair, swap_transport_for_test

SIZE = 64 << 10
MANY = 10


class World:
    """Something to move pieces of SIZE bytes to by two transports."""

    engine: tent.Engine
    primary: str
    secondary: str

    def move(self, i: int, **terms: Any) -> tent.Transfer:
        raise NotImplementedError

    def check(self) -> None:
        """Every byte of the pieces 0 to MANY is there."""
        raise NotImplementedError

    @property
    def faults(self) -> Faults:
        return Faults(self.engine)

    def count(self, what: str) -> float:
        return self.engine.metrics().get(what, 0)

    def attempts(self, transport: str) -> float:
        return self.count(f'tent_transport_attempts_total{{transport="{transport}"}}')

    @property
    def failovers(self) -> float:
        return self.count(f'tent_transport_failover_total{{from="{self.primary}",to="{self.secondary}"}}')


class BetweenProcesses(World):
    primary, secondary = "shm", "tcp"

    def __init__(self, pair: Pair, oracle: Oracle) -> None:
        self.engine, self._oracle = pair.engine, oracle
        self._src, self._dst = oracle.regions(pair, MANY * SIZE)

    def move(self, i: int, **terms: Any) -> tent.Transfer:
        return self.engine.write(self._src[i * SIZE : (i + 1) * SIZE], self._dst[i * SIZE : (i + 1) * SIZE], **terms)

    def check(self) -> None:
        self._oracle.check()


class ToFile(World):
    primary, secondary = "io-uring", "buf-io"

    def __init__(self, engine: tent.Engine, path: Path, seed: int) -> None:
        self.engine, self._path = engine, path
        self._memory = Memory(MANY * SIZE, seed)
        self._src = engine.register(self._memory.view)
        self._file = engine.open(path.as_uri(), create=True, size=MANY * SIZE)

    def move(self, i: int, **terms: Any) -> tent.Transfer:
        return self.engine.write(self._src[i * SIZE : (i + 1) * SIZE], self._file[i * SIZE : (i + 1) * SIZE], **terms)

    def check(self) -> None:
        assert self._path.read_bytes() == self._memory.view.tobytes()


Make = Callable[..., World]


@pytest.fixture(params=["between processes", "to a file"])
def world(
    request: pytest.FixtureRequest,
    tent_pair: Any,
    tent_engine: Any,
    tent_oracle: Oracle,
    tent_seed: int,
    tmp_path: Path,
) -> Iterator[Make]:
    """Makes the world of a test, with settings."""
    kept: list[World] = []  # regions live until the engines have closed

    def make(**settings: Any) -> World:
        made: World
        if request.param == "to a file":
            made = ToFile(tent_engine(**settings), tmp_path / "pieces", tent_seed)
        else:
            made = BetweenProcesses(tent_pair(transports=("shm", "tcp"), rate=None, **settings), tent_oracle)
        kept.append(made)
        routes = [route["transport"] for route in _explain(made)["routes"]]
        if routes[:2] != [made.primary, made.secondary]:
            pytest.skip(f"the routes here are {routes}: {_explain(made)['rejected']}")
        return made

    yield make
    for made in kept:
        made.engine.close(timeout=0)


def _explain(world: World) -> dict[str, Any]:
    if isinstance(world, ToFile):
        return world.engine.explain(world._src[0:SIZE], world._file[0:SIZE])
    assert isinstance(world, BetweenProcesses)
    world.move(0).result(10)  # links are made by the first use
    return world.engine.explain(world._src[0:SIZE], world._dst[0:SIZE])


def test_StatusCorruptionTriggersFailoverToSecondary(world: Make) -> None:
    """The primary reports a failure at the completion stage: the engine takes the secondary, and nobody notices."""
    w = world()
    w.faults.inject(f"transport={w.primary} status_corrupt_rate=1")
    for i in range(MANY):
        transfer = w.move(i)
        assert transfer.result(10) == SIZE
        assert (transfer.failovers, transfer.transports) == (1, (w.primary, w.secondary))
    assert w.failovers == MANY
    w.check()


def test_BothTransportsFailExhaustsFailoverBudget(world: Make) -> None:
    """Both fail at the completion stage: the transfer is FAILED once the budget is drained, and says why."""
    w = world()
    w.faults.inject("status_corrupt_rate=1")
    before = w.count("tent_transport_failover_total")
    transfer = w.move(0)
    with pytest.raises(tent.TransferError, match="status_corrupt_rate=1") as caught:
        transfer.result(10)
    error = caught.value
    assert error.state == tent.TransferStatusEnum.FAILED
    assert (error.code, error.scope) == ("LOST", "link")
    assert error.transport in (w.primary, w.secondary) and error.rail and error.peer
    assert not error.dirty and error.failed_tasks == [0]
    assert w.count("tent_transport_failover_total") - before == 3  # max_failover_attempts
    assert w.engine.events().wait_for("failover_exhausted", timeout=10).m == 3


def test_MixedFaultsAcrossManySubmissions(world: Make) -> None:
    """Ten requests, three in ten completions of the primary corrupted: all complete, and the counters add up."""
    w = world()
    before = w.attempts(w.primary), w.attempts(w.secondary), w.failovers
    w.faults.inject(f"transport={w.primary} status_corrupt_rate=0.3")
    transfers = [w.move(i) for i in range(MANY)]
    for transfer in transfers:
        assert transfer.result(10) == SIZE
    first, second = w.attempts(w.primary) - before[0], w.attempts(w.secondary) - before[1]
    switched = sum(transfer.failovers for transfer in transfers)
    assert first == MANY, "each began on the primary"
    assert second == switched == w.failovers - before[2], "and went to the secondary once for each fault"
    assert sum(transfer.attempts for transfer in transfers) == first + second
    w.check()


def test_MaxFailoverAttemptsZeroDisablesFailover(world: Make) -> None:
    """The first fault is permanent, and the secondary is never touched."""
    w = world(max_failover_attempts=0)
    untouched = w.attempts(w.secondary)
    w.faults.inject(f"transport={w.primary} status_corrupt_rate=1")
    with pytest.raises(tent.TransferError) as caught:
        w.move(0).result(10)
    assert caught.value.transport == w.primary
    assert w.attempts(w.secondary) == untouched
    assert w.count("tent_transport_failover_total") == 0


def test_MaxFailoverAttemptsOneAllowsSingleFailover(world: Make) -> None:
    """One switch is allowed: a fault of the primary, then success; faults of both are one too many."""
    w = world(max_failover_attempts=1)
    w.faults.inject(f"transport={w.primary} status_corrupt_rate=1")
    transfer = w.move(0)
    assert transfer.result(10) == SIZE and transfer.failovers == 1
    w.faults.inject(f"transport={w.secondary} status_corrupt_rate=1")
    transfer = w.move(1)
    with pytest.raises(tent.TransferError) as caught:
        transfer.result(10)
    assert transfer.failovers == 1 and caught.value.transport == w.secondary


def test_PerTaskFailoverCountsAreIndependent(world: Make) -> None:
    """A failing task does not consume another one's budget: each has one switch, and uses it."""
    w = world(max_failover_attempts=1, merge_requests=False)
    w.faults.inject(f"transport={w.primary} status_corrupt_rate=1")
    transfers = [w.move(i) for i in range(MANY)]
    for transfer in transfers:
        assert transfer.result(10) == SIZE
        assert transfer.failovers == 1
    assert w.failovers == MANY
    w.check()


def test_a_request_that_requires_the_primary_does_not_leave_it(world: Make) -> None:
    w = world()
    w.faults.inject(f"transport={w.primary} status_corrupt_rate=1")
    with pytest.raises(tent.TransferError):
        w.move(0, require=w.primary).result(20)
    assert w.attempts(w.secondary) == w.failovers == 0
    w.faults.heal()
    for i in range(MANY):
        w.move(i, require=[w.primary]).result(20)
    w.check()


def test_a_submission_that_fails_goes_to_the_secondary(world: Make) -> None:
    """The first of the seed's known gaps is closed: a request refused at submission takes the next route."""
    w = world()
    w.faults.inject(f"transport={w.primary} fail_after_n_submits=3")
    assert [w.move(i).result(10) for i in range(MANY)] == [SIZE] * MANY
    assert w.failovers == MANY - 3
    w.check()


def test_a_swapped_transport_where_only_one_works(tent_pair: Any, tent_oracle: Oracle, tent_engine: Any) -> None:
    """The seed's injection hook: a second instance of tcp stands in for shm."""
    pair = tent_pair(transports=("shm", "tcp"), swap={"shm": "tcp"}, rate=None)
    w = BetweenProcesses(pair, tent_oracle)
    w.faults.inject("transport=shm status_corrupt_rate=1")
    for i in range(MANY):
        transfer = w.move(i)
        assert transfer.result(10) == SIZE
        assert (transfer.failovers, transfer.transports) == (1, ("shm", "tcp"))
    w.check()
    with pytest.raises(tent.InvalidArgumentError, match="in use already"):
        swap_transport_for_test(pair.engine, "shm", "tcp")
    with pytest.raises(tent.InvalidArgumentError, match=r"no transport ['\"]nowhere['\"]"):
        swap_transport_for_test(tent_engine(), "shm", "nowhere")
    with tent.Engine() as engine, pytest.raises(tent.PermissionDeniedError):
        swap_transport_for_test(engine, "shm", "tcp")
