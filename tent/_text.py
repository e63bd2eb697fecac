"""Sizes, durations and names as people read them."""

from __future__ import annotations


def size(n: int) -> str:
    """Bytes, for example "64.0 KiB"."""
    value = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{n} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def duration(ns: int) -> str:
    """Nanoseconds, for example "41 us"."""
    for unit, scale in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= scale:
            value = ns / scale
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
    return f"{ns} ns"


def name(text: str) -> str:
    """The name of a peer's region, its control characters escaped: they would steer a terminal."""
    return text if text.isprintable() else repr(text)[1:-1]
