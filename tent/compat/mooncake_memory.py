"""Local memory in Mooncake's form: ranges by their addresses alone, and buffers that the engine allocates."""

from __future__ import annotations

import ctypes
import math
import operator
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .. import _native
from ..errors import InvalidArgumentError, NotImplementedError
from .taking_back import close_all

if TYPE_CHECKING:
    from ..engine import Engine
    from ..region import Region

_PREFIX = "mooncake/"  # of the names of regions; their number in the order of registration follows


class Memory:
    """The memory of one engine. Any thread may use it; calls raise tent's errors.

    A range that was registered twice stays until it was taken back twice.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = _native.renewed(threading.RLock())
        self._registered: dict[int, list[Region]] = {}
        self._allocated: dict[int, list[Region]] = {}
        self._names = 0

    def register(self, ranges: Iterable[tuple[int, int]], location: str) -> None:
        """Registers (address, size) ranges, all or none."""
        made: list[Region] = []
        try:
            for address, size in ranges:
                made.append(self._engine.register((address, size), name=self._name(), location=location))
        except BaseException:
            close_all(made)
            raise
        for region in made:
            self._hold(self._registered, region)

    def unregister(self, address: int) -> None:
        """Ends the access of peers to the range that begins here; none of them touches it when this returns. After an
        error the range is still to be unregistered."""
        self._end(self._registered, address, "no memory was registered")

    def allocate(self, size: int) -> int:
        """The address of new memory, which peers of this host can share."""
        region = self._engine.allocate(size, name=self._name())
        self._hold(self._allocated, region)
        return region.address

    def free(self, address: int) -> None:
        """Gives memory of allocate() back, as unregister() does."""
        self._end(self._allocated, address, "no buffer was allocated")

    def _hold(self, held: dict[int, list[Region]], region: Region) -> None:
        with self._lock:
            held.setdefault(region.address, []).append(region)

    def _end(self, held: dict[int, list[Region]], address: int, absent: str) -> None:
        """Closes the region that was held last at an address; it is held again after an error."""
        with self._lock:
            regions = held.get(address)
            if not regions:
                raise InvalidArgumentError(f"{absent} at {address:#x}")
            region = regions.pop()
            if not regions:
                del held[address]
        try:
            region.close()
        except BaseException:
            self._hold(held, region)
            raise

    def write(self, address: int, data: bytes, size: int) -> None:
        """Copies the first bytes of `data` into memory of this engine."""
        address, size = operator.index(address), operator.index(size)
        if not 0 <= size <= len(data):
            raise InvalidArgumentError(f"{size} bytes are to be written, and {len(data)} were given")
        self._check_inside(address, size)
        ctypes.memmove(address, data, size)

    def read(self, address: int, size: int) -> bytes:
        """Copies bytes out of memory of this engine."""
        address, size = operator.index(address), operator.index(size)
        self._check_inside(address, size)
        return ctypes.string_at(address, size)

    def _check_inside(self, address: int, size: int) -> None:
        """Refuses a range outside of this engine's memory, and one that the processor cannot touch."""
        with self._lock:
            held = [r for listed in (*self._registered.values(), *self._allocated.values()) for r in listed]
        inside = [r for r in held if r.address <= address and address + size <= r.address + r.size]
        if size < 0 or not inside:
            raise InvalidArgumentError(f"{size} bytes at {address:#x} are not in this engine's memory")
        if not inside[0].location.startswith(("cpu", "*")):
            raise NotImplementedError(f"bytes of {inside[0].location} are not copied by hand", hint="transfer them")

    def _name(self) -> str:
        with self._lock:
            self._names += 1
            return f"{_PREFIX}{self._names}"


def registered_as(name: str) -> float:
    """The place of a region among those of its engine, by its name; others come last."""
    number = name.removeprefix(_PREFIX)
    return int(number) if number.isdecimal() and number != name else math.inf
