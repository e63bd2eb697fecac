"""Tent's counters on their way from vLLM's workers to its /metrics."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

KEY = "tent"  # of the counters in the figures of a worker
PREFIX = "vllm:"  # vLLM drops its own metrics when it starts anew in a process, and knows them by that
PERIOD, BUSY_PERIOD = 5.0, 0.2  # seconds between looks, the second after a transfer: a look takes some milliseconds

_SERIES = re.compile(r'(tent_\w+_total)(?:\{transport="([^"]*)"\})?')


def parsed(series: str) -> tuple[str, str] | None:
    """Name and transport of a counter's sum, "" for the sum over all; None of everything else."""
    found = _SERIES.fullmatch(series)
    return None if found is None else (found[1], found[2] or "")


def sums(metrics: Mapping[str, float]) -> dict[str, float]:
    """The counters among an engine's metrics: by transport, and those that are not of a transport as they are. A
    counter of rails is of no transport until there is a rail."""
    read = {series: found for series in metrics if (found := parsed(series))}
    by_transport = {name for name, transport in read.values() if transport}
    return {
        series: metrics[series] for series, (name, transport) in read.items() if transport or name not in by_transport
    }


class Counted:
    """The growth of an engine's counters since the last look. It belongs to one thread."""

    def __init__(self, metrics: Callable[[], Mapping[str, float]], clock: Callable[[], float] = time.monotonic) -> None:
        """Reads the counters by `metrics`, an engine's method."""
        self._metrics = metrics
        self._clock = clock
        self._seen: dict[str, float] = {}
        self._last = -PERIOD
        self._busy = True

    def taken(self, busy: bool) -> dict[str, float]:
        """The growth by series, at first zeros too so that each series is there; {} while it is not time to look.
        `busy`: a transfer has ended, so the next look comes soon."""
        self._busy |= busy
        if self._clock() < self._last + (BUSY_PERIOD if self._busy else PERIOD):
            return {}
        self._last, self._busy = self._clock(), False
        grown = {}
        for series, value in sums(self._metrics()).items():
            if series not in self._seen or value > self._seen[series]:
                grown[series] = value - self._seen.get(series, 0)
                self._seen[series] = value
        return grown
