"""The memory of a KV cache on one GPU: a tensor a layer, each of many pages, with bytes that a seed gives."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cudadriver import Driver

PAGE = 64 << 10
STEP = 512  # by which the bytes of a layer lie behind those of the one before


@dataclass(frozen=True)
class Shape:
    """The layers of a cache, and the pages of each."""

    layers: int
    pages: int

    @property
    def layer_bytes(self) -> int:
        return self.pages * PAGE

    @property
    def total_bytes(self) -> int:
        return self.layers * self.layer_bytes

    def __str__(self) -> str:
        return f"{self.layers} layers x {self.pages} pages of {PAGE >> 10} KiB"

    def fitting(self, room: int) -> Shape:
        """This shape, or one with half as many pages, and so on, that fits into a number of bytes."""
        pages = self.pages
        while pages > 1 and self.layers * pages * PAGE > room:
            pages //= 2
        return Shape(self.layers, pages)


@functools.lru_cache(maxsize=2)
def content(shape: Shape, seed: int) -> bytearray:
    """Layer i has the bytes from i * STEP on: no two pages of the cache are alike."""
    return bytearray(random.Random(seed).randbytes(shape.layer_bytes + shape.layers * STEP))


def moved(shape: Shape, seed: int, src: Sequence[int], dst: Sequence[int]) -> list[str]:
    """The digests of the layers of another cache when all pages of one with a seed have arrived."""
    whole = memoryview(content(shape, seed))

    def digest(layer: int) -> str:
        ours, there = whole[layer * STEP :], bytearray(shape.layer_bytes)
        for s, d in zip(src, dst, strict=True):
            there[d * PAGE : (d + 1) * PAGE] = ours[s * PAGE : (s + 1) * PAGE]
        return hashlib.sha256(there).hexdigest()

    with ThreadPoolExecutor() as threads:  # a hash of long data is made without the interpreter's lock
        return list(threads.map(digest, range(shape.layers)))


class Layers:
    """Tensors of one GPU: those at the addresses, or memory of the driver that `free` gives back."""

    def __init__(self, driver: Driver, shape: Shape, addresses: Sequence[int] = ()) -> None:
        self.driver, self.shape = driver, shape
        self._allocated = [] if addresses else [driver.allocate(shape.layer_bytes) for _ in range(shape.layers)]
        self.addresses = list(addresses) or self._allocated

    def fill(self, seed: int) -> None:
        """Gives all layers the bytes of a seed."""
        source = content(self.shape, seed)
        start = ctypes.addressof((ctypes.c_char * len(source)).from_buffer(source))
        for layer, address in enumerate(self.addresses):
            self.driver.copy(address, start + layer * STEP, self.shape.layer_bytes)

    def digests(self) -> list[str]:
        """The SHA-256 of each layer, read by the driver alone."""

        def digest(address: int) -> str:
            whole = bytearray(self.shape.layer_bytes)
            self.driver.copy(ctypes.addressof((ctypes.c_char * len(whole)).from_buffer(whole)), address, len(whole))
            return hashlib.sha256(whole).hexdigest()

        with ThreadPoolExecutor(8) as threads:
            return list(threads.map(digest, self.addresses))

    def free(self) -> None:
        for address in self._allocated:
            self.driver.free(address)
        self._allocated = []
