"""Memory whose every byte is known, between guard bands. Both processes of a pair use it; it needs neither NumPy nor
the engine.

A pattern is endless and has a prime period, so bytes that land at a wrong place differ, whatever page size or alignment
went wrong.
"""

from __future__ import annotations

import mmap
import random
from functools import lru_cache

PERIOD = 1_000_003  # a prime
GUARD = 2 * 4096 + 13  # bytes on each side that nobody may touch


@lru_cache(maxsize=16)
def _block(seed: int) -> bytes:
    return random.Random(seed).randbytes(PERIOD)


def pattern(seed: int, size: int) -> bytes:
    """The first `size` bytes of a seed's pattern."""
    block = _block(seed)
    return (block * (size // PERIOD + 1))[:size]


class Memory:
    """`size` bytes in the pattern of a seed, `alignment` bytes behind the begin of a page, between two guard bands."""

    def __init__(self, size: int, seed: int, alignment: int = 0) -> None:
        self.size = size
        self._start = -(-GUARD // 4096) * 4096 + alignment
        self._map = mmap.mmap(-1, self._start + size + GUARD)
        self._all = memoryview(self._map)
        self._guards = seed + 1
        self._all[: self._start] = pattern(self._guards, self._start)
        self._all[self._start + size :] = pattern(self._guards, GUARD)
        self.view = self._all[self._start : self._start + size]
        self.fill(seed)

    def fill(self, seed: int) -> None:
        """Overwrites all of it with another pattern."""
        block = _block(seed)
        for at in range(0, self.size, PERIOD):
            piece = self.view[at : at + PERIOD]
            piece[:] = block[: len(piece)]

    def wrong(self, seed: int | None, or_seed: int | None = None) -> str:
        """ "" if every byte is of the pattern (or, byte by byte, of the second one) and the guard bands are untouched,
        else what the first wrong byte is. Without a seed only the guard bands are looked at."""
        end = self._start + self.size
        if self._all[: self._start].tobytes() != pattern(self._guards, self._start):
            return "bytes in front of the memory were touched"
        if self._all[end:].tobytes() != pattern(self._guards, GUARD):
            return "bytes behind the memory were touched"
        if seed is None:
            return ""
        block, other = _block(seed), _block(seed if or_seed is None else or_seed)
        for at in range(0, self.size, PERIOD):
            piece = self.view[at : at + PERIOD].tobytes()  # memoryviews compare item by item, bytes at once
            if piece == block[: len(piece)] or piece == other[: len(piece)]:
                continue
            for i, byte in enumerate(piece):
                if byte != block[i] and byte != other[i]:
                    return f"byte {at + i} of {self.size} is {byte:#04x}, expected {block[i]:#04x}"
        return ""
