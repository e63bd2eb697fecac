"""The one language for sizes and times: numbers, or texts such as "64MiB" and "20 ms".

| | a number is | a text has | units |
|---|---|---|---|
| size | bytes | a number, perhaps a unit | B; K, M, G, T or KiB to TiB by 1024; KB to TB by 1000; in any case |
| time | seconds | a number and a unit | ns, us, ms, s, min, h |

Settings, faults and the command line take the same texts (gocore/config/quantity.go); gocore/config/testdata has the
table that holds both readers to the same answers.
"""

from __future__ import annotations

import operator
import re
from typing import Any

from ._text import shown
from .errors import InvalidArgumentError

_QUANTITY = re.compile(r" *([0-9]+)(?:\.([0-9]+))? *([^0-9. ]*) *")
_LONE = re.compile("[\ud800-\udfff]")
_DIGITS = 40  # of a number, at most
_MOST = 1 << 63
_INFINITE = float("inf")

_SIZES = {"": 1, "b": 1}
for _i, _letter in enumerate("kmgt", 1):
    _SIZES |= {_letter: 1 << 10 * _i, _letter + "ib": 1 << 10 * _i, _letter + "b": 10 ** (3 * _i)}
_TIMES = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}


def bytes_of(value: Any, what: str, least: int = 0, most: int = _MOST - 1) -> int:
    """The number of bytes that a size means, from `least` to `most`. An InvalidArgumentError has its name first."""
    if type(value) is int and least <= value <= most:
        return value
    n = _whole(value.lower(), _SIZES) if isinstance(value, str) else integer_of(value)
    if n is None or not least <= n <= most:
        at_least = f", at least {least}" if least else ""
        at_most = f", at most {most}" if n is not None and n > most else ""
        raise InvalidArgumentError(
            f'{what} is {shown(value)}: it must be a number of bytes{at_least}{at_most}, or a text like "64MiB"'
        )
    return n


def integer_of(value: Any) -> int | None:
    """The integer that a value means, also one of NumPy; None for every other value, and for True and False."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def text_of(value: Any, what: str, needed: bool = False) -> str:
    """A text that the engine can read: a name, a place, an address. None is "", unless a text is needed."""
    if value is None and not needed:
        return ""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{what} is {shown(value)}: it must be a str")
    if "\0" in value or _LONE.search(value):
        raise InvalidArgumentError(f"{what} is {shown(value)}: it has a NUL, or a surrogate that UTF-8 cannot write")
    return value


def encoded(value: Any, what: str) -> bytes:
    """The bytes of a text or of bytes: a part of a notification, which other sides may not have as UTF-8."""
    if isinstance(value, str):
        try:
            return value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(f"{what} {shown(value)}: {error}") from None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise InvalidArgumentError(f"{what} is {shown(value)}: it must be str or bytes")


def list_of(values: Any, what: str, takes: str) -> list[Any]:
    """Several values as a list; `takes` names them for the error."""
    try:
        each = iter(values)
    except TypeError:
        raise InvalidArgumentError(f"{what} is {shown(values)}: it must be {takes}") from None
    return list(each)


def seconds_of(value: Any, what: str = "timeout", none: str = "") -> float:
    """The seconds that a time means, finite and not negative. `none` is the meaning of None, for the error."""
    if type(value) is float and 0 <= value < _INFINITE:
        return value
    seconds = -1.0
    if isinstance(value, str):
        ns = _whole(value, _TIMES)
        if ns is not None:
            return ns / 1e9
    elif not isinstance(value, bool) and hasattr(type(value), "__float__"):
        try:
            seconds = float(value)
        except OverflowError:
            pass  # as far beyond every time as infinity
    if not 0 <= seconds < _INFINITE:  # NaN too
        raise InvalidArgumentError(
            f'{what} is {shown(value)}: it must be seconds, at least 0, or a text like "20ms"{none}'
        )
    return seconds


def limit_of(timeout: float | str | None) -> str:
    """A time-out as texts have it: "0.5 s", or the caller's own text."""
    return timeout if isinstance(timeout, str) else f"{timeout} s"


def _whole(text: str, units: dict[str, int]) -> int | None:
    """The whole number of bytes or nanoseconds that a text means; None if there is none below 2^63."""
    found = _QUANTITY.fullmatch(text)
    if found is None or found[3] not in units:
        return None
    digits, fraction = found[1] + (found[2] or ""), found[2] or ""
    if len(digits) + bool(fraction) > _DIGITS:
        return None
    n, rest = divmod(int(digits) * units[found[3]], 10 ** len(fraction))
    return None if rest or n >= _MOST else n
