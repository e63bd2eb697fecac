"""The comparison of two runs of a benchmark, and the list of benchmarks."""

from __future__ import annotations

import re
from pathlib import Path

import bench_all
import docs_tables
import pytest
import run
import table
from contestant import Measured
from interpreters import ROOT
from rows import Row, Side, Work


def entry(name: str, target: str, interval: tuple[float, float] | None, reached: str = "yes") -> table.Entry:
    return table.Entry(name, "us", 1.0, 1.0, 1.0, None, target, reached, interval=interval)


def of(*rows: table.Entry) -> table.Table:
    return table.Table("make bench", "2026-11-24", "two cores", list(rows))


def of_go(*rows: table.Reported) -> table.Table:
    return table.Table("make bench-qos", "2026-11-24", "two cores", list(rows))


@pytest.mark.parametrize(
    ("target", "then", "now", "worse"),
    [
        ("≤ 1", (0.9, 1.0), (1.01, 1.2), True),
        ("≤ 1", (0.9, 1.0), (1.0, 1.2), False),
        ("≤ 1", (0.9, 1.0), (0.5, 0.8), False),
        ("≥ 1", (0.9, 1.0), (0.5, 0.8), True),
        ("≥ 1", (0.9, 1.0), (1.01, 1.2), False),
        ("at least 95 %", (0.9, 1.0), (0.5, 0.8), True),
        ("at most 2 s", (0.9, 1.0), (0.5, 0.8), False),
    ],
)
def test_a_row_is_worse_when_its_interval_is_wholly_beyond(
    target: str, then: tuple[float, float], now: tuple[float, float], worse: bool
) -> None:
    lines = table.slower(of(entry("x", target, then)), of(entry("new", target, (9, 9)), entry("x", target, now)))
    assert bool(lines) == worse
    assert all(line.startswith("x:") for line in lines)
    then_go, now_go = (of_go(table.Reported("x", "a figure", target, "yes", interval)) for interval in (then, now))
    assert table.slower(then_go, now_go) == lines
    assert table.compared(then_go, now_go).startswith("1 rows by intervals, 0 by targets")


def test_without_intervals_the_target_decides() -> None:
    old = of(entry("x", "≤ 1", None), entry("y", "≤ 1", None, "no"))
    assert table.slower(old, of(entry("x", "≤ 1", (1, 2), "no"), entry("y", "≤ 1", (1, 2), "no"))) == [
        "x: it reached its target then, and does not now"
    ]


def test_the_rows_that_nothing_is_said_about_are_counted() -> None:
    old = of(entry("x", "≤ 1", (1, 2)), entry("y", "≤ 1", None), entry("z", "", None, ""), entry("gone", "≤ 1", None))
    new = of(
        entry("x", "≤ 1", (1, 2)), entry("y", "≤ 1", (1, 2)), entry("z", "", None, ""), entry("new", "≤ 1", (1, 2))
    )
    assert table.compared(old, new) == "1 rows by intervals, 1 by targets, 2 not at all, 1 are gone"


def test_an_interval_survives_its_file(tmp_path: Path) -> None:
    of(entry("x", "≤ 1", (0.5, 2.0)), entry("y", "≤ 1", None)).write(tmp_path / "t.json")
    rows = table.read(tmp_path / "t.json").rows
    assert [row.interval for row in rows] == [(0.5, 2.0), None]


def test_files_of_go_may_have_intervals(tmp_path: Path) -> None:
    row = '{"name": "x", "measured": "1", "target": "at most 2", "reached": "yes"%s}'
    head = '{"command": "make bench-qos", "date": "2026-11-24", "machine": "two cores", "rows": ['
    (tmp_path / "t.json").write_text(head + ", ".join([row % ', "interval": [0.5, 2]', row % ""]) + "]}")
    assert [row.interval for row in table.read(tmp_path / "t.json").rows] == [(0.5, 2), None]


def test_the_interval_is_of_pairs() -> None:
    work = Work("write", 1)
    side = Side("go", work, lambda m: m.p50)
    row = Row("x", "ns", side, side, 1.0)
    ours = [10.0, 20.0, 40.0, 80.0, 160.0]
    assert run.interval(row, ours, [x / 2 for x in ours]) == (2.0, 2.0)
    least, most = run.interval(row, ours, [1.0] * 5)
    assert 10 <= least < 40 < most <= 160


@pytest.mark.parametrize(
    ("ours", "theirs", "floor", "reached"),
    [
        (105, 200, 100, "yes"),
        (106, 200, 100, "no"),
        (105, 99, 100, "no"),  # a floor that the other side is below is none
        (500, 2000, 400, "yes"),  # by its own limit
    ],
)
def test_a_row_near_its_floor_has_reached_its_target(ours: int, theirs: int, floor: int, reached: str) -> None:
    work = Work("write", 1)
    sides = [Side(name, work, lambda m: m.p50) for name in ("tent", "other", "c")]
    row = Row("x", "ns", sides[0], sides[1], 0.25, floor=sides[2])
    measured = zip(("tent", "other", "c"), (ours, theirs, floor), strict=True)
    figures = {(name, work): [Measured((value,), 1, 0.0)] * 5 for name, value in measured}
    assert run.plan([row]) == {work: ["tent", "other", "c"]}
    (entry,) = run.entries([row], figures)
    assert entry.reached == reached
    assert entry.ratio == pytest.approx(ours / theirs, rel=0.01)
    assert entry.target == f"≤ 0.25, or ≤ 1.05 of plain C's {floor} ns"


def test_every_table_of_the_page_has_its_benchmark() -> None:
    page = docs_tables.PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- table: (\w+) -->", page)) <= {*bench_all.BENCHMARKS, *bench_all.ELSEWHERE}
    targets = re.findall(r"^((?:bench|check)[\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    named = {target for target, _, _ in bench_all.BENCHMARKS.values()} | set(bench_all.ELSEWHERE.values())
    assert named <= set(targets)
