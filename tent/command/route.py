"""Moves over one transport, for checks and measurements."""

from __future__ import annotations

import time
from collections.abc import Callable

import tent

LINK_S = 5.0  # a link that is not up by then will not come by itself
PAUSE_S = 0.02


def settle(begin: Callable[[], tent.Transfer], transport: str) -> tent.Transfer:
    """Repeats a move until it goes over a transport alone: links come up at their first use, and a request with another
    way does not wait for them. Returns the last move; its `transports` say whether that was so."""
    over = time.monotonic() + LINK_S
    while True:
        transfer = begin()
        transfer.result()
        if transfer.transports == (transport,) or time.monotonic() > over:
            return transfer
        time.sleep(PAUSE_S)


def detour(transfer: tent.Transfer, transport: str) -> str:
    """The other transports that an ended move took, "" for none."""
    return ", ".join(name for name in transfer.transports if name != transport)
