"""The pytest plug-in: fixtures alone. It comes with tent and is loaded by every pytest run of its environment, so it
imports nothing before a fixture is used, and has no hook outside of the tests that use its engines."""

from __future__ import annotations

import os
import random

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import tent

    from .faults import Faults
    from .oracle import Oracle
    from .pair import Cluster, Pair
    from .world import World


class _Ending:
    """A hook that hears whether one test has raised, pytest.skip() and pytest.fail() included: they are no Exception,
    and leave nothing in sys.last_type."""

    def __init__(self, item: pytest.Item) -> None:
        self.raised = False
        self._item = item

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if item is self._item and call.excinfo is not None:
            self.raised = True


@pytest.fixture
def tent_seed(request: pytest.FixtureRequest) -> int:
    """The seed of everything random in a test: new in each run, shown when the test fails. TENT_SEED repeats one."""
    seed = int(os.environ.get("TENT_SEED") or random.SystemRandom().randrange(1 << 31))
    request.node.add_report_section("call", "tent", f"TENT_SEED={seed}")
    return seed


@pytest.fixture
def tent_leak_check() -> bool:
    """Whether a test that leaves descriptors, threads or processes of engines behind fails. Override it to say no."""
    return True


@pytest.fixture
def _tent_world(request: pytest.FixtureRequest, tent_seed: int, tent_leak_check: bool) -> Iterator[World]:
    from .world import World

    world = World(tent_seed, lambda title, text: request.node.add_report_section("call", title, text))
    ending = _Ending(request.node)
    request.config.pluginmanager.register(ending)
    try:
        yield world
    finally:
        request.config.pluginmanager.unregister(ending)
    world.close(tent_leak_check, failed=ending.raised)


@pytest.fixture
def tent_engine(_tent_world: World) -> Callable[..., tent.Engine]:
    """Makes engines: tent_engine(**settings). They are closed when the test ends."""
    return _tent_world.engine


@pytest.fixture
def tent_pair(_tent_world: World) -> Callable[..., Pair]:
    """Makes pairs of engines in two processes: tent_pair(rails=2, **settings) is a tent.testing.Pair."""
    return _tent_world.pair


@pytest.fixture
def tent_cluster(_tent_world: World) -> Callable[..., Cluster]:
    """Makes clusters: tent_cluster(3, rails=2, **settings) is a tent.testing.Cluster of an engine here and three
    peers."""
    return _tent_world.cluster


@pytest.fixture
def tent_faults(_tent_world: World) -> Faults:
    """Faults of the test's engines so far: tent_faults.rail(1).blackhole(after_bytes=8 << 20). See
    tent.testing.Faults."""
    faults = _tent_world.faults
    return faults


@pytest.fixture
def tent_oracle(_tent_world: World) -> Oracle:
    """Regions with every byte known: tent_oracle.regions(pair, size), tent_oracle.check(). See
    tent.testing.Oracle."""
    return _tent_world.oracle
