"""The stages of `make test` and `make test-all`: their commands, budgets and lanes.

A budget is in seconds of a quiet machine with two processors and warm caches (quiet.py). It is some half more than the
stage took when the budget was set, so that an honest addition fits and a second suite of the same kind does not.
Stages of a lane run one after the other, and the lanes beside each other. FRONT has the long stages with tests that
wait for other processes and threads. SIDE has short stages that wait for most of their time, with few limits of time.
Stages of BACK compute and wait for nobody. They have a lower priority, and fill the time that the others leave free.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import build_gotent
import guest
import interpreters
import lint
import nvidia
import wheels
from running import ROOT, Runner, Tally

FRONT, SIDE, BACK = "front", "side", "back"
NICENESS = {FRONT: 0, SIDE: 0, BACK: 10}  # by lane
TEST_TOOLS = ("pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6.100")  # the border's suite runs without NumPy
# Most packages wait more than they compute: four at a time leave no processor free, and none waits for long.
WAITING = "-p=4"
# Most tests of Python wait for processes of their own, so three workers share them. Each worker reads all files: two
# are enough for a short suite.
BESIDE = ("-n", "3", "--dist=load")
BESIDE_SHORT = ("-n", "2", "--dist=load")
SIMULATIONS = "(?i:simul|model|invariant)"  # tests with TENT_SIM_SEEDS runs
MODELS = "^TestModel"
DECLARATIONS = "DeclarationsAreTheVendors|DeclarationsThanTheVendors"  # tests with cuda.h
SIMULATED = ("./gocore/dispatch/...", "./tests/go/...", "./transports/sim/...")
INVARIANTS = f"-tags={build_gotent.GO_TAGS},invariants"  # the core checks itself after every call
# Tests that the race detector's memory, threads and time would falsify, and the suite's mutants: each breaks a rule of
# the contract on purpose, which the plain run finds just as well. A file that is cut while others use it atomically
# faults inside the detector, whose C code no handler can leave.
NOT_UNDER_RACE = "(?i:simul|model|leavenothingbehind|usesnoprocessor|findsbrokentransports|spoiledfile)"
# Tests of tables with very many rows, in one goroutine or with the goroutines of another test: make test-all has them
# under the race detector too.
LONG_UNDER_RACE = (
    "(?i:rememberedsenders|notconnectedareforgotten|addup|strangersarecounted|treeofregionsstays|hundredthousand"
    "|matchingagrees|startssmallagain|halffullatmost|listforeachclass|floodleaves"
    "|rangesofleasesarebounded|debtsarebounded)"
)
# A program under the race detector waits a second at its end, for other threads to report. Tests have hundreds of them.
PROMPT = {"GORACE": "atexit_sleep_ms=50"}
# Variants of a transport, another memory or path, run the conformance suite in part; with this, they run all of it.
# Tests of random moments, in which processes are killed and stopped, go on for three times as long.
VARIANTS = {"TENT_CONFORMANCE": "all"}

SERVICES = ROOT / "tests" / "services"  # a module by itself


@dataclass
class Context:
    """The stages share the Pythons, and the wheel that every one of them gets."""

    seeds: int
    pythons: dict[str, str]  # version to command, oldest first
    main: str  # the version that runs everything
    wheel: Path | None = None
    everything: bool = False  # make test-all
    missing: dict[str, Exception] = field(default_factory=dict)  # stages that could not be prepared

    def python(self, version: str) -> Path:
        return ROOT / f".venv-{version}" / "bin" / "python"

    def others(self) -> list[str]:
        return [version for version in self.pythons if version != self.main]


@dataclass(frozen=True)
class Stage:
    """One line of the table."""

    run: Callable[[Runner, Context], Tally]
    budget: float
    lane: str = FRONT
    needs_wheel: bool = False

    def lane_of(self, ctx: Context) -> str:
        """Its lane in this run: the stages of SIDE are long in `make test-all`, and take turns with those of FRONT."""
        return FRONT if ctx.everything and self.lane == SIDE else self.lane

    @property
    def about(self) -> str:
        return (self.run.__doc__ or "").strip()


def unit(r: Runner, ctx: Context) -> Tally:
    """Go unit tests of the core"""
    skip = [] if ctx.everything else [f"-skip={MODELS}"]  # the simulation has them
    return r.go_test(["./gocore/...", "./pybind/...", "./tests/bench/..."], WAITING, *skip, timeout=900)


def conformance(r: Runner, ctx: Context) -> Tally:
    """transports: conformance suite and their own tests"""
    skip = f"-skip={DECLARATIONS}"  # the stage cuda has them
    return r.go_test(["./transports/..."], WAITING, skip, timeout=900, **(VARIANTS if ctx.everything else {}))


def crossing(r: Runner, ctx: Context) -> Tally:
    """architecture, and tests that cross packages"""
    extent = VARIANTS if ctx.everything else {}
    return r.go_test(["./tests/go/..."], WAITING, f"-skip={SIMULATIONS}", timeout=900, **extent)


def security(r: Runner, ctx: Context) -> Tally:
    """attacks on whole engines: liars, listeners, floods, and another user of the host"""
    return r.go_test(["./tests/security"], timeout=600, **(VARIANTS if ctx.everything else {}))


def simulation(r: Runner, ctx: Context) -> Tally:
    """seeded simulation, --seeds runs of the model and of whole engines, with the core's invariants checked"""
    limit = max(900, ctx.seeds // 5)
    return r.go_test(SIMULATED, INVARIANTS, f"-run={SIMULATIONS}", timeout=limit, TENT_SIM_SEEDS=str(ctx.seeds))


def concurrent(tops: tuple[str, ...]) -> Iterator[str]:
    """The packages below some folders that start goroutines, in their code or in their tests."""
    starts = re.compile(r"^\s*(?:defer )?go (?:func\b|[\w.\[\]]+\()|\.Go\(|t\.Parallel\(", re.M)
    for top in tops:
        for folder in sorted({path.parent for path in (ROOT / top).rglob("*_test.go")}):
            if any(starts.search(path.read_text(encoding="utf-8")) for path in folder.glob("*.go")):
                yield f"./{folder.relative_to(ROOT)}"


def racing(ctx: Context) -> list[str]:
    """The packages that run under the race detector."""
    if ctx.everything:
        return ["./gocore/...", "./transports/...", "./tests/go/..."]
    # Below tests/go are processes beside processes, of which the detector sees one at a time.
    return [*concurrent(("gocore", "transports")), "./tests/go"]


def race(r: Runner, ctx: Context) -> Tally:
    """the race detector over the packages that start goroutines, short"""
    if ctx.everything:
        return r.go_test(racing(ctx), "-race", f"-skip={NOT_UNDER_RACE}", timeout=1500, **VARIANTS, **PROMPT)
    skip = f"-skip={NOT_UNDER_RACE}|{LONG_UNDER_RACE}"
    return r.go_test(racing(ctx), "-race", "-short", skip, timeout=900, **PROMPT)


def marked(name: str) -> list[str]:
    """The files of Python tests that use a mark: the others would be read only to be left out."""
    files = sorted((ROOT / "tests" / "py").glob("test_*.py"))
    return [str(f) for f in files if f"mark.{name}" in f.read_text(encoding="utf-8")]


def others(*names: str) -> list[str]:
    """The files of Python tests, without those in which each test has one of the marks."""
    whole = re.compile(rf"^pytestmark = pytest\.mark\.(?:{'|'.join(names)})\b", re.M)
    files = sorted((ROOT / "tests" / "py").glob("test_*.py"))
    return [str(f) for f in files if not whole.search(f.read_text(encoding="utf-8"))]


def python(r: Runner, ctx: Context) -> Tally:
    """the wheel and the full Python suite, on this interpreter"""
    churn = {"TENT_CHURN": "1000"} if ctx.everything else {}
    python, brief = ctx.python(ctx.main), "" if ctx.everything else " and not long"
    marks, files = f"not adapters and not clock{brief}", others("adapters", "clock")
    tally = r.pytest(python, *BESIDE, "-m", marks, timeout=1200, suite=files, **churn)
    tally.add(r.pytest(python, "-m", "clock", timeout=600, suite=marked("clock"), **churn))
    return tally


def adapters(r: Runner, ctx: Context) -> Tally:
    """tent in the place of NIXL and Mooncake: the calls that stacks make"""
    return r.pytest(ctx.python(ctx.main), *BESIDE_SHORT, "-m", "adapters", timeout=300, suite=marked("adapters"))


def pythons(r: Runner, ctx: Context) -> Tally:
    """the same wheel on every other interpreter: the tests of the border to it"""
    total = Tally()
    marks, files = "interpreter and not slow", marked("interpreter")
    if ctx.everything:
        marks, files = "not slow and not clock", others("clock")
    runners = {version: r.beside(version) for version in ctx.others()}

    def suite(version: str) -> Tally:
        return runners[version].pytest(ctx.python(version), "-m", marks, timeout=900, suite=files)

    with ThreadPoolExecutor() as pool:  # most of these tests wait
        for version, tally in zip(runners, pool.map(suite, runners)):
            total.add(tally)
            if tally.failed or tally.unsteady:
                runners[version].show()
    return total


def typing(r: Runner, ctx: Context) -> Tally:
    """mypy --strict over the package, the tools, the examples and the benchmark"""
    programs = [
        p for top in ("tools", "docs/examples", "tests/bench", "tests/tools") for p in sorted((ROOT / top).glob("*.py"))
    ]
    return r.ok(ctx.python(ctx.main), "-m", "mypy", "--strict", "tent", *programs, timeout=900)


def tools(r: Runner, ctx: Context) -> Tally:
    """the tools and the Makefile"""
    return r.pytest(interpreters.tools_python(), timeout=900, suite=["tests/tools"])


def linters(r: Runner, ctx: Context) -> Tally:
    """gofmt, go vet, staticcheck, errcheck, misspell, govulncheck, ruff"""
    tally = Tally()
    for name in lint.LINTERS:
        tally.add(r.ok(sys.executable, "tools/lint.py", "--built", name, timeout=900))
    return tally


def wheel(r: Runner, ctx: Context) -> Tally:
    """the wheel's tag, by auditwheel; install and import on every interpreter"""
    assert ctx.wheel is not None
    tally = r.ok(sys.executable, "tools/wheels.py", "audit", ctx.wheel, timeout=300)
    for version in ctx.pythons:
        tally.add(r.ok(ctx.python(version), "-I", "-c", wheels.PROOF, timeout=300))
    return tally


def rdma(r: Runner, ctx: Context) -> Tally:
    """queue pairs of Soft-RoCE in a guest: bytes over 2 and 4 rails, faults under engines, the transport's suite"""
    limit, extent = (1800, {"TENT_ROCE": "all"}) if ctx.everything else (600, {})
    launcher = guest.launcher(rails=4, limit=limit)
    tally = r.go_test(["./tests/roce/..."], "-p=1", f"-exec={launcher}", timeout=3 * limit, **extent)
    launcher = guest.launcher(rails=2, limit=600)
    tally.add(r.go_test(["./transports/rdma"], "-p=1", "-run=OnDevices", f"-exec={launcher}", timeout=900))
    return tally


def cuda(r: Runner, ctx: Context) -> Tally:
    """our declarations of the CUDA driver's API, beside NVIDIA's own headers of CUDA 12 and 13"""
    return r.go_test(["./transports/cuda/driver"], f"-run={DECLARATIONS}", timeout=300)


def capi(r: Runner, ctx: Context) -> Tally:
    """the C library: its examples in C and C++, plainly and under sanitizers"""
    return r.ok(sys.executable, "tools/build_capi.py", "--check", timeout=900)


def arm64(r: Runner, ctx: Context) -> Tally:
    """for ARM hosts, under qemu-user: the wheel, and the Go suite"""
    tally = r.ok(sys.executable, "tools/arm64.py", "wheel", timeout=900)
    tally.add(r.ok(sys.executable, "tools/arm64.py", "suite", timeout=900))
    return tally


def repeat(r: Runner, ctx: Context) -> Tally:
    """tests that depend on the scheduler, ten times: engines that close, cancel, fail over and share"""
    return r.go_test(["./tests/go/...", "./gocore/engine"], "-count=10", f"-skip={SIMULATIONS}", timeout=3000)


def churn(r: Runner, ctx: Context) -> Tally:
    """100,000 peers and files, and 1000 engines, opened and closed one after the other, leave nothing behind"""
    return r.go_test(["./tests/go"], "-run=OneAfterTheOther|ThousandCycles", timeout=1500, TENT_CHURN="100000")


def pauses(r: Runner, ctx: Context) -> Tally:
    """peers that stand still for 1, 5 and 20 seconds, and links that are down for 10: each transfer waits"""
    packages, chosen = ["./tests/go/pause", "./tests/go/netns"], "-run=Pause|ForSeconds"
    return r.go_test(packages, chosen, timeout=900, TENT_PAUSES="all")


def services(r: Runner, ctx: Context) -> Tally:
    """names in real metadata services: etcd, Redis and HTTP, by TLS, stopped, killed and wiped"""
    return r.inside(SERVICES).go_test(["./..."], timeout=600)


def worlds(r: Runner, ctx: Context) -> Tally:
    """all orders in which threads can take turns around a TCP lane, with the flaws that must be found"""
    return r.go_test(["./transports/tcp"], "-run=ModelOfALane", timeout=600, TENT_WORLDS="all")


def cufile(r: Runner, ctx: Context) -> Tally:
    """GPUDirect Storage by NVIDIA's own libcufile over the emulated driver; skipped where its wheel cannot be had"""
    try:
        (library,) = nvidia.CUFILE.fetch()
    except OSError as error:
        return Tally(skipped=1, reasons={f"no libcufile of NVIDIA: {error}": 1})
    named = {"TENT_REAL_LIBCUFILE": str(library)}
    return r.go_test(["./transports/cuda/gds"], "-run=RealLibrary", timeout=600, **VARIANTS, **named)


def kernel(r: Runner, ctx: Context) -> Tally:
    """NVIDIA's compiler makes the kernel of GPUs of its source again; skipped where its wheel cannot be had"""
    try:
        nvidia.COMPILER.fetch()
    except OSError as error:
        return Tally(skipped=1, reasons={f"no {nvidia.COMPILER.name} of NVIDIA: {error}": 1})
    return r.ok(sys.executable, "tools/ptx.py", "--check", timeout=120)


def docs(r: Runner, ctx: Context) -> Tally:
    """the site, strictly, with the code of every page and every notebook run"""
    return r.ok(ctx.python(ctx.main), "tools/docs.py", timeout=900)


def torch(r: Runner, ctx: Context) -> Tally:
    """tests, pages and notebooks with a real torch, in an environment that has one"""
    python = interpreters.torch_python(TEST_TOOLS)
    assert ctx.wheel is not None
    site = interpreters.beside(python, ctx.wheel, "torch-site")
    return r.pytest(python, "-k", "torch", timeout=900, PYTHONPATH=str(site))


def clients(r: Runner, ctx: Context) -> Tally:
    """real stacks over tent, and over the engines that they come with"""
    python = interpreters.clients_python(TEST_TOOLS)
    assert ctx.wheel is not None
    site = interpreters.beside(python, ctx.wheel, "clients-site")
    return r.pytest(python, timeout=5400, suite=["tests/clients"], PYTHONPATH=str(site))


def fuzz(r: Runner, ctx: Context) -> Tally:
    """every fuzz target, ten seconds each"""
    return r.ok(sys.executable, "tools/fuzz.py", "--time=10s", timeout=1800)


def mutants(r: Runner, ctx: Context) -> Tally:
    """dangerous changes by hand, each with the tests that must notice it: at least 95 % do"""
    return r.ok(sys.executable, "tools/mutants.py", "--python", ctx.python(ctx.main), timeout=7200)


# Order matters: the stage that finds most mistakes of a day's work comes first.
STAGES: dict[str, Stage] = {
    "lint": Stage(linters, 45, BACK),
    "unit": Stage(unit, 60, SIDE),
    "typing": Stage(typing, 50, BACK),
    "tools": Stage(tools, 180, BACK),
    "conformance": Stage(conformance, 250),
    "simulation": Stage(simulation, 80, BACK),
    "crossing": Stage(crossing, 120),
    "security": Stage(security, 80),
    "rdma": Stage(rdma, 130, BACK),
    "cuda": Stage(cuda, 7, BACK),
    "capi": Stage(capi, 50, BACK),
    "wheel": Stage(wheel, 20, BACK, needs_wheel=True),
    "python": Stage(python, 330, needs_wheel=True),
    "pythons": Stage(pythons, 150, SIDE, needs_wheel=True),
    "adapters": Stage(adapters, 75, SIDE, needs_wheel=True),
    "race": Stage(race, 330, BACK),
    "arm64": Stage(arm64, 150),
    "churn": Stage(churn, 400),
    "pauses": Stage(pauses, 250),
    "services": Stage(services, 45),
    "worlds": Stage(worlds, 70),
    "cufile": Stage(cufile, 120),
    "kernel": Stage(kernel, 60),
    "docs": Stage(docs, 80, needs_wheel=True),
    "fuzz": Stage(fuzz, 100),
    "mutants": Stage(mutants, 200, needs_wheel=True),
    "repeat": Stage(repeat, 200),
    "torch": Stage(torch, 60, needs_wheel=True),
    "clients": Stage(clients, 1200, needs_wheel=True),
}
# The stages of make test-all.
LONG_ALONE = ("clients", "cufile", "docs", "kernel", "services", "torch")  # other programs and libraries
LONG = ("arm64", "churn", "pauses", "fuzz", "mutants", "repeat", "worlds", *LONG_ALONE)
# In `make test-all` a stage also does more, ten thousand seeds, every Python test on every interpreter, and the race
# detector over every package without -short: so its budget is multiplied.
ALL_FACTOR = 6
# Stages that are to come have their budgets already: one of these names is added to the table with its number.
COMING = {"plugins": 30, "ground": 20}
