"""Local memory of the integer level: ranges by their addresses."""

from __future__ import annotations

import threading
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from . import _native
from .errors import AddressNotRegisteredError, InvalidArgumentError, TentError
from .memory import not_back
from .quantities import text_of

if TYPE_CHECKING:
    from .handle import Handle

CLOSE_MS = 30_000

Range = tuple[int, int]  # address, size


class _Owned(NamedTuple):
    region: int
    allocated: bool  # by the engine


class LocalMemory:
    """The ranges that were registered or allocated by their addresses. Any thread may use it.

    One thread at a time begins or ends a range; others wait for it, without a lock that other ranges need. So a range
    that two threads register has one region, and one record by which it is taken back.
    """

    def __init__(self, engine: Handle) -> None:
        self._engine = engine
        self._change = threading.Condition()
        self._taken: dict[Range, int] = {}  # by the thread that begins or ends the range
        self._owned: dict[Range, _Owned] = {}

    def allocate(self, size: int, location: str, permission: int) -> int:
        """Returns the address of new memory."""

        def take(made: dict[str, int]) -> int:
            self._remember((made["address"], made["size"]), _Owned(made["id"], True))
            return made["address"]

        wanted = size, "", text_of(location, "location", needed=True), permission, False, False, ""
        with self._engine._allocating(take, self.free, *wanted) as address:
            return address

    def free(self, address: int) -> None:
        """Unmaps memory of allocate(), also when the engine has closed."""
        with self._ending(address, 0, allocated=True) as region:
            self._engine._closed_meanwhile()
            if self._engine._library is not _native.CLOSED:  # also in a callback of a close that goes on
                self._engine._call_long(self._engine._library.pybind_CloseRegion, region, CLOSE_MS)
            self._engine._tail.free(region)

    def register(self, key: Range, location: str, permission: int, made: list[Range]) -> None:
        """Registers a range and appends it to `made`, unless it is registered already."""
        where = text_of(location, "location", needed=True)
        ids: list[int] = []
        with self._alone(key):
            if key in self._owned:
                return
            try:
                self._engine._register(ids, *key, False, False, "", where, permission, "")
            finally:
                for region in ids:  # also where a signal handler has raised behind the call
                    self._remember(key, _Owned(region, False))
                    made.append(key)

    def unregister(self, address: int, size: int) -> None:
        """Returns when nobody can touch the range any more. Size 0 goes by the address alone."""
        with self._ending(address, size, allocated=False) as region:
            if self._engine._call_long(self._engine._library.pybind_CloseRegion, region, CLOSE_MS):
                raise not_back(address)

    def unregister_all(self, ranges: Iterable[Range]) -> None:
        """The same for several. None is ended where one is unknown, or given once too often; one that is late keeps
        no other one registered."""
        leaving: dict[Range, None] = {}  # in their order
        for address, size in ranges:
            leaving[self._find(address, size, allocated=False, without=leaving)] = None
        first: Exception | None = None
        for key in leaving:
            try:
                self.unregister(*key)
            except (TentError, TimeoutError) as error:
                first = first or error
        if first is not None:
            raise first

    def _remember(self, key: Range, owned: _Owned) -> None:
        with self._change:
            self._owned[key] = owned

    @contextmanager
    def _alone(self, key: Range) -> Iterator[None]:
        """Keeps other threads away from a range. A signal handler may raise at any place, and call for the range."""
        me = threading.get_ident()
        if self._taken.get(key) == me:
            raise InvalidArgumentError(
                f"this thread registers or ends the memory at {key[0]:#x} already",
                hint="a signal handler or a finalizer has interrupted it: do it behind that call",
            )
        try:
            with self._change:
                while key in self._taken:
                    self._change.wait(_native.WAIT_SLICE_MS / 1000)
                self._taken[key] = me
            yield
        finally:
            if key in self._taken and self._taken[key] == me:
                del self._taken[key]
            with self._change:
                self._change.notify_all()

    @contextmanager
    def _ending(self, address: int, size: int, allocated: bool) -> Iterator[int]:
        """Gives the region of a range to the thread that ends it, and drops the record when that was done."""
        key = self._find(address, size, allocated)
        with self._alone(key):
            key = self._find(*key, allocated)  # another thread may have ended it meanwhile
            yield self._owned[key].region
            with self._change:
                del self._owned[key]

    def _find(self, address: int, size: int, allocated: bool, without: Container[Range] = ()) -> Range:
        with self._change:
            for key, owned in self._owned.items():
                fits = key[0] == address and (size == 0 or key[1] == size) and owned.allocated == allocated
                if fits and key not in without:
                    return key
        how = "allocate_local_memory" if allocated else "register_local_memory"
        raise AddressNotRegisteredError(f"{address:#x} is not an address of {how}")
