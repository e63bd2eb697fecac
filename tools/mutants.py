"""make mutants: mutation testing with a kept list. Each entry of tools/mutants/*.txt is one dangerous change, and the
tests that must notice it.

mutants.py                    every mutant, two at a time; fails when fewer than 95 % are killed or an entry is stale
mutants.py --only tcp FENCED  those with one of the words in file or title
mutants.py --check            only that each change still applies and that its tests exist

Go sees a change through `go build -overlay`, Python through a copy of the package: the tree itself is never written.
An entry is a title, the file, the tests, and the change as a diff has it. "@@" begins a further place of the same file:

    ## a second completion of a slice is processed
    gocore/dispatch/complete.go
    by ./gocore/dispatch TestASecondCompletionIsIgnored
    -	if r.ended {
    +	if false {

The old text must be found exactly once. A killer is a package and names of Go tests, or a file of tests/py and words
that pytest's -k takes; several "by" lines are tried in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import build_gotent
import interpreters
from running import end_group

ROOT = build_gotent.ROOT
KEPT = ROOT / "tools" / "mutants"
KILLED_LEAST = 0.95
TEST_LIMIT = 60  # seconds of one test binary: a hanging one is killed, too
BUILD_LIMIT = 300  # seconds more, for a cold cache
NO_TESTS = "[no tests to run]"
PYTEST_NO_TESTS = 5  # its exit status


class Stale(Exception):
    """An entry that does not fit the tree any more, or the list's grammar."""


class Fate(Enum):
    """How a mutant ended."""

    KILLED = "killed"
    SURVIVED = "SURVIVED"
    STALE = "STALE"


@dataclass(frozen=True)
class Killer:
    """A package or a file of tests, and which of them."""

    where: str
    names: str

    @property
    def is_python(self) -> bool:
        return self.where.startswith("tests/py/")


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    group: str  # the list that it is in
    title: str
    file: str
    killers: tuple[Killer, ...]
    places: tuple[tuple[str, str], ...]  # old and new text

    def __str__(self) -> str:
        return f"{self.group}: {self.title}"

    def apply(self, text: str) -> str:
        """The file's text with the change; Stale where an old text is not found exactly once."""
        for old, new in self.places:
            if (found := text.count(old)) != 1:
                raise Stale(f"{self.file} has this {found} times:\n{old}")
            text = text.replace(old, new)
        return text


def read_list(path: Path) -> Iterator[Mutant]:
    """The entries of one list. Lines before the first title are comments."""
    for block in re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.M)[1:]:
        title, *lines = block.rstrip("\n").split("\n")
        yield parse_entry(path.stem, title, lines)


def parse_entry(group: str, title: str, lines: list[str]) -> Mutant:
    head = [line for line in lines if line and line[0] not in "-+ @"]
    change = lines[len(head) :]
    if len(head) < 2 or not all(line.startswith("by ") for line in head[1:]):
        raise Stale(f"{group}: {title}: a file and its killers are due, not {head}")
    killers = tuple(Killer(*line.removeprefix("by ").split(" ", 1)) for line in head[1:])
    places = []
    for hunk in "\n".join(change).rstrip("\n").split("\n@@\n"):
        old = "".join(line[1:] + "\n" for line in hunk.split("\n") if line[:1] in ("-", " "))
        new = "".join(line[1:] + "\n" for line in hunk.split("\n") if line[:1] in ("+", " "))
        if not old or old == new:
            raise Stale(f"{group}: {title}: it changes nothing")
        places.append((old, new))
    return Mutant(group, title, head[0], killers, tuple(places))


def kept() -> list[Mutant]:
    return [mutant for path in sorted(KEPT.glob("*.txt")) for mutant in read_list(path)]


def check(mutant: Mutant) -> None:
    """Raises Stale if the change does not apply, or if a test that it names is not there."""
    mutant.apply((ROOT / mutant.file).read_text(encoding="utf-8"))
    for killer in mutant.killers:
        place = ROOT / killer.where
        files = [place] if killer.is_python else place.glob("*_test.go")
        source = "\n".join(path.read_text(encoding="utf-8") for path in files)
        for name in re.findall(r"\b(?:Test|Fuzz|Example|test_)\w+", killer.names.split("/", 1)[0]):
            if not re.search(rf"\b(?:func|def) {name}", source):
                raise Stale(f"{killer.where} has no test {name}")


