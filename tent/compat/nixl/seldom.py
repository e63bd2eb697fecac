"""Lines of a log that others can cause: one a second, with the number of those that it stands for."""

from __future__ import annotations

import logging
import threading
import time

from ... import _native

PAUSE = 1.0  # seconds


class Seldom:
    """Writes lines of one kind to a logger. Any thread may call it."""

    def __init__(self, logger: logging.Logger, level: int) -> None:
        self._logger = logger
        self._level = level
        self._lock = _native.renewed(threading.RLock())
        self._next = float("-inf")  # when another line may come, by the monotonic clock
        self._left_out = 0

    def __call__(self, text: str, *args: object) -> None:
        now = time.monotonic()
        with self._lock:
            if now < self._next:
                self._left_out += 1
                return
            left_out, self._left_out, self._next = self._left_out, 0, now + PAUSE
        more = f" ({left_out} more such lines were left out)" if left_out else ""
        self._logger.log(self._level, "%s%s", text % args, more)
