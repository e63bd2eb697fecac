"""make test: every check of the project, one stage after the other, with its time; ends with one line of totals.

check.py                 everything
check.py --only unit ... the stages named
check.py --list          their names
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import build_gotent
import interpreters

ROOT = build_gotent.ROOT
TEST_TOOLS = ("pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6.100")  # the quick suites run without NumPy
SIMULATIONS = "(?i:simul|model)"  # tests whose number of runs is TENT_SIM_SEEDS
# What the race detector's own memory, threads and time would falsify.
NOT_UNDER_RACE = "(?i:simul|model|leavenothingbehind|usesnoprocessor)"
START = time.monotonic()


@dataclass
class Tally:
    """What one stage found. A stage without tests of its own counts as one."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other: Tally) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


def single(ok: bool) -> Tally:
    return Tally(passed=int(ok), failed=int(not ok))


def say(text: str) -> None:
    print(f"[{time.monotonic() - START:4.0f} s] {text}", flush=True)


@dataclass
class Context:
    """What the stages share: commands, and the wheel that every interpreter gets."""

    go: str
    seeds: int
    env: dict[str, str] = field(default_factory=dict)
    pythons: dict[str, str] = field(default_factory=dict)
    wheel: Path | None = None

    @classmethod
    def open(cls, seeds: int) -> Context:
        go = interpreters.go_command()
        env = build_gotent.go_env(go)
        env["PYTHONDONTWRITEBYTECODE"] = "1"
        env.pop("PYTHONPATH", None)
        return cls(go, seeds, env, interpreters.interpreters())

    def main_version(self) -> str:
        return f"{sys.version_info.major}.{sys.version_info.minor}"

    def run(self, *command: object, timeout: float, **env: str) -> int:
        """Runs a command to its end with its output shown; 124 when its time is over. Nothing of it is left running."""
        words = [str(c) for c in command]
        process = subprocess.Popen(words, cwd=ROOT, env={**self.env, **env}, start_new_session=True)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            say(f"`{' '.join(words[:4])} ...` did not end within {timeout:.0f} s")
            return 124
        finally:
            end_group(process)

    def get_wheel(self) -> Path:
        """One wheel for all interpreters, made from an sdist and in isolation, as pip makes it for users."""
        if self.wheel is None:
            folder = ROOT / "build" / "wheel"
            shutil.rmtree(folder, ignore_errors=True)
            python = interpreters.environment(sys.executable, ".venv-build")
            interpreters.pip_install(python, "build>=1.2")
            if self.run(python, "-m", "build", "--outdir", folder, ".", timeout=400, PYTHONUNBUFFERED="1"):
                raise RuntimeError("the wheel could not be built")
            (self.wheel,) = folder.glob("*.whl")
        return self.wheel


