"""The CUDA driver without anything in between: the few calls that the check of GPUs compares tent with.

TENT_LIBCUDA names another library than libcuda.so.1, as for tent.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

BAND = 4096  # around a region: it stays as it was


class DriverError(RuntimeError):
    """A call of the driver that failed, with the driver's name for it."""


class Driver:
    """One device of the driver, current in the calling thread. Each copy is waited for."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self._library = ctypes.CDLL(os.environ.get("TENT_LIBCUDA") or "libcuda.so.1")
        self.call("cuInit", c_uint(0))
        self._context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(self._context), c_int(ordinal))
        self.enter()
        self.stream = c_void_p()
        self.call("cuStreamCreate", byref(self.stream), c_uint(1))  # not synchronised with the default stream

    def call(self, name: str, *arguments: object) -> None:
        """Calls a function of the driver; DriverError if it fails, or is not there."""
        if not hasattr(self._library, name):
            raise DriverError(f"the driver has no {name}")
        if code := getattr(self._library, name)(*arguments):
            text = c_char_p()
            self._library.cuGetErrorName(c_int(code), byref(text))
            raise DriverError(f"{name}: {(text.value or b'').decode() or code}")

    def enter(self) -> None:
        """Makes the device that of this thread."""
        self.call("cuCtxSetCurrent", self._context)

    def count(self) -> int:
        n = c_int()
        self.call("cuDeviceGetCount", byref(n))
        return n.value

    def name(self) -> str:
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, c_int(256), c_int(self.ordinal))
        return text.value.decode()

    def allocate(self, size: int) -> int:
        address = c_uint64()
        self.enter()
        self.call("cuMemAlloc_v2", byref(address), c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        self.call("cuMemFree_v2", c_uint64(address))

    def pinned(self, size: int) -> int:
        """Memory of the host that the device reads and writes by itself; it is kept to the end of the process."""
        address = c_void_p()
        self.call("cuMemHostAlloc", byref(address), c_size_t(size), c_uint(1))
        return int(address.value or 0)

    def room(self) -> int:
        """The bytes of the device that nobody uses."""
        left, total = c_size_t(), c_size_t()
        self.enter()
        self.call("cuMemGetInfo_v2", byref(left), byref(total))
        return left.value

    def copy(self, to: int, source: int, size: int) -> None:
        """Between any two memories of this process, and returns when it is done."""
        self.copy_all([(to, source)], size)

    def copy_all(self, pairs: Iterable[tuple[int, int]], size: int) -> None:
        """Several copies of a size, each a destination and a source; one wait for all of them."""
        self.enter()
        for to, source in pairs:
            self.call("cuMemcpyAsync", c_uint64(to), c_uint64(source), c_size_t(size), self.stream)
        self.call("cuStreamSynchronize", self.stream)

    def batches(self, pairs: Sequence[tuple[int, int]], size: int, each: int = 1024) -> None:
        """The same by the driver's batch call, so many at a time; DriverError where it has none."""
        self.enter()
        order, first, failed = (c_uint * 6)(1), c_size_t(0), c_size_t(0)  # CUmemcpyAttributes: in the stream's order
        v2 = hasattr(self._library, "cuMemcpyBatchAsync_v2")
        for at in range(0, len(pairs), each):
            part = pairs[at : at + each]
            to, source = ((c_uint64 * len(part))(*ends) for ends in zip(*part))
            sizes = (c_size_t * len(part))(*[size] * len(part))
            about = [to, source, sizes, c_size_t(len(part)), order, byref(first), c_size_t(1)]
            about += [self.stream] if v2 else [byref(failed), self.stream]
            self.call("cuMemcpyBatchAsync_v2" if v2 else "cuMemcpyBatchAsync", *about)
        self.call("cuStreamSynchronize", self.stream)


class Memory:
    """Memory of a device with a pattern in it and bands around it; `check` reads all of it by the driver alone."""

    def __init__(self, driver: Driver, size: int, seed: int) -> None:
        self.driver = driver
        self.size = size
        self.base = driver.allocate(size + 2 * BAND)
        self.address = self.base + BAND
        from tent.testing import pattern  # not above: processes of other libraries use the driver without tent

        self._expected = bytearray(pattern(seed, 0, size + 2 * BAND))
        self._store()

    def _store(self) -> None:
        source = (ctypes.c_char * len(self._expected)).from_buffer(self._expected)
        self.driver.copy(self.base, ctypes.addressof(source), len(self._expected))

    def expect(self, data: bytes, at: int = 0) -> None:
        self._expected[BAND + at : BAND + at + len(data)] = data

    def content(self) -> bytes:
        whole = bytearray(self.size + 2 * BAND)
        into = (ctypes.c_char * len(whole)).from_buffer(whole)
        self.driver.copy(ctypes.addressof(into), self.base, len(whole))
        return bytes(whole)

    def check(self) -> None:
        """AssertionError with the first byte that is wrong."""
        found = self.content()
        if found != self._expected:
            at = next(i for i, (a, b) in enumerate(zip(found, self._expected)) if a != b)
            raise AssertionError(f"byte {at - BAND} is {found[at]} instead of {self._expected[at]}")

    def free(self) -> None:
        self.driver.free(self.base)
