"""Requests of the integer level as the engine reads them: packed records, and the one trace of a call."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import chain
from typing import Any

from . import _abi
from ._text import shown
from .errors import InvalidArgumentError
from .quantities import list_of
from .records import Request, pack
from .terms import not_a_priority

_PRIORITY = _abi.COLUMNS.index("priority")


def listed(requests: Any) -> list[Any]:
    """Requests as a list."""
    return list_of(requests, "request_list", "tent.Request objects or a RequestArray")


def packed(requests: Iterable[Request]) -> tuple[array[int], int]:
    """Requests as the engine's records; array checks that each value fits in 64 bits, unsigned."""
    rows: list[tuple[Any, ...]] = []
    try:
        rows = [pack(request) for request in requests]
        words = array("Q", chain.from_iterable(rows))
    except AttributeError as error:
        raise InvalidArgumentError(f"requests must be tent.Request objects or a RequestArray: {error}") from None
    except (OverflowError, TypeError) as error:
        _name_wrong_field(rows)
        raise InvalidArgumentError(
            f"a field of a request is not an integer of 64 bits, not negative: {error}"
        ) from None
    if not rows:
        raise InvalidArgumentError("there are no requests to submit")
    for row in rows:
        if row[_PRIORITY] is True or row[_PRIORITY] is False:
            raise not_a_priority(row[_PRIORITY])
    return words, len(rows)


def agreed(given: str | None, traces: list[str]) -> str | None:
    """Returns the one trace of a call, which `given`, its requests and its notification may bear; "" is none."""
    found = [trace for trace in (given, *traces) if trace is not None and trace != ""]
    for other in found[1:]:
        if other != found[0]:
            raise InvalidArgumentError(
                f"one call has the traces {found[0]!r} and {other!r}", hint="submit requests of different traces apart"
            )
    return found[0] if found else None


def _name_wrong_field(rows: list[tuple[Any, ...]]) -> None:
    """Raises for the first field of a request that does not fit; packing itself says only that one does not."""
    for i, row in enumerate(rows):
        for name, value in zip(_abi.COLUMNS, row, strict=True):
            if not hasattr(value, "__index__") or not 0 <= value < 1 << 64:
                takes = _abi.TAKES.get(name, "an integer of 64 bits, not negative")
                raise InvalidArgumentError(f"{name} of request {i} is {shown(value)}: it must be {takes}")
