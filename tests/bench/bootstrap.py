"""The 95 % interval of a figure, by the bootstrap (Efron, 1979) over the rounds in which it was measured."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence

from table import rounded

RESAMPLES = 1000


def interval(rounds: int, figure: Callable[[list[int]], float]) -> tuple[float, float]:
    """`figure` computes the figure of some rounds, by their numbers: values of one round stay together."""
    dice = random.Random(1)
    values = sorted(figure(dice.choices(range(rounds), k=rounds)) for _ in range(RESAMPLES))
    return rounded(values[RESAMPLES // 40]), rounded(values[-RESAMPLES // 40])


def of_median(values: Sequence[float]) -> tuple[float, float]:
    return interval(len(values), lambda chosen: statistics.median(values[i] for i in chosen))
