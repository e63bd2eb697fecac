"""make test: every check of the project, with the time of each stage and its budget; ends with one line of totals.

check.py                 everything that a landing must pass: some ten minutes on two quiet processors, warm
check.py --all           make test-all: also the stages that take longer
check.py --only unit ... the stages named
check.py --list          their names, lanes and budgets
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import build_gotent
import guest
import interpreters
import kernel
import lint
import nvidia
import second_look
import wheels
from quiet import Stopwatch
from running import MissingError, Runner, Tally, end_all
from stages import (
    ALL_FACTOR,
    FRONT,
    INVARIANTS,
    LONG,
    NICENESS,
    SERVICES,
    SIMULATED,
    STAGES,
    TEST_TOOLS,
    Context,
    Stage,
    racing,
)

START = time.monotonic()
# Quiet seconds that all stages take, warm: six minutes, and the budgets of RDMA (90), GPUs (45), security (30),
# adapters (20), plug-ins (30) and the ground (20), which came later.
TOTAL = 360 + 235
ROOM = 1.5  # a stage, and all of them, fail beyond this multiple of the time that they usually take
COLD = 480  # cold caches may add this
MINUTE = 60.0  # between two words of a stage that runs
REQUIRE = "REQUIRE"  # names stages that fail where this machine lacks something for them; elsewhere they are not run


def say(text: str) -> None:
    print(f"[{time.monotonic() - START:4.0f} s] {text}", flush=True)


@dataclass
class Result:
    """A stage that has run."""

    tally: Tally
    wall: float
    quiet: float
    budget: float

    def __str__(self) -> str:
        return f"{self.tally} ({self.wall:.0f} s, {self.quiet:.0f} on a quiet machine; budget {self.budget:.0f})"


def prepare_go(r: Runner, names: list[str], ctx: Context) -> None:
    """Compiles everything that the stages link, so that no stage is charged for a cold cache."""
    lint.build_programs(r.go, r.env)
    detected = [["-race", *racing(ctx)]] if "race" in names else []
    for flags in [["./..."], [INVARIANTS, *SIMULATED], *detected]:
        if r.run(r.go, "list", "-export", "-test", "-deps", *flags, timeout=900):
            raise RuntimeError("the tree does not compile")
    if "lint" in names:
        lint.warm(r.go, r.env)


def prepare_pythons(r: Runner, ctx: Context) -> None:
    """The wheel, and an environment of each interpreter with the wheel and the libraries of its tests."""
    if r.run(sys.executable, "tools/wheels.py", "build", timeout=600):
        raise RuntimeError("the wheel could not be built")
    (ctx.wheel,) = wheels.FOLDER.glob("*.whl")
    with zipfile.ZipFile(ctx.wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        key = hashlib.sha256(archive.read(metadata)).hexdigest()
    for version, command in ctx.pythons.items():
        python = interpreters.environment(command, f".venv-{version}")
        main = version == ctx.main
        interpreters.install_once(
            python, *([f"tent-engine[test,notebook] @ {ctx.wheel.as_uri()}"] if main else TEST_TOOLS), key=key
        )
        interpreters.pip_install(python, "--force-reinstall", "--no-deps", str(ctx.wheel))


def prepare_capi(r: Runner) -> None:
    """The C library, which cgo and the linker take half a minute for where a source has changed."""
    if r.run(sys.executable, "tools/build_capi.py", timeout=600):
        raise RuntimeError("the C library does not build")


def prepare_guest(ctx: Context) -> None:
    """The guest of the stage rdma. The error of a guest that cannot be had here is that stage's alone."""
    watch = Stopwatch.start()
    try:
        guest.prepare(say)
    except (MissingError, kernel.KernelError, kernel.LateError, subprocess.SubprocessError) as error:
        ctx.missing["rdma"] = error
    say(f"the guest of rdma is prepared in {watch.wall():.0f} s (with cold caches up to {guest.COLD} more)")


