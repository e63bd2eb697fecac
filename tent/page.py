"""The shared page: one cell of 32 bytes for each batch, which the engine writes and Python reads without a call.

A cell's first byte is the state and its first word ends in it; the upper half of that word is the batch's generation.
The second word counts the bytes acknowledged, the third is the duration in nanoseconds, once the batch has ended.
"""

from __future__ import annotations

import ctypes

CELL_BYTES = 32
CELL_WORDS = CELL_BYTES // 8

# Plain numbers: an enum's attribute costs more than the rest of a poll.
PENDING = 1
CANCELED = 3
COMPLETED = 4


def states_at(address: int, n: int) -> memoryview:
    """Returns a view of the states of n cells. Its owner releases it before the engine gives the memory up."""
    return bytes_at(address, n * CELL_BYTES)[::CELL_BYTES]


def words_at(address: int, n: int) -> memoryview:
    """Returns a view of n 64-bit words at an address. Its owner releases it before the engine gives the memory up."""
    return bytes_at(address, 8 * n).cast("Q")


def bytes_at(address: int, n: int) -> memoryview:
    """Returns a writable view of n bytes at an address, which keeps nothing alive."""
    return memoryview((ctypes.c_char * n).from_address(address)).cast("B")
