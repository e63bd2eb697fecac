"""The error of get_nowait(). It has a module of its own, since importing tent must not import queues."""

from __future__ import annotations

import queue


class Empty(TimeoutError, queue.Empty):
    """Nothing has come: raised by get_nowait(), as by the standard library's queues."""
