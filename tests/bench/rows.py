"""The rows of the speed table: the measured work, its opponent, and the target."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from contestant import Measured
from table import digits, quantity

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Work:
    """One kind of round: `iterations` batches of `count` pieces of `size` bytes."""

    verb: str
    size: int
    count: int = 1
    iterations: int = 1
    regions: int = 1  # of verb `pages`

    def __str__(self) -> str:
        units = ((MIB, "MiB"), (KIB, "KiB"), (1, "B"))
        size = next(f"{self.size // scale} {unit}" for scale, unit in units if self.size >= scale)
        return f"{self.verb.upper()} {size if self.count == 1 else f'{self.count} x {size}'}"


# Iterations so that a round takes a tenth of a second or more. Submits are small: no copying hides their cost.
PING, SMALL, BATCH = Work("write", 64, 1, 2000), Work("write", 4 * KIB, 1, 2000), Work("write", 4 * KIB, 256, 200)
BULK = {verb: Work(verb, 64 * MIB, 1, 6) for verb in ("write", "read")}
SUBMIT, POLL = Work("submit", 8, 256, 300), Work("poll", 1, 20000, 10)
SHAPES = [
    (4 * KIB, 1, 1000, 1.0),
    (4 * KIB, 64, 300, 0.9),
    (64 * KIB, 64, 50, 1.0),
    (MIB, 1, 200, 1.0),
    (64 * MIB, 1, 6, 1.0),
]


NEAR = 1.05  # of a floor's time


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
    limit: float | None  # None: for comparison, without a target
    at_least: bool = False
    difference: bool = False  # ours - theirs instead of ours / theirs
    or_else: Side | None = None  # another way to do the same: each round is compared with the better of the two
    floor: Side | None = None  # a program that does the least: a row near it has reached its target, too

    def sides(self) -> list[Side]:
        return [side for side in (self.ours, self.theirs, self.or_else, self.floor) if side is not None]

    def rivals(self, figures: dict[tuple[str, Work], list[Measured]]) -> list[float]:
        """The figures of the opponent, by round; empty without one."""
        best = max if self.at_least else min
        rivals = (side for side in (self.theirs, self.or_else) if side is not None)
        each = [[s.figure(m) for m in figures[s.contestant, s.work]] for s in rivals]
        return [best(of_round) for of_round in zip(*each, strict=True)]

    def value(self, ours: list[float], theirs: list[float]) -> float:
        """The median over the rounds of the compared figure; each round is a pair, so drift of the machine falls
        out."""
        if not theirs:
            return statistics.median(ours)
        pairs = zip(ours, theirs, strict=True)
        return statistics.median(a - b if self.difference else a / b for a, b in pairs)

    def reached(self, value: float) -> bool:
        assert self.limit is not None
        return value >= self.limit if self.at_least else value <= self.limit

    def near(self, ours: list[float], floor: list[float], theirs: list[float]) -> bool:
        """Whether the row is near its floor, which no rival is below."""
        return (
            statistics.median(floor) <= statistics.median(theirs)
            and statistics.median(a / b for a, b in zip(ours, floor, strict=True)) <= NEAR
        )

    def target(self, floor: float | None = None) -> str:
        if self.limit is None:
            return ""
        sign = "≥" if self.at_least else "≤"
        absolute = self.theirs is None or self.difference
        text = f"{sign} {quantity(self.limit, self.unit) if absolute else digits(self.limit, signed=False)}"
        return text if floor is None else f"{text}, or ≤ {NEAR} of plain C's {quantity(floor, self.unit)}"


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
    rows += [
        Row(f"Go: {work}, p50", "us", Side("go", work, p50_us), Side("c", work, p50_us), 1.15) for work in (PING, SMALL)
    ]
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
    small = works[0][0]
    waits = (("", "tent", "csleep", 1.0), (" with busy_poll_us", "busy", "cspin", None))
    for name, ours, floor, least in waits:
        sides = Side(ours, small, p50_us), Side(floor, small, p50_us)
        rows.append(Row(f"Python: {small}{name}, beside C that {floor[1:]}s, p50", "us", *sides, least))
    for work, _ in works:
        if work.size * work.count >= MIB:
            rows.append(
                Row(f"Python: {work}, CPU of both", "s/GB", Side("tent", work, cpu), Side("plain", work, cpu), 1.05)
            )
    return rows


MEMCPY, NT, KERNEL = "memcpy", "nt", "vm"  # a plain C program on one host


def requests_per_second(m: Measured) -> float:
    return len(m.batches) / (sum(m.batches) / 1e9) / 1e6


def host_go_rows() -> list[Row]:
    """Shared memory and memory of the user on one host, beside plain copies."""
    small, many, bulk = (
        Work("write", 4 * KIB, 1, 20000),
        Work("write", 64 * KIB, 64, 100),
        Work("write", 64 * MIB, 1, 12),
    )
    rows = [
        Row(
            f"shm, Go: {small}, beyond the copy",
            "ns",
            Side("goshm", small, p50_ns),
            Side(MEMCPY, small, p50_ns),
            300,
            difference=True,
        ),
        Row(
            f"shm, Go: {small}, million a second",
            "M/s",
            Side("goshm", small, requests_per_second),
            None,
            1.0,
            at_least=True,
        ),
    ]
    for work in (many, bulk):
        ours, plain, streaming = (Side(who, work, rate) for who in ("goshm", MEMCPY, NT))
        rows.append(Row(f"shm, Go: {work}, rate", "GB/s", ours, plain, 0.9, at_least=True, or_else=streaming))
    for size, count, iterations in ((4 * KIB, 1, 5000), (4 * KIB, 64, 500), (64 * MIB, 1, 8)):
        for verb in ("write", "read"):
            work = Work(verb, size, count, iterations)
            ours, plain = Side("goown", work, rate), Side(KERNEL, work, rate)
            rows.append(Row(f"own memory, Go: {work}, rate", "GB/s", ours, plain, 0.9, at_least=True))
    return rows


def host_python_rows() -> list[Row]:
    small, many = Work("write", 4 * KIB, 1, 5000), Work("write", 4 * KIB, 64, 1000)
    pages, grid = Work("pages", 4 * KIB, 4096, 30, 1), Work("pages", 4 * KIB, 80 * 256, 10, 80)
    beyond = 10 + 80 * 256 * 0.01
    return [
        Row(f"shm, Python: {small}, p50", "us", Side("pyshm", small, p50_us), None, 4.0),
        Row(f"shm, Python: {many}, p50", "us", Side("pyshm", many, p50_us), Side("memmove", many, p50_us), 0.7),
        *(
            Row(f"shm, Python: {work}, p50", "us", Side("pyshm", work, p50_us), Side("memmove", work, p50_us), 0.95)
            for work in (Work("write", 64 * KIB, 64, 60), Work("write", MIB, 1, 300))
        ),
        Row(
            "shm, Python: write_pages 4096 x 4 KiB, rate",
            "GB/s",
            Side("pyshm", pages, rate),
            Side(MEMCPY, pages, rate),
            0.5,
            at_least=True,
            or_else=Side(NT, pages, rate),
        ),
        Row(
            "shm, Python: write_pages 80 x 256 x 4 KiB, beyond the copies",
            "us",
            Side("pyshm", grid, p50_us),
            Side(MEMCPY, grid, p50_us),
            beyond,
            difference=True,
        ),
        Row("hazard slot, taken and given back", "ns", Side("goshm", Work("slot", 1, 1, 200), p50_ns), None, 20.0),
    ]


TCP_ROWS = go_rows() + python_rows()
HOST_ROWS = host_go_rows() + host_python_rows()
