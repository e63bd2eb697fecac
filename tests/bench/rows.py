"""The rows of the speed table: what is measured, what it is compared with, and what it should reach."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from contestant import Measured

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Work:
    """One kind of round: `iterations` batches of `count` pieces of `size` bytes."""

    verb: str
    size: int
    count: int = 1
    iterations: int = 1

    def __str__(self) -> str:
        size = (
            f"{self.size} B"
            if self.size < KIB
            else f"{self.size // KIB} KiB"
            if self.size < MIB
            else f"{self.size // MIB} MiB"
        )
        return f"{self.verb.upper()} {size if self.count == 1 else f'{self.count} x {size}'}"


# Iterations so that a round takes a tenth of a second or more. Submits are small: no copying hides what they cost.
PING, SMALL, BATCH = Work("write", 64, 1, 2000), Work("write", 4 * KIB, 1, 2000), Work("write", 4 * KIB, 256, 200)
BULK = {verb: Work(verb, 64 * MIB, 1, 6) for verb in ("write", "read")}
SUBMIT, POLL = Work("submit", 8, 256, 300), Work("poll", 1, 20000, 10)
SHAPES = [
    (4 * KIB, 1, 1000, 1.0),
    (4 * KIB, 64, 300, 0.9),
    (64 * KIB, 64, 50, 0.8),
    (MIB, 1, 200, 0.9),
    (64 * MIB, 1, 6, 0.7),
]


@dataclass(frozen=True)
class Side:
    """A contestant doing one kind of work, and the figure that counts."""

    contestant: str
    work: Work
    figure: Callable[[Measured], float]


@dataclass(frozen=True)
class Row:
    """Compares two sides, or one side with nothing. `limit` is an upper bound unless `at_least`."""

    name: str
    unit: str
    ours: Side
    theirs: Side | None
    limit: float
    at_least: bool = False
    difference: bool = False  # ours - theirs instead of ours / theirs

    def value(self, ours: list[float], theirs: list[float]) -> float:
        """The median over the rounds of what is compared; each round is a pair, so drift of the machine falls out."""
        if not theirs:
            return statistics.median(ours)
        pairs = zip(ours, theirs, strict=True)
        return statistics.median(a - b if self.difference else a / b for a, b in pairs)

    def reached(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def target(self) -> str:
        sign = ">=" if self.at_least else "<="
        return f"{sign} {self.limit:g}" + (f" {self.unit}" if self.theirs is None or self.difference else "")


def rate(m: Measured) -> float:
    return m.bytes_per_second / 1e9


def p50_us(m: Measured) -> float:
    return m.p50 / 1e3


def p50_ns(m: Measured) -> float:
    return m.p50


def cpu(m: Measured) -> float:
    return m.cpu_seconds_per_gb


def go_rows() -> list[Row]:
    rows = []
    for work in BULK.values():
        rows.append(
            Row(f"Go: {work}, rate", "GB/s", Side("go", work, rate), Side("c", work, rate), 0.95, at_least=True)
        )
        rows.append(Row(f"Go: {work}, CPU", "s/GB", Side("go", work, cpu), Side("c", work, cpu), 1.1))
    for work in (PING, SMALL):
        rows.append(Row(f"Go: {work}, p50", "us", Side("go", work, p50_us), Side("c", work, p50_us), 1.15))
    bulk = Side("go", BULK["write"], rate)
    rows.append(Row(f"Go: {BATCH}, share of the bulk rate", "GB/s", Side("go", BATCH, rate), bulk, 0.8, at_least=True))
    return rows


def python_rows() -> list[Row]:
    rows = [
        Row(
            "Python: submit of 256 packed requests, beyond Go's",
            "us",
            Side("tent", SUBMIT, p50_us),
            Side("go", SUBMIT, p50_us),
            4.0,
            difference=True,
        ),
        Row("Python: a poll that finds nothing new", "ns", Side("tent", POLL, p50_ns), None, 100.0),
    ]
    works = [
        (Work(verb, size, count, iterations), limit)
        for size, count, iterations, limit in SHAPES
        for verb in ("write", "read")
    ]
    for work, limit in works:
        rows.append(Row(f"Python: {work}, p50", "us", Side("tent", work, p50_us), Side("plain", work, p50_us), limit))
    for work, _ in works:
        if work.size * work.count >= MIB:
            rows.append(
                Row(f"Python: {work}, CPU of both", "s/GB", Side("tent", work, cpu), Side("plain", work, cpu), 1.1)
            )
    return rows


ROWS = go_rows() + python_rows()
