"""make lint: what linters find, each by name.

    lint.py                 all of them
    lint.py ruff gofmt ...  some
    lint.py --quick         those that take a second, over the files that git has staged: what pre-commit runs
    lint.py --count         a line each with the number of findings, and success

The Go programs come from tools/go.mod (built into build/bin), ruff from tools/requirements.txt. The length of Go lines
is a rule of tests/go/architecture, beside those that only this repository has.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import build_gotent
import interpreters
from running import BIN, SKIPPED

ROOT = build_gotent.ROOT
EXCLUDED = ROOT / "tools" / "errcheck.txt"
VULNERABILITIES = "https://vuln.go.dev"

# staticcheck: everything but what asks for other names of things that have theirs from elsewhere: a comment on each
# package (every package has one), its form (tests/go/architecture has rules for it), initialisms (Id is upstream's).
CHECKS = "all,-ST1000,-ST1003,-ST1020,-ST1021,-ST1022"


class SkippedError(Exception):
    """A linter that cannot work here, with the reason."""


def tracked(*patterns: str) -> list[str]:
    """Files of the repository that git knows or would add, and that are there."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    names = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    return [name for name in names if (ROOT / name).exists()]


def go_files(files: list[str] | None) -> list[str]:
    return [f for f in files or tracked("*.go") if f.endswith(".go")]


def lines_of(command: list[str], env: dict[str, str]) -> list[str]:
    """What a command prints, a finding a line; a command that fails and prints nothing is a finding itself."""
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    if done.returncode != 0 and not lines:
        lines = [done.stderr.strip() or f"{command[0]} exits with {done.returncode}"]
    return lines


def gofmt(go: str, env: dict[str, str], files: list[str] | None) -> list[str]:
    """Go's own format"""
    names = go_files(files)
    return lines_of(["gofmt", "-l", *names], env) if names else []


def vet(go: str, env: dict[str, str], files: list[str] | None) -> list[str]:
    """go vet"""
    done = subprocess.run([go, "vet", "./..."], cwd=ROOT, env=env, capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if line and not line.startswith("#")]
    return lines if done.returncode else []


def staticcheck(go: str, env: dict[str, str], files: list[str] | None) -> list[str]:
    """staticcheck: bugs, simplifications, style, and code that nobody uses"""
    found = lines_of([str(BIN / "staticcheck"), "-checks", CHECKS, "./..."], env)
    return [line for line in found if "_cgo_" not in line]  # what cgo generates


def errcheck(go: str, env: dict[str, str], files: list[str] | None) -> list[str]:
    """errcheck: errors that are dropped without saying so, but in tests, whose assertions look at what matters"""
    return lines_of([str(BIN / "errcheck"), "-ignoretests", "-exclude", str(EXCLUDED), "./..."], env)


def misspell(go: str, env: dict[str, str], files: list[str] | None) -> list[str]:
    """misspell over code, comments and documents"""
    names = [f for f in files or tracked() if not f.endswith((".sum", ".svg", ".png", ".json"))]
    return lines_of([str(BIN / "misspell"), *names], env) if names else []


def govulncheck(go: str, env: dict[str, str], files: list[str] | None) -> list[str]:
    """govulncheck, where its data can be reached"""
    done = subprocess.run([str(BIN / "govulncheck"), "./..."], cwd=ROOT, env=env, capture_output=True, text=True)
    if "fetching vulnerabilities" in done.stderr:
        raise SkippedError(f"{VULNERABILITIES} cannot be reached from here")
    found = [line for line in done.stdout.splitlines() if line.startswith("Vulnerability #")]
    return found or ([done.stderr.strip() or done.stdout.strip()] if done.returncode else [])


def ruff(go: str, env: dict[str, str], files: list[str] | None) -> list[str]:
    """ruff check: rules in pyproject.toml"""
    return python_lines("check", "--output-format=concise", "--quiet", files=files, env=env)


def ruff_format(go: str, env: dict[str, str], files: list[str] | None) -> list[str]:
    """ruff format --check"""
    return python_lines("format", "--check", files=files, env=env, start="Would reformat")


def python_lines(*words: str, files: list[str] | None, env: dict[str, str], start: str = "") -> list[str]:
    names = ["."] if files is None else [f for f in files if f.endswith((".py", ".pyi", ".ipynb"))]
    if not names:
        return []
    found = lines_of([str(interpreters.tools_python()), "-m", "ruff", *words, "--force-exclude", *names], env)
    return [line for line in found if line.startswith(start)]


Linter = Callable[[str, dict[str, str], list[str] | None], list[str]]
LINTERS: dict[str, Linter] = {
    "gofmt": gofmt,
    "vet": vet,
    "staticcheck": staticcheck,
    "errcheck": errcheck,
    "misspell": misspell,
    "govulncheck": govulncheck,
    "ruff": ruff,
    "ruff-format": ruff_format,
}
QUICK = ("gofmt", "misspell", "ruff", "ruff-format")


def staged() -> list[str]:
    command = ["git", "diff", "--cached", "--name-only", "--diff-filter=ACMR"]
    return [f for f in subprocess.check_output(command, cwd=ROOT, text=True).splitlines() if Path(ROOT, f).is_file()]


def build_programs(go: str, env: dict[str, str]) -> None:
    """The programs of tools/go.mod, into build/bin; a second when nothing changed."""
    BIN.mkdir(parents=True, exist_ok=True)
    command = [go, "build", "-C", str(ROOT / "tools"), "-o", f"{BIN}{os.sep}", "tool"]
    subprocess.run(command, cwd=ROOT, env=env, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the linters.")
    parser.add_argument("names", nargs="*", metavar="LINTER", help=", ".join(LINTERS))
    parser.add_argument("--quick", action="store_true", help="the quick ones, over what git has staged")
    parser.add_argument("--count", action="store_true", help="print the number of findings of each")
    args = parser.parse_args()
    if wrong := set(args.names) - set(LINTERS):
        parser.error(f"no such linter: {', '.join(sorted(wrong))}; there are {', '.join(LINTERS)}")
    go = interpreters.go_command()
    env = build_gotent.go_env(go)
    build_programs(go, env)
    failed = skipped = False
    for name in args.names or (QUICK if args.quick else LINTERS):
        try:
            found = LINTERS[name](go, env, staged() if args.quick else None)
        except SkippedError as error:
            print(f"{name}: {error}")
            skipped = True
            continue
        if args.count:
            print(f"{name:12} {len(found)}")
            continue
        failed |= bool(found)
        print(*(f"{name}: {line}" for line in found), sep="\n", end="\n" if found else "")
    return 1 if failed else SKIPPED if skipped and len(args.names) == 1 else 0


if __name__ == "__main__":
    sys.exit(main())
