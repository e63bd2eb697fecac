"""Sizes, durations, names and wrong values as people read them."""

from __future__ import annotations

from array import array
from enum import IntEnum

_LONGEST = 200  # characters or bytes of a wrong value that an error has whole
_MOST = 8  # items of a list


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


def member(kind: type[IntEnum], value: object) -> str:
    """The name of a member, or a value that is none, for a repr."""
    try:
        return kind(value).name  # type: ignore[arg-type]
    except ValueError:
        return shown(value)


def address(value: object) -> str:
    """An address, or a value that is none, for a repr."""
    return hex(value) if isinstance(value, int) else shown(value)


def shown(value: object) -> str:
    """A wrong value, for the error about it. It may be a whole cache that stands where its address was wanted: an error
    with all of its bytes would need several times its memory, and would bring them into the log."""
    if isinstance(value, (str, bytes, bytearray, array)) and len(value) > _LONGEST:
        return f"a {type(value).__name__} of {len(value)} items"
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        first = [shown(item) for item in value[:_MOST]] + ["..."] * (len(value) > _MOST)
        listed = ", ".join(first)
        return f"[{listed}]" if isinstance(value, list) else f"({listed}{',' * (len(value) == 1)})"
    return repr(value)
