"""Figures of the house, each with its bound: how long, how dense, how said.

    counters.py             a line each: the name, the number, the bound
    counters.py --where Go  the lines that one counter counts
    counters.py --json      for a machine
    counters.py --keep      writes the present density of comments into tools/comment_density.json

A bound is lowered when a number has come down, and never raised without a word of why in the commit.
tests/tools/test_counters.py fails when a number is above its bound.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tree

ROOT = Path(__file__).resolve().parent.parent
DENSITY = ROOT / "tools" / "comment_density.json"
CLAUSE = re.compile(r"\b(who|what|whoever|whose|whatever)\b", re.I)
# A comment of Go up to the end of its line. Text in quotes may hold "//" too; a URL in a string is no comment.
GO_COMMENT = re.compile(r'(?:"(?:[^"\\\n]|\\.)*"|`[^`]*`|\'(?:[^\'\\\n]|\\.)+\')|(?P<comment>//[^\n]*)')
FUNCTION = re.compile(r"^func .*?\{$.*?^\}$", re.M | re.S)


@cache
def files(*patterns: str) -> tuple[str, ...]:
    """Files of the project by git's patterns, those that are generated left out."""
    return tuple(name for name in tree.files(*patterns) if not generated(name))


@cache
def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def generated(name: str) -> bool:
    return "Code generated" in text_of(name)[:400] if name.endswith((".go", ".py", ".pyi", ".h")) else False


def go_comments(text: str) -> Iterator[tuple[int, str]]:
    """(line, comment) of each `//` comment."""
    for found in GO_COMMENT.finditer(text):
        if found["comment"]:
            yield text.count("\n", 0, found.start()) + 1, found["comment"]


def python_comments(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each line of a comment or of a docstring."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                for i, line in enumerate(first.value.value.splitlines()):
                    yield first.lineno + i, line


def clauses(pattern: str, comments: Callable[[str], Iterator[tuple[int, str]]]) -> list[str]:
    """The lines of comments with a word that may begin a clause as a noun. It is crude on purpose: most such lines read
    better without the word, and some are fine."""
    found = []
    for name in files(pattern):
        found += [f"{name}:{at}: {said.strip()}" for at, said in comments(text_of(name)) if CLAUSE.search(said)]
    return sorted(set(found))


def length(name: str) -> list[str]:
    """The lines of one file, numbered."""
    return [f"{name}:{i}" for i, _ in enumerate(text_of(name).splitlines(), 1)] if (ROOT / name).exists() else []


def loop() -> list[str]:
    """The lines of the transport that newcomers copy. Memory of platforms is a file beside it."""
    return length("transports/loop/loop.go")


def long_functions() -> list[str]:
    """Functions of Go with more than 60 lines; tests/go/architecture has the hard bound."""
    found = []
    for name in files("*.go"):
        for function in FUNCTION.finditer(text_of(name)):
            if (lines := function[0].count("\n") + 1) > 60:
                at = text_of(name).count("\n", 0, function.start()) + 1
                found.append(f"{name}:{at}: {lines} lines: {function[0].splitlines()[0]}")
    return found


def rail_booleans() -> list[str]:
    """The booleans in the core's record of a rail. Its lifecycle is one field, life; the others are listed there."""
    struct = re.search(r"^type railState struct \{\n(.*?)^\}", text_of("gocore/dispatch/link.go"), re.M | re.S)
    if struct is None:
        raise LookupError("gocore/dispatch/link.go has no railState any more: count where a rail's record is now")
    return [
        f"gocore/dispatch/link.go: {line.strip()}"
        for line in struct[1].splitlines()
        if re.match(r"\t[\w, ]+ +bool\b", line)
    ]


def packages() -> dict[str, float]:
    """The share of comments in the text of each package, in per cent of its characters without white space. Characters
    are counted and not lines, so that wrapping a line changes nothing."""
    shares = {}
    for folder in sorted({str(Path(name).parent) for name in files("gocore/*.go", "transports/*.go", "pybind/*.go")}):
        said = everything = 0
        for name in files(f"{folder}/*.go"):
            if str(Path(name).parent) == folder and not name.endswith("_test.go"):
                everything += len("".join(text_of(name).split()))
                said += sum(len("".join(c.split())) for _, c in go_comments(text_of(name)))
        if everything:
            shares[folder] = round(100 * said / everything, 1)
    return shares


def thinned() -> list[str]:
    """Packages with comments less than nine tenths as dense as the kept table says: rewritten is not deleted."""
    kept: dict[str, float] = json.loads(DENSITY.read_text(encoding="utf-8"))
    now = packages()
    return [
        f"{folder}: {now[folder]} % now, {was} % kept"
        for folder, was in kept.items()
        if now.get(folder, was) < 0.9 * was
    ]


@dataclass(frozen=True)
class Counter:
    """A list of places and the bound of its length; a counter without a bound is only printed."""

    places: Callable[[], list[str]]
    bound: int | None


COUNTERS: dict[str, Counter] = {
    "who/what lines, Go": Counter(lambda: clauses("*.go", go_comments), 30),
    "who/what lines, Python": Counter(lambda: clauses("*.py", python_comments), 10),
    "README lines": Counter(lambda: length("README.md"), 150),
    "README KB": Counter(lambda: ["README.md"] * (len(text_of("README.md").encode()) // 1024), 12),
    "transports/loop lines": Counter(loop, 300),
    "booleans of a rail": Counter(rail_booleans, 3),
    "packages with fewer comments": Counter(thinned, 0),
    "functions over 60 lines": Counter(long_functions, None),
    "files over 450 lines": Counter(lambda: [f for f in files("*.go", "*.py") if len(length(f)) > 450], None),
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Counts what the house keeps small.")
    parser.add_argument("--where", metavar="NAME", help="show the places of the counters whose name has this in it")
    parser.add_argument("--json", action="store_true", help="numbers as JSON")
    parser.add_argument("--keep", action="store_true", help="write the present density of comments into the kept table")
    args = parser.parse_args()
    if args.keep:
        DENSITY.write_text(json.dumps(packages(), indent=1) + "\n", encoding="utf-8")
    elif args.where:
        print(*(place for name, c in COUNTERS.items() if args.where in name for place in c.places()), sep="\n")
    elif args.json:
        print(json.dumps({name: len(c.places()) for name, c in COUNTERS.items()}, indent=1))
    else:
        for name, counter in COUNTERS.items():
            bound = "" if counter.bound is None else f" of at most {counter.bound}"
            print(f"{name:30} {len(counter.places()):5}{bound}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
