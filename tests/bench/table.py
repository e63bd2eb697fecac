"""A table of measured rows: its JSON form, the source of the performance page, and its columns for a terminal."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

STEPS = {"ns": ("ns", 1.0), "us": ("ns", 1e3)}  # units that are shown in whichever of ns, µs, ms and s is readable


@dataclass(frozen=True)
class Entry:
    """One row as it was measured. A row that was compared has either a `ratio` or a `difference`."""

    name: str
    unit: str
    ours: float
    theirs: float | None
    ratio: float | None
    difference: float | None
    target: str
    reached: str  # "yes", "no", or "" for a row without a target
    cpu_ratio: float | None = None
    interval: tuple[float, float] | None = None  # of the figure that is judged, 95 %; None in older files

    def cells(self) -> dict[str, str]:
        """The row's columns by their titles, in human units."""
        return {
            "row": self.name,
            "tent": quantity(self.ours, self.unit),
            "beside": quantity(self.theirs, self.unit),
            "ratio": "" if self.ratio is None else f"{self.ratio:.2f}",
            "CPU ratio": "" if self.cpu_ratio is None else f"{self.cpu_ratio:.2f}",
            "difference": quantity(self.difference, self.unit, signed=True),
            "target": self.target,
            "reached": self.reached,
        }


@dataclass(frozen=True)
class Reported:
    """One row of a Go benchmark, with a figure that is a text in human units already."""

    name: str
    measured: str
    target: str
    reached: str
    interval: tuple[float, float] | None = None  # of the figure that is judged, 95 %; None where it has none

    def cells(self) -> dict[str, str]:
        return {"row": self.name, "measured": self.measured, "target": self.target, "reached": self.reached}


@dataclass(frozen=True)
class Table:
    """The rows of one command on one day."""

    command: str
    date: str
    machine: str
    rows: list[Entry] | list[Reported]

    def columns(self) -> list[list[str]]:
        """The titles and then the rows. A column that is empty in every row is left out."""
        rows = [row.cells() for row in self.rows]
        titles = [title for title in rows[0] if any(row[title] for row in rows)]
        return [titles, *([row[title] for title in titles] for row in rows)]

    def text(self) -> str:
        """The table for a terminal."""
        table = self.columns()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = (zip(line, widths, strict=True) for line in table)
        return "\n".join("  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in lines)

    def markdown(self) -> str:
        """The table for a page, under a line that says how and where it was measured."""
        head, *rows = self.columns()
        lines = ["| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows]]
        return f"`{self.command}`, {self.date}: {self.machine}.\n\n" + "\n".join(lines)

    def write(self, path: Path) -> None:
        """Writes the JSON form, one row a line, so that a diff shows which rows have changed."""
        head = json.dumps({"command": self.command, "date": self.date, "machine": self.machine}, ensure_ascii=False)
        rows = ",\n".join("  " + json.dumps(asdict(row), ensure_ascii=False) for row in self.rows)
        path.write_text(f'{head[:-1]}, "rows": [\n{rows}\n]}}\n', encoding="utf-8")


def read(path: Path) -> Table:
    """Reads a file of `Table.write` or of a Go benchmark."""
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rows = fields.pop("rows")
    if "measured" in rows[0]:
        return Table(**fields, rows=[Reported(**paired(row)) for row in rows])
    return Table(**fields, rows=[Entry(**paired(row)) for row in rows])


def paired(fields: dict[str, Any]) -> dict[str, Any]:
    """A row's fields, with an interval that is a pair."""
    return fields | {"interval": tuple(fields["interval"]) if fields.get("interval") else None}


def by_interval(then: Entry | Reported | None, row: Entry | Reported) -> bool:
    """Whether both runs have an interval of the row. Older files have none."""
    return then is not None and bool(row.interval and then.interval)


def compared(old: Table, new: Table) -> str:
    """How much the silence of `slower` says: the numbers of rows that it compares, and of those that it cannot."""
    before = {row.name: row for row in old.rows}
    intervals = sum(by_interval(before.get(row.name), row) for row in new.rows)
    judged = {"yes", "no"}
    targets = sum(
        not by_interval(then, row) and {then.reached, row.reached} <= judged
        for row in new.rows
        if (then := before.get(row.name)) is not None
    )
    gone = len(before.keys() - {row.name for row in new.rows})
    rest = len(new.rows) - intervals - targets
    return f"{intervals} rows by intervals, {targets} by targets, {rest} not at all, {gone} are gone"


def slower(old: Table, new: Table) -> list[str]:
    """The rows of a run that became worse: those with an interval that lies wholly beyond that of the older run, and
    those without one that reached their target then and do not now."""
    before, worse = {row.name: row for row in old.rows}, []
    for row in new.rows:
        then = before.get(row.name)
        if then is not None and row.interval and then.interval:
            larger = row.interval[0] > then.interval[1]
            smaller = row.interval[1] < then.interval[0]
            if smaller if row.target.startswith(("≥", "at least")) else larger:
                worse.append(f"{row.name}: {list(then.interval)} then, {list(row.interval)} now")
        elif then is not None and then.reached == "yes" and row.reached == "no":
            worse.append(f"{row.name}: it reached its target then, and does not now")
    return worse


def rounded(value: float) -> float:
    """Three significant digits: more are noise."""
    return float(f"{value:.3g}")


def today(target: str, arguments: list[str], machine: str, rows: list[Entry] | list[Reported]) -> Table:
    """The table of a run that ends now: `target` is the make target and `arguments` are its own."""
    command = f"make {target}" + (f' ARGS="{shlex.join(arguments)}"' if arguments else "")
    return Table(command, datetime.now(timezone.utc).date().isoformat(), machine, rows)


def quantity(value: float | None, unit: str, signed: bool = False) -> str:
    """A figure with three digits and a unit that keeps it between 1 and 1000: "1.81 ms" for 1810 us; "" for None."""
    if value is None:
        return ""
    if unit not in STEPS:
        return f"{digits(value, signed)} {unit}".rstrip()
    nanoseconds = value * STEPS[unit][1]
    for name, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(nanoseconds) >= scale:
            return f"{digits(nanoseconds / scale, signed)} {name}"
    return f"{digits(nanoseconds, signed)} ns"


def digits(value: float, signed: bool) -> str:
    """Three significant digits without an exponent; two after the point at most."""
    size = abs(value)
    places = 0 if size >= 100 else 1 if size >= 10 else 2
    text = f"{value:.3g}" if size < 1 else f"{value:.{places}f}"
    return f"+{text}" if signed and value > 0 else text
