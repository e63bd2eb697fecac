"""The segments behind the operands of a move: errors name their peers, and make them ask for their regions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .errors import AddressNotRegisteredError


def blame(failure: dict[str, Any], operands: Iterable[object]) -> None:
    """Completes the engine's account of a failure. A deadline blames nobody: then the peer is that of the request."""
    segments = _segments(operands)
    if not failure.get("peer"):
        failure["peer"] = segments[0].address if segments else ""
    if failure.get("code") == AddressNotRegisteredError.code:
        outdate(operands)


def outdate(operands: Iterable[object]) -> None:
    """The next name makes these segments ask for their regions: the peer does not offer one of them any more."""
    for segment in _segments(operands):
        segment._outdated = True


def _segments(operands: Iterable[object]) -> list[Any]:
    """Those of remote operands: of a slice or a region, of a grid or a list, or the operand itself."""
    named = (getattr(operand, "segment", None) or getattr(operand, "_keep", operand) for operand in operands)
    return [segment for segment in named if hasattr(segment, "_outdated")]
