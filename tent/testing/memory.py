"""Memory with every byte known, between guard bands. Both processes of a pair use it; it needs neither NumPy nor
the engine.

A pattern is endless and has a prime period, so bytes that land at a wrong place differ, for any page size or
alignment.
"""

from __future__ import annotations

import mmap
import random
from functools import lru_cache

from tent.quantities import bytes_of

PERIOD = 1_000_003  # a prime
GUARD = 2 * 4096 + 13  # bytes on each side that nobody may touch


@lru_cache(maxsize=16)
def _block(seed: int) -> bytes:
    return random.Random(seed).randbytes(PERIOD)


def pattern(seed: int, start: int, size: int) -> bytes:
    """Returns bytes [start, start + size) of the endless pattern of a seed."""
    block, at = _block(seed), start % PERIOD
    if at + size <= PERIOD:
        return block[at : at + size]
    return (block * ((at + size) // PERIOD + 1))[at : at + size]


class Memory:
    """`size` bytes in the pattern of a seed, `alignment` bytes behind the begin of a page, between two guard bands.

    memory = Memory(4096, seed=1)
    region = engine.register(memory.view, name="kv")
    ...
    memory.expect(0, written)  # by a peer
    memory.check()             # these bytes, and no other ones, have changed
    """

    def __init__(self, size: int | str, seed: int, alignment: int | str = 0) -> None:
        size, alignment = bytes_of(size, "size", least=1), bytes_of(alignment, "alignment")
        self.size = size
        self._start = -(-GUARD // 4096) * 4096 + alignment
        self._map = mmap.mmap(-1, self._start + size + GUARD)
        self._all = memoryview(self._map)
        self._guards = seed + 1
        self._all[: self._start] = pattern(self._guards, 0, self._start)
        self._all[self._start + size :] = pattern(self._guards, 0, GUARD)
        self.view = self._all[self._start : self._start + size]
        self.fill(seed)

    def fill(self, seed: int) -> None:
        """Overwrites all of it with another pattern, and expects that from now on."""
        self.seed = seed
        self._expected: bytearray | None = None  # made when it is needed: the pattern is enough for most
        block = _block(seed)
        for at in range(0, self.size, PERIOD):
            piece = self.view[at : at + PERIOD]
            piece[:] = block[: len(piece)]

    @property
    def expected(self) -> bytearray:
        """The bytes as they must be; change them as the memory will be changed."""
        if self._expected is None:
            self._expected = bytearray(pattern(self.seed, 0, self.size))
        return self._expected

    @expected.setter
    def expected(self, data: bytearray) -> None:
        self._expected = data

    def expect(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Expects these bytes at `offset` from now on."""
        self.expected[offset : offset + len(data)] = data

    def check(self) -> None:
        """Asserts that every byte is as expected and that the guard bands are untouched."""
        __tracebackhide__ = True
        wrong = self.unexpected()
        assert not wrong, f"{wrong} (seed {self.seed})"

    def unexpected(self) -> str:
        """Returns "" if every byte is as expected and the guard bands are untouched, else the first difference."""
        if self._expected is None:
            return self.wrong(self.seed)
        if wrong := self.wrong(None):
            return wrong
        for at in range(0, self.size, PERIOD):
            piece = self.view[at : at + PERIOD].tobytes()  # memoryviews compare item by item, bytes at once
            if piece != (expected := self._expected[at : at + PERIOD]):
                i = next(i for i, byte in enumerate(piece) if byte != expected[i])
                return f"byte {at + i} of {self.size} is {piece[i]:#04x}, expected {expected[i]:#04x}"
        return ""

    def wrong(self, seed: int | None, or_seed: int | None = None) -> str:
        """Returns "" if every byte is of the pattern and the guard bands are untouched, else the first difference.

        With `or_seed` each byte may also be of that pattern. Without a seed it looks at the guard bands alone.
        """
        end = self._start + self.size
        if self._all[: self._start].tobytes() != pattern(self._guards, 0, self._start):
            return "bytes in front of the memory were touched"
        if self._all[end:].tobytes() != pattern(self._guards, 0, GUARD):
            return "bytes behind the memory were touched"
        if seed is None:
            return ""
        block, other = _block(seed), _block(seed if or_seed is None else or_seed)
        for at in range(0, self.size, PERIOD):
            piece = self.view[at : at + PERIOD].tobytes()
            if piece == block[: len(piece)] or piece == other[: len(piece)]:
                continue
            for i, byte in enumerate(piece):
                if byte != block[i] and byte != other[i]:
                    return f"byte {at + i} of {self.size} is {byte:#04x}, expected {block[i]:#04x}"
        return ""