def end_group(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Ends what a command left behind, and itself if it still runs."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def go_test(ctx: Context, patterns: Iterable[str], *flags: str, timeout: int, **env: str) -> Tally:
    """go test over packages: a line a package, the output of what failed, and the number of tests."""
    command = [ctx.go, "test", "-json", "-count=1", f"-timeout={timeout}s", *flags, *patterns]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**ctx.env, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    tally = Tally()
    output: dict[str, list[str]] = {}
    counted: dict[str, int] = {}
    assert process.stdout is not None
    try:
        for line in process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                print(line, end="", flush=True)  # the go command itself has something to say
                continue
            on_go_event(event, tally, output, counted)
        if process.wait() != 0 and tally.failed == 0:
            tally.failed += 1
    finally:
        end_group(process)
    return tally


SKIPPED = ""  # under which on_go_event's output keeps the reasons that were told


def tell_skip(text: list[str], told: list[str]) -> None:
    """Says why a test was skipped, each reason once: "netns_test.go:44: no network test bed here: it needs root"."""
    for line in text:
        reason = line.strip()
        if line.startswith(" ") and ".go:" in reason and reason not in told:
            told.append(reason)
            say(f"  skipped: {reason}")


def on_go_event(event: dict[str, str], tally: Tally, output: dict[str, list[str]], counted: dict[str, int]) -> None:
    """One event of `go test -json`. Output is kept per test and shown only when it failed."""
    action, test = event["Action"], event.get("Test", "")
    package = event.get("Package") or event.get("ImportPath", "")
    key = f"{package}\0{test}"
    if action in ("output", "build-output"):
        output.setdefault(key, []).append(event["Output"])
    elif action == "build-fail":
        print("".join(output.pop(key, [])), end="", flush=True)
    elif action in ("pass", "fail", "skip"):
        text = output.pop(key, [])
        if action == "fail":
            print("".join(text), end="", flush=True)
        if test and action == "skip":
            tell_skip(text, output.setdefault(SKIPPED, []))
        if test:
            tally.add(Tally(passed=int(action == "pass"), failed=int(action == "fail"), skipped=int(action == "skip")))
            counted[package] = counted.get(package, 0) + 1
            return
        if action == "fail" and not counted.get(package):
            tally.failed += 1  # it did not build, or ended before its first test
        short = package.removeprefix(build_gotent.MODULE + "/")
        if action != "skip":
            word = "ok  " if action == "pass" else "FAIL"
            say(f"  {word} {short} ({counted.get(package, 0)} tests, {event.get('Elapsed', 0):.1f} s)")


def stage_format(ctx: Context) -> Tally:
    """gofmt -l"""
    tops = [t for t in ("gocore", "transports", "pybind", "internal", "tests") if (ROOT / t).exists()]
    gofmt = Path(subprocess.check_output([ctx.go, "env", "GOROOT"], env=ctx.env, text=True).strip()) / "bin" / "gofmt"
    wrong = subprocess.check_output([gofmt, "-l", *tops], cwd=ROOT, env=ctx.env, text=True)
    print(wrong, end="")
    return single(not wrong)


def stage_vet(ctx: Context) -> Tally:
    """go vet, and go.mod is tidy enough to build"""
    return single(ctx.run(ctx.go, "vet", "./...", timeout=300) == 0)


def stage_unit(ctx: Context) -> Tally:
    """Go unit tests of the core"""
    return go_test(ctx, ["./gocore/...", "./pybind/..."], timeout=300)


def stage_conformance(ctx: Context) -> Tally:
    """transports: conformance suite and their own tests"""
    return go_test(ctx, ["./transports/..."], timeout=480)


def stage_crossing(ctx: Context) -> Tally:
    """architecture and what crosses packages"""
    return go_test(ctx, ["./tests/go/..."], f"-skip={SIMULATIONS}", timeout=480)


def stage_simulation(ctx: Context) -> Tally:
    """seeded simulation, --seeds runs"""
    packages = ["./gocore/dispatch/...", "./tests/go/...", "./transports/sim/..."]
    return go_test(
        ctx, packages, f"-run={SIMULATIONS}", timeout=max(120, ctx.seeds // 20), TENT_SIM_SEEDS=str(ctx.seeds)
    )


def stage_race(ctx: Context) -> Tally:
    """the race detector over core, transports and whole engines, short"""
    packages = ["./gocore/...", "./transports/...", "./tests/go"]
    return go_test(ctx, packages, "-race", "-short", f"-skip={NOT_UNDER_RACE}", timeout=600)


def pytest(ctx: Context, python: Path, *flags: str, timeout: float, suite: str = "tests/py") -> Tally:
    """One run of a suite, tests/py against the installed wheel; the numbers come from its report."""
    with tempfile.TemporaryDirectory(prefix="tent-test-") as folder:
        report = Path(folder) / "report.xml"
        script = python.with_name("pytest")  # unlike `python -m pytest`, it does not put the source tree on sys.path
        code = ctx.run(script, "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *flags, suite, timeout=timeout)
        if not report.exists():
            return Tally(failed=1)
        found = next(xml.parse(report).getroot().iter("testsuite"))
        total, skipped = int(found.get("tests", "0")), int(found.get("skipped", "0"))
        failed = int(found.get("failures", "0")) + int(found.get("errors", "0"))
        if code not in (0, 1) and failed == 0:
            failed = 1
        return Tally(max(0, total - failed - skipped), failed, skipped)


def stage_python(ctx: Context) -> Tally:
    """the wheel and the full Python suite, on this interpreter"""
    python = interpreters.environment(sys.executable, f".venv-{ctx.main_version()}")
    interpreters.pip_install(python, "--force-reinstall", "--no-deps", str(ctx.get_wheel()))
    interpreters.pip_install(python, f"tent[test,notebook] @ {ctx.get_wheel().as_uri()}")
    return pytest(ctx, python, timeout=900)


def stage_pythons(ctx: Context) -> Tally:
    """the same wheel on every other interpreter: the tests of the border to it"""
    tally = Tally()
    for version, command in ctx.pythons.items():
        if version == ctx.main_version():
            continue
        python = interpreters.environment(command, f".venv-{version}")
        interpreters.pip_install(python, "--force-reinstall", "--no-deps", str(ctx.get_wheel()))
        interpreters.pip_install(python, *TEST_TOOLS)
        result = pytest(ctx, python, "-m", "interpreter and not slow", timeout=600)
        say(f"  Python {version}: {result}")
        tally.add(result)
    return tally


def stage_typing(ctx: Context) -> Tally:
    """mypy --strict over the package, the tools, the examples and the benchmark"""
    python = interpreters.environment(sys.executable, f".venv-{ctx.main_version()}")
    interpreters.pip_install(python, f"tent[test] @ {ctx.get_wheel().as_uri()}")
    programs = [
        p.relative_to(ROOT)
        for folder in ("tools", "docs/examples", "tests/bench")
        for p in sorted((ROOT / folder).glob("*.py"))
    ]
    code = ctx.run(python, "-m", "mypy", "--strict", "tent", *programs, timeout=240)
    return single(code == 0)


def stage_tools(ctx: Context) -> Tally:
    """the tools and the Makefile"""
    python = interpreters.environment(sys.executable, ".venv-tools")
    interpreters.pip_install(python, *TEST_TOOLS)
    return pytest(ctx, python, timeout=120, suite="tests/tools")


def stage_capi(ctx: Context) -> Tally:
    """the C library: its examples in C and C++, plainly and under sanitizers"""
    return single(ctx.run(sys.executable, "tools/build_capi.py", "--check", timeout=400) == 0)


STAGES: dict[str, Callable[[Context], Tally]] = {
    "format": stage_format,
    "vet": stage_vet,
    "tools": stage_tools,
    "unit": stage_unit,
    "conformance": stage_conformance,
    "crossing": stage_crossing,
    "simulation": stage_simulation,
    "python": stage_python,
    "pythons": stage_pythons,
    "typing": stage_typing,
    "capi": stage_capi,
    "race": stage_race,
}


def run_stage(name: str, ctx: Context) -> Tally:
    """One stage; whatever goes wrong in it is one failure and the next stage runs."""
    begin = time.monotonic()
    say(f"{name}: {(STAGES[name].__doc__ or '').strip()}")
    try:
        tally = STAGES[name](ctx)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        print(f"{name}: {error}", flush=True)
        tally = Tally(failed=1)
    say(f"{name}: {tally} ({time.monotonic() - begin:.0f} s)")
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs tent's checks.")
    parser.add_argument("--only", nargs="+", choices=list(STAGES), default=list(STAGES), metavar="STAGE")
    parser.add_argument("--seeds", type=int, default=3000, help="runs of the simulation")
    parser.add_argument("--list", action="store_true", help="name the stages")
    args = parser.parse_args()
    if args.list:
        for name, stage in STAGES.items():
            print(f"{name:12} {stage.__doc__}")
        return 0
    ctx = Context.open(args.seeds)
    say(f"Go: {ctx.go}; Python: {', '.join(ctx.pythons)}, this one is {ctx.main_version()}")
    results = {name: run_stage(name, ctx) for name in args.only}
    total = Tally()
    for name, tally in results.items():
        print(f"  {name:12} {tally}")
        total.add(tally)
    print(f"{total} in {time.monotonic() - START:.0f} s", flush=True)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
