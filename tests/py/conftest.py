"""Fixtures of the Python tests: engines in pairs, memory that is checked twice, and peers in processes of their own."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import tent
from tent.testing import Memory, PeerProcess
from tent.testing.ports import keep_port, port_of

T = TypeVar("T")

# Settings without the transports that only some machines have, for tests in which all others are switched off.
NO_DEVICES = {f"transports/{name}/enable": False for name in ("nvlink", "mnnvl", "rdma", "acl", "ascend_direct")}

# Programs of tests print memory in lines that are longer than a pipe. Unbuffered, a signal cuts such a line (PEP 475 is
# about the calls of a buffered file), and Go's runtime sends signals.
os.environ.pop("PYTHONUNBUFFERED", None)


@pytest.fixture(scope="session", autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs the tests in a folder of their own.

    In the checkout, their programs would import the sources there instead of the installed package.
    """
    os.chdir(tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture(scope="session")
def imported() -> None:
    """All modules of tent are imported."""
    for module in pkgutil.iter_modules(tent.__path__):
        if not module.name.startswith("__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(f"tent.{module.name}")


@pytest.fixture
def pytester(imported: None, pytester: pytest.Pytester) -> pytest.Pytester:
    """The one of pytest, behind all imports.

    It takes modules that come during its run out of sys.modules again. Those that tent imports at their first use would
    come a second time later, with other classes of the same names.
    """
    return pytester


@pytest.fixture
def seed(tent_seed: int) -> int:
    """The seed of tent's plug-in: new in each run, and shown when the test fails. TENT_SEED repeats one."""
    return tent_seed


@pytest.fixture
def keep() -> Iterator[Callable[[T], T]]:
    """Holds things until the engines have closed: a Region that is dropped unclosed is a ResourceWarning."""
    held: list[object] = []

    def hold(thing: T) -> T:
        held.append(thing)
        return thing

    yield hold
    held.clear()


@pytest.fixture
def port() -> Iterator[int]:
    """A port that an engine may listen at, and another one behind it: no other process gets it until the test ends."""
    with keep_port() as kept:
        yield port_of(kept)


@pytest.fixture
def engines(keep: object) -> Iterator[Callable[..., tent.Engine]]:
    """Makes engines; they are closed, and their memory is released, at the end."""
    made: list[tent.Engine] = []

    def make(**settings: Any) -> tent.Engine:
        made.append(tent.Engine(**settings))
        return made[-1]

    yield make
    for engine in made:
        engine.close(timeout=0)


@pytest.fixture
def engine(engines: Callable[..., tent.Engine]) -> tent.Engine:
    """One engine with the default settings."""
    return engines()


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder on disk, where io_uring with O_DIRECT is the way, and one in memory, where the page cache is."""
    if request.param == "disk":
        yield tmp_path
        return
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no file system in memory at /dev/shm")
    path = Path("/dev/shm") / f"tent-{os.getpid()}-{tmp_path.name}"
    path.mkdir()
    yield path
    for entry in path.iterdir():
        entry.unlink()
    path.rmdir()


class Pair:
    """Two engines of this process: `near` moves, `far` offers `theirs` as region "kv"."""

    def __init__(self, make: Callable[..., tent.Engine], size: int, seed: int, alignment: int = 0) -> None:
        self.near, self.far = make(name="near"), make(name="far")
        self.mine, self.theirs = Memory(size, seed, alignment), Memory(size, seed + 1, alignment)
        self.local = self.near.register(self.mine.view)
        self.offered = self.far.register(self.theirs.view, name="kv")
        self.peer = self.near.open(self.far.address)
        self.remote = self.peer["kv"]

    def check(self) -> None:
        """Both sides, every byte."""
        self.mine.check()
        self.theirs.check()


@pytest.fixture
def pair(engines: Callable[..., tent.Engine], seed: int) -> Iterator[Callable[..., Pair]]:
    """Makes pairs. Their memory is looked at once more after the engines have closed: nothing may land later."""
    made: list[Pair] = []

    def make(size: int = 1 << 20, alignment: int = 0) -> Pair:
        made.append(Pair(engines, size, seed % 1000, alignment))
        return made[-1]

    yield make
    for one in made:
        one.near.close(timeout=0)
        one.far.close(timeout=0)
        one.check()


@pytest.fixture
def peers() -> Iterator[Callable[..., PeerProcess]]:
    """Starts peers in processes of their own, with a region "kv"; they are killed at the end.

    They speak TCP unless a test says otherwise: over shared memory a stopped peer serves as well as any.
    """
    started: list[PeerProcess] = []

    def start(size: int = 1 << 20, seed: int = 7, settings: dict[str, Any] | None = None) -> PeerProcess:
        peer = PeerProcess({"transports/shm/trust": "none", **(settings or {})}, options=["-W", "error"])
        started.append(peer)
        peer.region("kv", size, seed)
        return peer

    yield start
    for peer in started:
        peer.end()


@pytest.fixture
def agents() -> Iterator[Callable[..., Any]]:
    """Makes NIXL's agents of tent; they are closed at the end."""
    from nixl_agents import agents_made

    with agents_made() as make:
        yield make


@pytest.fixture
def sides() -> Iterator[Callable[[str, int], Any]]:
    """Starts NIXL's agents of tent in processes of their own; they are killed at the end."""
    from nixl_agents import sides_made

    with sides_made() as make:
        yield make
