"""Helpers of upstream's tests, from `nixl._utils`: memory by address."""

from __future__ import annotations

import ctypes

_LIBC = ctypes.CDLL(None)
_LIBC.malloc.restype = ctypes.c_void_p
_LIBC.malloc.argtypes = [ctypes.c_size_t]
_LIBC.free.argtypes = [ctypes.c_void_p]

__all__ = ["ba_buf", "free_passthru", "malloc_passthru", "verify_transfer"]


def malloc_passthru(size: int) -> int:
    """The address of new memory."""
    address = _LIBC.malloc(size)
    if not address:
        raise MemoryError(f"malloc of {size} bytes has failed")
    return int(address)


def free_passthru(address: int) -> None:
    """Gives memory of malloc_passthru() back."""
    _LIBC.free(address)


def ba_buf(address: int, size: int) -> None:
    """Fills memory with 0xba."""
    ctypes.memset(address, 0xBA, size)


def verify_transfer(first: int, second: int, size: int) -> None:
    """Raises AssertionError when two memories differ."""
    if ctypes.string_at(first, size) != ctypes.string_at(second, size):
        raise AssertionError(f"{size} bytes at {first:#x} and at {second:#x} differ")
