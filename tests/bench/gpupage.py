"""The page of results of make check-gpu: checks with their verdicts, and rows, measured or with the reason."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cudadriver import DriverError
from gpuends import EndError
from table import Entry, Table

import tent


class Counted(str):
    """Words of a check that has passed, for its verdict."""

    __slots__ = ()


@dataclass
class Page:
    """The results, for the terminal and the page."""

    checks: list[tuple[str, str]] = field(default_factory=list)
    rows: list[Entry] = field(default_factory=list)
    not_run: list[tuple[str, str]] = field(default_factory=list)
    failed: bool = False

    def check(self, name: str, run: Callable[[], str | None]) -> None:
        """Runs a check; text that it returns is the reason why it cannot be made here, but for Counted."""
        began = time.monotonic()
        try:
            absent = run()
            verdict = f"passed in {time.monotonic() - began:.2f} s"
            if isinstance(absent, Counted):
                verdict += f": {absent}"
            elif absent:
                verdict = f"not here: {absent}"
        except (AssertionError, DriverError, EndError, OSError, subprocess.TimeoutExpired, tent.TentError) as error:
            verdict, self.failed = f"FAILED: {error}", True
        print(f"{name}: {verdict}", flush=True)
        self.checks.append((name, verdict))

    def rates(self, name: str, ours: list[float], theirs: list[float], least: float) -> None:
        """A row of GB/s with the least ratio that is wanted."""
        ratio = statistics.median(a / b for a, b in zip(ours, theirs))
        reached = "yes" if ratio >= least else "no"
        ends = statistics.median(ours), statistics.median(theirs)
        self._row(Entry(name, "GB/s", *ends, ratio, None, f"≥ {least}", reached))

    def times(self, name: str, ours: list[float], theirs: list[float] | None) -> None:
        """A row of seconds, to compare; below 1 tent is faster. None: there is nothing beside it."""
        us = statistics.median(ours) * 1e6
        if theirs is None:
            self._row(Entry(name, "us", us, None, None, None, "", ""))
            return
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        self._row(Entry(name, "us", us, statistics.median(theirs) * 1e6, ratio, None, "", ""))

    def _row(self, row: Entry) -> None:
        print("  ".join(cell for cell in row.cells().values() if cell), flush=True)
        self.rows.append(row)

    def absent(self, name: str, why: str) -> None:
        """A row that cannot be measured here."""
        print(f"{name}: not run: {why}", flush=True)
        self.not_run.append((name, why))

    def markdown(self, machine: str, table: Table) -> str:
        checks = "\n".join(f"| {name} | {verdict} |" for name, verdict in self.checks)
        rows = table.markdown() if self.rows else "Not measured, because a check failed."
        absent = "".join(f"* {name}: not run: {why}\n" for name, why in self.not_run)
        return (
            f"# tent with GPUs\n\n{machine}, {time.strftime('%Y-%m-%d')}\n\n"
            f"| check | verdict |\n| --- | --- |\n{checks}\n\n{rows}\n" + (f"\n{absent}" if absent else "")
        )
