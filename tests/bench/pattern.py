"""Data that says where it belongs: every 8 bytes hold their own index and a seed, so misplaced bytes are seen."""

from __future__ import annotations

from array import array

PAGE = 4096


def pattern(seed: int, length: int) -> bytes:
    """`length` bytes (a multiple of 8) of the pattern."""
    start = seed << 32
    return array("Q", range(start, start + length // 8)).tobytes()


def first_wrong(memory: memoryview, seed: int, length: int) -> int:
    """Where `memory` differs from the pattern, -1 if nowhere."""
    expected = pattern(seed, length)
    if bytes(memory[:length]) == expected:
        return -1
    return next(i for i in range(length) if memory[i] != expected[i])
