"""A second look at tests that failed in a run of thousands beside each other.

A test that passes three times by itself has most often met a limit of time that a busy machine missed. It does not
fail the run; the run names it and shows its first output, and fails when there are more than a few. Wrong bytes, a
data race, a panic or a crash get no second look: one of these is a finding, however rarely it comes.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as xml
from dataclasses import dataclass
from pathlib import Path

TIMES = 3  # a test passes so often before its first failure is forgiven
MOST = 2  # tests of a whole run
GRAVE = re.compile(
    r"DATA RACE|\bpanic: |fatal error: |SIG(?:SEGV|BUS|ABRT)|crashed while running"  # of Go, of pytest-xdist
    r"|[Ww]rong bytes?\b|[Gg]uard band|\bbytes? \d+ of\b|bytes? wrong"  # of the byte oracles
)


@dataclass(frozen=True)
class Case:
    """A test of a JUnit report that failed, with its output."""

    suite: str  # Go's package
    name: str
    text: str


def failed(report: Path) -> list[Case]:
    """The tests of a report that failed; none where there is no report."""
    found = []
    for case in xml.parse(report).getroot().iter("testcase") if report.exists() else ():
        faults = [*case.findall("failure"), *case.findall("error")]
        if faults:
            text = "\n".join(f"{fault.get('message') or ''}\n{fault.text or ''}" for fault in faults)
            found.append(Case(case.get("classname") or "", case.get("name") or "", text))
    return found


def worth(cases: list[Case]) -> bool:
    """Whether a second look may forgive these failures."""
    return 0 < len({name for name, _ in tops(cases)}) <= MOST and not any(GRAVE.search(case.text) for case in cases)


def tops(cases: list[Case]) -> set[tuple[str, str]]:
    """(test, package) of Go tests, where a part stands for its whole."""
    return {(case.name.split("/")[0], case.suite) for case in cases}


def go_words(cases: list[Case]) -> list[str]:
    """The words after those of the first `go test` that run just these tests."""
    names = sorted({name for name, _ in tops(cases)})
    return [f"-count={TIMES}", f"-run=^({'|'.join(names)})$", *sorted({package for _, package in tops(cases)})]


def pytest_ids(cache: Path) -> list[str]:
    """The ids of the tests that failed, as pytest's cache has them."""
    path = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []


def same(tests: list[str], cases: list[Case]) -> bool:
    """Whether ids and a report speak of as many tests. It has a test twice if the teardown failed too."""
    return len(tests) == len({(case.suite, case.name) for case in cases})
