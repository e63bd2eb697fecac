"""Counters of an engine in another process, read while it runs by the HTTP that the setting metrics/listen opens."""

from __future__ import annotations

import contextlib
import re
import threading
import urllib.request
from collections import defaultdict
from http.client import HTTPException

PERIOD = 0.01  # seconds between two looks
NOT_THERE = (OSError, HTTPException)  # an engine that has not come, or goes in the middle of its answer


class Counters:
    """The highest sum of each counter that was seen inside the `with` block. The engine may come later and go
    sooner."""

    def __init__(self, port: int) -> None:
        self.most: dict[str, float] = {}
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="counters")

    def _watch(self) -> None:
        while not self._over.wait(PERIOD):
            with contextlib.suppress(*NOT_THERE), urllib.request.urlopen(self._url, timeout=5) as answer:
                self._take(answer.read().decode())

    def _take(self, text: str) -> None:
        sums: defaultdict[str, float] = defaultdict(float)
        for name, value in re.findall(r"^(tent_\w+_total)(?:\{.*\})? ([-+.\deE]+)$", text, re.M):
            sums[name] += float(value)
        for name, total in sums.items():
            self.most[name] = max(self.most.get(name, 0), total)

    def __enter__(self) -> Counters:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(30)