def prepare_headers(ctx: Context) -> None:
    """NVIDIA's headers, for the stage cuda: 6 MB, once."""
    try:
        nvidia.HEADERS.fetch()
    except OSError as error:
        ctx.missing["cuda"] = MissingError(f"no {nvidia.HEADERS.name} of NVIDIA: {error}")


def prepare_services(r: Runner, ctx: Context) -> None:
    """Redis, and the programs of the stage services."""
    try:
        guest.install_packages("services", {"/usr/bin/redis-server": "redis-server"}, r.log)
    except MissingError as error:
        ctx.missing["services"] = error
    if r.inside(SERVICES).run(r.go, "test", "-c", "-o", os.devnull, ".", timeout=900):
        raise RuntimeError("tests/services does not compile")


# By the file of each: the compiler of C++, a counter of system calls, network namespaces, the finder of C libraries.
PROGRAMS = {
    "/usr/bin/g++": "g++",
    "/usr/bin/strace": "strace",
    "/usr/bin/ss": "iproute2",
    "/usr/bin/pkg-config": "pkg-config",
}


def prepare_programs(r: Runner) -> None:
    """Programs that tests call. Those tests say so where one cannot be had."""
    with contextlib.suppress(MissingError):
        guest.install_packages("tests", PROGRAMS, r.log)


def prepare(names: list[str], ctx: Context, go: str, env: dict[str, str]) -> bool:
    """Compiles and installs for all stages, timed apart: with warm caches some seconds, with cold ones minutes."""
    watch = Stopwatch.start()
    with ThreadPoolExecutor() as pool:
        tasks: list[tuple[Runner, Future[object]]] = []

        def begin(name: str, work: Callable[[Runner], object]) -> None:
            runner = Runner(f"prepare-{name}", go, env)
            tasks.append((runner, pool.submit(work, runner)))

        begin("go", lambda r: prepare_go(r, names, ctx))
        if any(STAGES[name].needs_wheel for name in names):
            begin("pythons", lambda r: prepare_pythons(r, ctx))
        if set(names) - {"lint"}:
            begin("programs", prepare_programs)
        if "capi" in names:
            begin("capi", prepare_capi)
        if "rdma" in names:
            begin("guest", lambda r: prepare_guest(ctx))
        if "cuda" in names:
            begin("headers", lambda r: prepare_headers(ctx))
        if "services" in names:
            begin("services", lambda r: prepare_services(r, ctx))
        if "clients" in names:
            begin("clients", lambda r: interpreters.clients_python(TEST_TOOLS))
        if "torch" in names:
            begin("torch", lambda r: interpreters.torch_python(TEST_TOOLS))
    failed = False
    for runner, task in tasks:
        try:
            task.result()
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            runner.show()
            say(f"{runner.name}: {error}")
            failed = True
    say(f"prepared in {watch.wall():.0f} s, {watch.quiet():.0f} on a quiet machine (cold caches: up to {COLD} more)")
    return not failed


@contextlib.contextmanager
def progress(runner: Runner) -> Iterator[None]:
    """Says each minute how far a stage has come."""
    over = threading.Event()

    def tell() -> None:
        while not over.wait(MINUTE):
            say(f"{runner.name} runs: {runner.last_line()}")

    teller = threading.Thread(target=tell)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def run_stage(name: str, stage: Stage, ctx: Context, go: str, env: dict[str, str]) -> Result:
    """One stage. An error in it is one failure, and the next stage runs."""
    runner = Runner(name, go, env, niceness=NICENESS[stage.lane])
    watch = Stopwatch.start()
    try:
        with progress(runner):
            tally = not_run(name, ctx.missing[name]) if name in ctx.missing else stage.run(runner, ctx)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        say(f"{name}: {error}")
        tally = Tally(failed=1)
    result = Result(tally, watch.wall(), watch.quiet(), stage.budget * (ALL_FACTOR if ctx.everything else 1))
    if tally.failed or tally.unsteady:
        runner.show()
    say(f"{name}: {result}")
    return result


def required() -> set[str]:
    """The stages that must run."""
    return set(re.split(r"[ ,]+", os.environ.get(REQUIRE, ""))) - {""}