@dataclass
class Bench:
    """The tools and the folder for changed files that all runs share."""

    go: str
    env: dict[str, str]
    scratch: Path
    python: Path | None  # an interpreter with tent and pytest
    package: Path | None = None  # of tent, as that interpreter imports it

    def run(self, command: list[str], env: dict[str, str], cwd: Path) -> tuple[int, str]:
        """A command to its end; 124 when its time is over. Nothing of it is left running."""
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=TEST_LIMIT + BUILD_LIMIT)
            return process.returncode, output.decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            return 124, "it did not end"
        finally:
            end_group(process)

    def go_kills(self, mutant: Mutant, killer: Killer, changed: Path) -> tuple[bool, str]:
        overlay = changed.with_suffix(".json")
        overlay.write_text(json.dumps({"Replace": {str(ROOT / mutant.file): str(changed)}}), encoding="utf-8")
        env = dict(self.env, GOFLAGS=f"{self.env['GOFLAGS']} -overlay={overlay}")  # for programs that tests build, too
        flags = ["-count=1", "-failfast", "-vet=off", f"-timeout={TEST_LIMIT}s", f"-run={killer.names}"]
        code, output = self.run([self.go, "test", *flags, killer.where], env, ROOT)
        if "[build failed]" in output or "[setup failed]" in output:
            raise Stale(f"it does not build:\n{output}")
        if code == 0 and NO_TESTS in output:
            raise Stale(f"{killer.where} has no test {killer.names}")
        return code != 0, output

    def python_kills(self, mutant: Mutant, killer: Killer, changed: Path) -> tuple[bool, str]:
        assert self.python is not None and self.package is not None
        tree = Path(tempfile.mkdtemp(prefix=f"{changed.stem}-", dir=changed.parent))  # each killer has its own
        shutil.copytree(self.package, tree / "tent", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        for library in self.package.glob("*.so"):
            (tree / "tent" / library.name).symlink_to(library)
        shutil.copyfile(changed, tree / mutant.file)
        env = dict(self.env, PYTHONPATH=str(tree), PYTHONDONTWRITEBYTECODE="1")
        # The script, unlike `python -m pytest`, does not put the source tree on sys.path.
        pytest = [str(self.python.with_name("pytest")), "-q", "-x", "-p", "no:cacheprovider"]
        where = str(ROOT / killer.where)
        command = [*pytest, f"--timeout={TEST_LIMIT}", "-k", killer.names, where]
        code, output = self.run(command, env, ROOT)
        if code == PYTEST_NO_TESTS:
            raise Stale(f"{killer.where} has no test {killer.names}")
        return code != 0, output

    def judge(self, number: int, mutant: Mutant) -> tuple[Fate, str]:
        """Runs a mutant's killers in turn until one fails."""
        output = ""
        try:
            check(mutant)
            changed = self.scratch / f"{number}{Path(mutant.file).suffix}"
            changed.write_text(mutant.apply((ROOT / mutant.file).read_text(encoding="utf-8")), encoding="utf-8")
            for killer in mutant.killers:
                kills = self.python_kills if killer.is_python else self.go_kills
                killed, output = kills(mutant, killer, changed)
                if killed:
                    return Fate.KILLED, output
            return Fate.SURVIVED, output
        except (Stale, OSError) as error:
            return Fate.STALE, str(error)


@dataclass
class Report:
    """The fates of all mutants that ran."""

    fates: dict[Mutant, tuple[Fate, str]] = field(default_factory=dict)

    def of(self, fate: Fate) -> list[Mutant]:
        return [mutant for mutant, (was, _) in self.fates.items() if was is fate]

    def ok(self) -> bool:
        killed = len(self.of(Fate.KILLED))
        return bool(self.fates) and not self.of(Fate.STALE) and killed >= KILLED_LEAST * len(self.fates)

    def show(self) -> None:
        for fate in (Fate.STALE, Fate.SURVIVED):
            for mutant in self.of(fate):
                print(f"{fate.value} {mutant}\n    {mutant.file}")
                if fate is Fate.STALE:
                    print("    " + self.fates[mutant][1].replace("\n", "\n    "))
        killed, n = len(self.of(Fate.KILLED)), max(1, len(self.fates))
        rest = f"{len(self.of(Fate.SURVIVED))} survived, {len(self.of(Fate.STALE))} stale"
        print(f"{n} mutants: {killed} killed ({100 * killed / n:.1f} %), {rest}")


def run_all(mutants: list[Mutant], bench: Bench, jobs: int, verbose: bool) -> Report:
    report = Report()
    with ThreadPoolExecutor(jobs) as pool:
        begun: dict[Mutant, float] = {}

        def judge(number: int, mutant: Mutant) -> tuple[Fate, str]:
            begun[mutant] = time.monotonic()
            return bench.judge(number, mutant)

        runs = {pool.submit(judge, i, mutant): mutant for i, mutant in enumerate(mutants)}
        for run in as_completed(runs):
            mutant = runs[run]
            report.fates[mutant] = fate, output = run.result()
            took = time.monotonic() - begun[mutant]
            print(f"[{len(report.fates):3}/{len(mutants)}] {took:4.0f} s  {fate.value:8}  {mutant}", flush=True)
            if verbose:
                print(output, flush=True)
    return report


def package_of(python: Path) -> Path:
    """The folder of the package tent that an interpreter imports."""
    found = subprocess.check_output([str(python), "-c", "import tent; print(tent.__path__[0])"], text=True, cwd="/")
    return Path(found.strip())


def choose(words: list[str]) -> list[Mutant]:
    """The mutants of which the list, the file or the title has one of the words, all of them for none."""
    return [m for m in kept() if not words or any(word in f"{m.group}: {m.file} {m.title}" for word in words)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Applies dangerous changes and runs the tests that must notice them.")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="of the list, the file or the title")
    parser.add_argument("--check", action="store_true", help="run nothing: do all changes still apply?")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv" / "bin" / "python", help="with tent and pytest")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--verbose", action="store_true", help="print the output of the tests")
    args = parser.parse_args()
    begun = time.monotonic()
    mutants = choose(args.only)
    if args.check:
        report = Report()
        for mutant in mutants:
            try:
                check(mutant)
                report.fates[mutant] = Fate.KILLED, ""
            except (Stale, OSError) as error:
                report.fates[mutant] = Fate.STALE, str(error)
        report.show() if report.of(Fate.STALE) else print(f"{len(mutants)} mutants apply")
        return int(bool(report.of(Fate.STALE)))
    go = interpreters.go_command()
    env = build_gotent.go_env(go)
    env.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory(prefix="tent-mutants-") as folder:
        bench = Bench(go, env, Path(folder), None)
        if any(killer.is_python for mutant in mutants for killer in mutant.killers):
            bench.python = Path(os.path.abspath(args.python))  # not resolved: a link out of its environment loses it
            bench.package = package_of(bench.python)
        report = run_all(mutants, bench, args.jobs, args.verbose)
    report.show()
    print(f"{time.monotonic() - begun:.0f} s in all")
    return 0 if report.ok() else 1


if __name__ == "__main__":
    sys.exit(main())
