"""Parts of the random programs over processes: memory in which transfers have their ranges, and a transfer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class Ranges:
    """The ranges of a region that transfers use. The model of its bytes has a band in front of it."""

    def __init__(self, band: int = 0) -> None:
        self.band = band
        self.busy: list[tuple[int, int, str]] = []  # begin, end, "source" or "destination"

    def take(self, begin: int, end: int, kind: str) -> bool:
        """Enters a use of bytes by a transfer, if it disturbs no other one."""
        if any(a < end and begin < b and "destination" in (kind, other) for a, b, other in self.busy):
            return False
        self.busy.append((begin, end, kind))
        return True


@dataclass(eq=False)
class Flight:
    """A transfer under way: from the process of `near`, between there and `far`, of (near, far, length)."""

    number: int
    op: str
    near: Any  # a place of the program, and so is far
    far: Any
    moves: list[tuple[int, int, int]]
    sent: list[Any]  # the source's bytes of each, and whether they were known
    excused: bool  # it may fail

    @property
    def ends(self) -> tuple[Any, Any]:
        return (self.near, self.far) if self.op == "write" else (self.far, self.near)

    def ranges(self, of: Any) -> list[tuple[int, int]]:
        """The ranges of one end, in its model."""
        return [(at + of.band, at + of.band + n) for a, b, n in self.moves for at in (a if of is self.near else b,)]