def not_run(name: str, error: Exception) -> Tally:
    """A stage that could not be prepared: a failure, unless this machine lacks something and may."""
    if not isinstance(error, MissingError):
        raise error
    return Tally(failed=int(name in required()), not_run=[str(error)])


def run_all(names: list[str], ctx: Context, go: str, env: dict[str, str]) -> dict[str, Result]:
    """All lanes, each in its order and beside the others."""
    results: dict[str, Result] = {}

    def run_lane(lane: str) -> None:
        for name in names:
            if STAGES[name].lane_of(ctx) == lane:
                results[name] = run_stage(name, STAGES[name], ctx, go, env)

    beside = [threading.Thread(target=run_lane, args=(lane,)) for lane in NICENESS if lane != FRONT]
    for thread in beside:
        thread.start()
    run_lane(FRONT)
    for thread in beside:
        thread.join()
    return {name: results[name] for name in names if name in results}


def report(results: dict[str, Result], watch: Stopwatch) -> Tally:
    """The table, each reason of a skip once, budgets that were missed, and the total."""
    total = Tally()
    print("\n  stage         wall  quiet budget")
    for name, result in results.items():
        print(f"  {name:12} {result.wall:5.0f}  {result.quiet:5.0f}  {result.budget:5.0f}  {result.tally}")
        total.add(result.tally)
    for reason, n in sorted(total.reasons.items()):
        print(f"  skipped {n} times: {reason}")
    for test in total.unsteady:
        print(f"  unsteady: {test} failed once, and passed {second_look.TIMES} times by itself; its output is above")
    if len(total.unsteady) > second_look.MOST:
        print(f"  more than {second_look.MOST} tests are unsteady")
        total.add(Tally(failed=1))
    late = [name for name, result in results.items() if result.quiet > result.budget]
    for name in late:
        print(f"  {name} is over its budget: make it shorter, or argue for another number in tools/stages.py")
    total.add(Tally(failed=len(late)))
    quiet = watch.quiet()
    print(f"  stages: {watch.wall():.0f} s, {quiet:.0f} on a quiet machine")
    if set(STAGES) - set(LONG) == set(results) and quiet > TOTAL:
        print(f"  all stages together are over their {TOTAL} s, and fail beyond {ROOM * TOTAL:.0f}")
        total.add(Tally(failed=int(quiet > ROOM * TOTAL)))
    return total


def heed_signals() -> None:
    """Heeds SIGINT again, which a shell ignores for a command in the background, and every child inherits that: tests
    that interrupt a child would wait for ever. A run that is stopped leaves no tests behind, of any lane."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def stop(number: int, _: object) -> None:
    """Ends the run and everything that it has started."""
    end_all()
    os._exit(128 + number)  # threads of other lanes would begin their next command


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs tent's checks.")
    parser.add_argument("--only", nargs="+", choices=list(STAGES), metavar="STAGE", help="stages by name")
    parser.add_argument("--all", action="store_true", help="also the stages that take longer")
    parser.add_argument("--seeds", type=int, help="runs of the simulation")
    parser.add_argument("--list", action="store_true", help="name the stages")
    args = parser.parse_args()
    if args.list:
        for name, stage in STAGES.items():
            print(f"{name:12} {stage.lane:5} {stage.budget:4.0f} s  {stage.about}")
        return 0
    heed_signals()
    names = args.only or [name for name in STAGES if args.all or name not in LONG]
    go = interpreters.go_command()
    env = build_gotent.go_env(go)
    env.pop("PYTHONPATH", None)
    main = f"{sys.version_info.major}.{sys.version_info.minor}"
    ctx = Context(args.seeds or (10000 if args.all else 400), interpreters.interpreters(), main, everything=args.all)
    say(f"Go: {go}; Python: {', '.join(ctx.pythons)}, this one is {ctx.main}")
    total = Tally(failed=1)
    if prepare(names, ctx, go, env):
        watch = Stopwatch.start()
        total = report(run_all(names, ctx, go, env), watch)
    print(f"{time.monotonic() - START:.0f} s in all")
    print(total, flush=True)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
