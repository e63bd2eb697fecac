"""Commands of a stage: run to their end, with a limit of time, and counted by the JUnit report that they leave."""

from __future__ import annotations

import copy
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import build_gotent
import second_look

ROOT = build_gotent.ROOT
LOGS = ROOT / "build" / "check"
SKIPPED = 77  # automake's exit status for a check that cannot be made here
BIN = ROOT / "build" / "bin"  # the programs of tools/go.mod
# Flags of every `go test`: lint vets, and a program without its symbols is linked in half of the time. Tests that call
# t.Parallel wait for other processes and for limits of time, so there may be more of them than processors.
GO_TEST = ("-count=1", "-vet=off", "-parallel=6", f"-ldflags={build_gotent.LINKNAME} -s -w")


@dataclass
class Tally:
    """Tests that passed, failed and were skipped, with the reasons. A check without tests of its own counts as one."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    not_run: list[str] = field(default_factory=list)  # stages that this machine cannot run, by the reason
    unsteady: list[str] = field(default_factory=list)  # tests that failed once, and passed at their second look

    def add(self, other: Tally) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        for reason, n in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + n
        self.not_run += other.not_run
        self.unsteady += other.unsteady

    def forgive(self, tests: list[str], again: Tally) -> None:
        """Counts tests that failed as passed, if their second look went well."""
        if again.passed and not again.failed:
            self.passed, self.failed, self.unsteady = self.passed + self.failed, 0, [*self.unsteady, *tests]

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        not_run = "".join(f"; not run: {reason}" for reason in self.not_run)
        return f"{self.passed} passed, {self.failed} failed{skipped}{not_run}"


def single(ok: bool) -> Tally:
    return Tally(passed=int(ok), failed=int(not ok))


def read_report(report: Path, code: int) -> Tally:
    """The numbers of a JUnit report. A command that failed without a failed test, or left no report, is one failure."""
    tally = Tally()
    if report.exists():
        for case in xml.parse(report).getroot().iter("testcase"):
            skip = case.find("skipped")
            if skip is not None:
                tally.add(Tally(skipped=1, reasons={reason(skip): 1}))
            else:
                ok = case.find("failure") is None and case.find("error") is None
                tally.add(single(ok))
    if code != 0 and tally.failed == 0:
        tally.failed = 1
    return tally


def reason(skip: xml.Element) -> str:
    """Why a test was skipped: pytest's message, or the line of a Go test's output that names its file."""
    lines = [line.strip() for line in (skip.get("message") or skip.text or "").splitlines()]
    return next((line for line in lines if ".go:" in line), lines[0] if lines else "no reason given")


SHOWN = 4 << 20  # bytes of a log: one that a loop has written would fill the disk once more
LINE = 100  # bytes of its last line


def end_all() -> None:
    """Ends every command that runs, with all that it has started, also one that a thread has begun just now."""
    for child in children().get(os.getpid(), []):
        end_tree(child)


def children() -> dict[int, list[int]]:
    """The processes that run, by their parents."""
    found: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = status.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                found.setdefault(int(parent), []).append(int(status.parent.name))
    return found


def end_tree(root: int) -> None:
    """Ends a process and all that it has started, in other sessions too: a suite that is killed ends no server. All of
    them are stopped first, so that none begins another one meanwhile."""
    tree: list[int] = []
    found = [root]
    while found:
        for process in found:
            with suppress(OSError):
                os.kill(process, signal.SIGSTOP)
        tree += found
        listed = children()
        found = [child for parent in tree for child in listed.get(parent, []) if child not in tree]
    for process in tree:
        for end in (os.kill, os.killpg):  # the others of its group may have lost their parent
            with suppress(OSError):
                end(process, signal.SIGKILL)


class MissingError(RuntimeError):
    """Something that this machine lacks, with the command that brings it."""


class Runner:
    """Runs the commands of one stage; their output goes into build/check/STAGE.log."""

    def __init__(self, name: str, go: str, env: dict[str, str], niceness: int = 0) -> None:
        self.name = name
        self.go = go
        self.env = env
        self.niceness = niceness
        self.folder = ROOT
        LOGS.mkdir(parents=True, exist_ok=True)
        self.log = LOGS / f"{name}.log"
        self.log.write_bytes(b"")

    def beside(self, name: str) -> Runner:
        """A runner with a log of its own, for commands that run beside these."""
        return Runner(f"{self.name}-{name}", self.go, self.env, self.niceness)

    def inside(self, folder: Path) -> Runner:
        """This runner, with commands that run in a folder."""
        other = copy.copy(self)
        other.folder = folder
        return other

    def run(self, *command: object, timeout: float, **env: str) -> int:
        """Runs a command to its end; 124 when its time is over. Nothing of it is left running."""
        words = [str(c) for c in command]
        if self.niceness:
            words = ["nice", "-n", str(self.niceness), *words]
        with self.log.open("ab") as log:
            log.write(f"$ {shlex.join(words)}\n".encode())
            log.flush()
            process = subprocess.Popen(
                words,
                cwd=self.folder,
                env={**self.env, **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return process.wait(timeout)
            except subprocess.TimeoutExpired:
                log.write(f"it did not end within {timeout:.0f} s\n".encode())
                return 124
            finally:
                end_group(process)

    def ok(self, *command: object, timeout: float, **env: str) -> Tally:
        """A command that is one check; one that exits with SKIPPED was skipped, by the reason in its last line."""
        code = self.run(*command, timeout=timeout, **env)
        if code == SKIPPED:
            return Tally(skipped=1, reasons={self.log.read_text(encoding="utf-8").rstrip().rsplit("\n", 1)[-1]: 1})
        return single(code == 0)

    def go_test(self, packages: Iterable[str], *flags: str, timeout: int, **env: str) -> Tally:
        """go test over packages, by gotestsum."""

        def run(report: Path, *chosen: str) -> Tally:
            options = ("--format=pkgname", "--format-hide-empty-pkg", "--hide-summary=skipped", f"--junitfile={report}")
            words = (*GO_TEST, f"-timeout={timeout}s", *flags, *chosen)
            code = self.run(BIN / "gotestsum", *options, "--", *words, timeout=timeout + 60, **env)
            return read_report(report, code)

        with report_file() as report:
            tally, cases = run(report, *packages), second_look.failed(report)
            if len(cases) == tally.failed and second_look.worth(cases):
                again = run(report.with_name("again.xml"), *second_look.go_words(cases))
                tally.forgive([name for name, _ in sorted(second_look.tops(cases))], again)
            return tally

    def pytest(
        self, python: Path, *flags: str, timeout: float, suite: Iterable[str] = ("tests/py",), **env: str
    ) -> Tally:
        """One run of a suite. The script, unlike `python -m pytest`, does not put the source tree on sys.path."""

        def run(report: Path, *words: str) -> Tally:
            # A folder of its own for temporary files: pytests that run beside each other tidy up the usual one.
            own = (f"--basetemp={report.with_name('temporary')}", "-o", f"cache_dir={report.with_name('cache')}")
            options = ("-q", *own, f"--junitxml={report}")
            return read_report(report, self.run(python.with_name("pytest"), *options, *words, timeout=timeout, **env))

        with report_file() as report:
            tally, cases = run(report, *flags, *suite), second_look.failed(report)
            tests = second_look.pytest_ids(report.with_name("cache"))
            if len(cases) == tally.failed and second_look.same(tests, cases) and second_look.worth(cases):
                again = Tally()
                for _ in range(second_look.TIMES):
                    again.add(run(report.with_name("again.xml"), *tests))
                tally.forgive(tests, again)
            return tally

    def last_line(self) -> str:
        """The last line of the log, which says how far a command has come; "" where there is none yet."""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - LINE))
            lines = log.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def show(self) -> None:
        """Prints the end of the log, as the stage's failure."""
        print(f"----- {self.name}: {self.log.relative_to(ROOT)}", flush=True)
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - SHOWN))
            end = log.read(SHOWN)  # read first: standard output may be this very log
        sys.stdout.buffer.write(end)
        sys.stdout.buffer.flush()
        print(f"----- end of {self.name}", flush=True)


@contextmanager
def report_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tent-report-") as folder:
        yield Path(folder) / "report.xml"


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a command that still runs, and every process of its group that it left behind."""
    if process.poll() is None:
        end_tree(process.pid)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
