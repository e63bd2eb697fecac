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
    """Memory of allocate() is registered from the beginning, and may be unregistered and registered again."""

    region: int  # 0: peers do not reach the range
    memory: int  # the region of its allocation, 0: the caller's memory
    permission: int  # of the region

    def is_(self, allocated: bool) -> bool:
        """Whether the range is allocated, or else whether it is registered."""
        return (self.memory if allocated else self.region) != 0


class LocalMemory:
    """The ranges that were registered or allocated by their addresses. Any thread may use it.

    One thread at a time begins or ends a range; others wait for it, without a lock that other ranges need. So a range
    that two threads register has one region, and one record by which it is taken back.
    """

    def __init__(self, engine: Handle) -> None:
        self._engine = engine
        self._change = _native.renewed(threading.Condition())
        self._taken: dict[Range, int] = {}  # by the thread that begins or ends the range
        self._owned: dict[Range, _Owned] = {}

    def allocate(self, size: int, location: str, permission: int) -> int:
        """Returns the address of new memory."""

        def take(made: dict[str, int]) -> int:
            self._remember((made["address"], made["size"]), _Owned(made["id"], made["id"], permission))
            return made["address"]

        wanted = size, "", text_of(location, "location", needed=True), permission, False, False, ""
        with self._engine._allocating(take, self.free, *wanted) as address:
            return address

    def free(self, address: int) -> None:
        """Unmaps memory of allocate(), also when the engine has closed."""
        with self._ending(address, 0, allocated=True) as owned:
            self._engine._closed_meanwhile()
            if self._engine._library is not _native.CLOSED:  # also in a callback of a close that goes on
                lingers = owned.region and self._close(owned.region)
                if lingers and owned.region != owned.memory:  # registered anew: unmapping does not wait for that one
                    raise not_back(address)
            self._engine._tail.free(owned.memory)

    def register(self, key: Range, location: str, permission: int, made: list[Range]) -> None:
        """Registers a range and appends it to `made`, unless it is registered already with this permission."""
        where = text_of(location, "location", needed=True)
        ids: list[int] = []
        with self._alone(key):
            before = self._owned.get(key, _Owned(0, 0, 0))
            if before.region:
                if before.permission != permission:
                    raise InvalidArgumentError(
                        f"{key[1]} bytes at {key[0]:#x} are registered already, with another permission",
                        hint="unregister them first, or allocate them with that one: allocate_local_memory_ex",
                    )
                return
            try:
                self._engine._register(ids, *key, False, False, "", where, permission, "")
            finally:
                for region in ids:  # also where a signal handler has raised behind the call
                    self._remember(key, _Owned(region, before.memory, permission))
                    made.append(key)

    def unregister(self, address: int, size: int) -> None:
        """Returns when nobody can touch the range any more. Size 0 goes by the address alone."""
        with self._ending(address, size, allocated=False) as owned:
            if self._close(owned.region):
                raise not_back(address)

    def _close(self, region: int) -> int:
        return self._engine._call_long(self._engine._library.pybind_CloseRegion, region, CLOSE_MS)

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
        _native.check_process()  # a thread that is not there has its range for ever
        me = threading.get_ident()
        if self._taken.get(key) == me:
            raise InvalidArgumentError(
                f"this thread registers or ends the memory at {key[0]:#x} already",
                hint="a signal handler or a finalizer has interrupted it: do it behind that call",
            )
        try:
            with self._change:
                while key in self._taken:
                    _native.check_process()
                    self._change.wait(_native.WAIT_SLICE_MS / 1000)
                self._taken[key] = me
            yield
        finally:
            if key in self._taken and self._taken[key] == me:
                del self._taken[key]
            with self._change:
                self._change.notify_all()

    @contextmanager
    def _ending(self, address: int, size: int, allocated: bool) -> Iterator[_Owned]:
        """Gives the record of a range to the thread that ends it. When that was done, memory of an allocation is still
        allocated where it was registered, and other records go."""
        key = self._find(address, size, allocated)
        with self._alone(key):
            key = self._find(*key, allocated)  # another thread may have ended it meanwhile
            owned = self._owned[key]
            yield owned
            with self._change:
                if owned.memory and not allocated:
                    self._owned[key] = _Owned(0, owned.memory, 0)
                else:
                    del self._owned[key]

    def _find(self, address: int, size: int, allocated: bool, without: Container[Range] = ()) -> Range:
        found = []
        with self._change:
            for key, owned in self._owned.items():
                fits = key[0] == address and (size == 0 or key[1] == size) and owned.is_(allocated)
                if fits and key not in without:
                    found.append((owned.memory != 0, key))
        if found:  # the caller's own first: an allocation and a part of it that is registered besides begin together
            return min(found, key=lambda one: one[0])[1]
        how = "allocate_local_memory" if allocated else "register_local_memory"
        raise AddressNotRegisteredError(f"{address:#x} is not an address of {how}")
