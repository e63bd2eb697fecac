"""The byte oracle: memory with guard bands whose every byte is known, and looked at twice.

The pattern has a prime period, so bytes that land at a wrong place differ, whatever page size or alignment went wrong.
Needs neither NumPy nor the engine; the peer processes use it too.
"""

from __future__ import annotations

import mmap
import random
from functools import lru_cache

PERIOD = 1_000_003  # a prime
GUARD = 4096 + 13  # bytes on each side that nobody may touch


def pattern(seed: int, start: int, size: int) -> bytes:
    """Bytes [start, start + size) of the endless pattern of a seed."""
    block = _block(seed)
    at = start % PERIOD
    if at + size <= PERIOD:
        return block[at : at + size]
    whole = block * ((at + size) // PERIOD + 1)
    return whole[at : at + size]


@lru_cache(maxsize=16)
def _block(seed: int) -> bytes:
    return random.Random(seed).randbytes(PERIOD)


class Memory:
    """`size` bytes at a chosen alignment, filled with a seed's pattern, between two guard bands.

    `model` is what the bytes must be; tests change it as they expect the engine to change the memory.
    """

    def __init__(self, size: int, seed: int, alignment: int = 0) -> None:
        self.size = size
        self.seed = seed
        start = GUARD // 4096 * 4096 + 4096 + alignment
        self._map = mmap.mmap(-1, start + size + GUARD)
        self._all = memoryview(self._map)
        self._all[:start] = pattern(~seed & 0xFFFF, 0, start)
        self._all[start + size :] = pattern(~seed & 0xFFFF, start, GUARD)
        self.view = self._all[start : start + size]
        self.view[:] = pattern(seed, 0, size)
        self._start = start
        self.model = bytearray(self.view)

    def put(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Expect these bytes at offset from now on."""
        self.model[offset : offset + len(data)] = data

    def wrong(self) -> str:
        """ "" if every byte is as expected, inside and around; else what the first wrong one is."""
        end = self._start + self.size
        if self._all[: self._start].tobytes() != pattern(~self.seed & 0xFFFF, 0, self._start):
            return "the guard band before the memory was touched"
        if self._all[end:].tobytes() != pattern(~self.seed & 0xFFFF, self._start, GUARD):
            return "the guard band behind the memory was touched"
        if self.view.tobytes() == self.model:  # memoryviews compare item by item, bytes at once
            return ""
        for at in range(0, self.size, 4096):
            if self.view[at : at + 4096] != self.model[at : at + 4096]:
                first = next(i for i in range(at, self.size) if self.view[i] != self.model[i])
                return f"byte {first} of {self.size} is {self.view[first]:#x}, expected {self.model[first]:#x}"
        raise AssertionError("unreachable")

    def check(self) -> None:
        """Asserts that nothing is wrong."""
        wrong = self.wrong()
        assert not wrong, f"{wrong} (seed {self.seed})"
