"""The rows of make bench-clients: a figure of each way over tent, beside that of the engine that tent stands for."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import bootstrap
from table import Entry, quantity, rounded

RATE, MOVED, POSTED = "rate", "transfer", "post"
CHOSEN, HELD, SPENT = "wall", "held", "processor"  # of a post with many descriptors
RIVALS = {"tent": "nixl", "tent-as-nixl": "nixl", "tent-as-mooncake": "mooncake"}
STACKS = {
    "tent": "TentConnector",
    "tent-as-nixl": "vLLM's NixlConnector",
    "tent-as-mooncake": "vLLM's MooncakeConnector",
}
OBJECTS = 64  # of 1 MiB, that LMCache's tool reads
DESCRIPTORS = 16384  # of a transfer of the load with many
POST_LIMIT, WORST_LIMIT = 1e3, 10e3  # microseconds that such a post may take: median, and any

Figures = dict[tuple[str, str], list[list[float]]]  # by way and figure: of each round its values, [] where it failed


def p99(values: Sequence[float]) -> float:
    """The value below which 99 of a hundred values are; of fewer the largest."""
    listed = sorted(values)
    return listed[min(len(listed) - 1, int(0.99 * len(listed)))]


@dataclass(frozen=True)
class Row:
    """A figure of a way over tent, beside that of its rival."""

    way: str
    figure: str
    name: str
    unit: str
    of_round: Callable[[Sequence[float]], float]
    limit: float | None = None  # of our own figure; without one the rival's is the limit

    def entry(self, figures: Mapping[tuple[str, str], list[list[float]]]) -> Entry | None:
        """The row as it was measured, None where one of the two was not. It compares round by round."""
        ours, theirs = (figures.get((way, self.figure), []) for way in (self.way, RIVALS[self.way]))
        pairs = [(self.of_round(a), self.of_round(b)) for a, b in zip(ours, theirs) if a and b]
        if not pairs:
            return None
        ratios = [a / b for a, b in pairs]
        ratio = statistics.median(ratios)
        near, far = (statistics.median(side) for side in zip(*pairs, strict=True))
        if self.limit is not None:
            reached, target = near <= self.limit, f"≤ {quantity(self.limit, self.unit)}"
        elif self.figure == RATE:
            reached, target = ratio >= 1, "≥ 1"
        else:
            reached, target = ratio <= 1, "≤ 1"
        told = "yes" if reached else "no"
        judged = ratios if self.limit is None else [a for a, _ in pairs]
        interval = bootstrap.of_median(judged)
        ratio = round(ratio, 2)
        return Entry(self.name, self.unit, rounded(near), rounded(far), ratio, None, target, told, None, interval)


def rows(counts: Callable[[str], bool]) -> Iterator[Row]:
    """Every row of the table. `counts`: whether vLLM has metrics of a way's posts."""
    for way, rival in RIVALS.items():
        for figure in (MOVED, POSTED) if counts(way) else (MOVED,):
            for share, of_round in (("median", statistics.median), ("p99", p99)):
                yield Row(way, figure, f"{STACKS[way]}, {figure}, {share}, beside {rival}", "us", of_round)
    for way in filter(counts, RIVALS):
        name = f"{STACKS[way]}, post of {DESCRIPTORS:,} descriptors"
        beside = f"beside {RIVALS[way]}"
        yield Row(way, CHOSEN, f"{name}, median, {beside}", "us", statistics.median, POST_LIMIT)
        yield Row(way, CHOSEN, f"{name}, longest, {beside}", "us", max, WORST_LIMIT)
        yield Row(way, HELD, f"{name}, longest without the wait for a processor, {beside}", "us", max, WORST_LIMIT)
        yield Row(way, SPENT, f"{name}, processor time, median, {beside}", "us", statistics.median)
    for way, rival in RIVALS.items():
        channel = "tent" if way == "tent" else f"{rival} over tent"
        name = f"LMCache's channel {channel}, {OBJECTS} x 1 MiB, beside {rival}"
        yield Row(way, RATE, name, "GB/s", statistics.median)
