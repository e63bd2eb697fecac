"""Tail: the rest of an engine after its close."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from . import _native, loop
from .errors import TentError, translate

if TYPE_CHECKING:
    from ._gotent import Library


class Tail:
    """The rest of an engine after its close: its number in Go.

    By this number, memory of allocate() is unmapped when nobody looks at it any more. After that Go forgets the number
    and gives up the shared page.

    It counts instead of relying on references: the garbage collector ends the members of a cycle in any order.
    """

    __slots__ = ("_closed", "_early", "_id", "_library", "_lock", "_memories")

    def __init__(self, library: Library, id: int) -> None:
        self._closed = False
        self._library = library
        self._id = id
        self._lock = _native.renewed(threading.RLock())  # a finalizer may run inside the guarded lines
        self._memories = 0
        self._early: list[int] = []  # regions, the memory of which was dropped before they were closed

    def cut_off(self) -> None:
        """In a forked child: nothing is freed there."""
        self._library = _native.FORKED

    def allocated(self) -> None:
        """One more memory to be freed. Raises EngineClosedError once the engine has closed."""
        with self._lock:
            if self._closed:
                raise _native.closed_error()
            self._memories += 1

    def freed(self) -> None:
        """One less."""
        with self._lock:
            self._memories -= 1
            last = self._closed and self._memories == 0
        if last:
            self._forget()

    def free_memory(self, region: int) -> None:
        """Unmaps the memory of a region once that is closed. For Memory's finalizer: raises nothing.

        The collector may end a Memory before its engine, and then its region is open until the engine has closed.
        """
        closed = self._closed
        try:
            self.free(region)
            return
        except TentError as error:
            why = error
        with self._lock:
            early = not self._closed
            if early:
                self._early.append(region)
        if closed:
            loop.logger.error("memory could not be unmapped: %s", why)
        elif not early:  # the engine has closed meanwhile
            self.free_memory(region)

    def free(self, region: int) -> None:
        """Unmaps the memory of a closed region, also of a closed engine."""
        _native.call(self._library.pybind_FreeMemory, self._id, region)
        self.freed()

    def close(self) -> None:
        """The engine has closed, and the views of its page are released."""
        with self._lock:
            self._closed = True
            last = self._memories == 0
            early, self._early = self._early, []
        for region in early:
            self.free_memory(region)
        if last:
            self._forget()

    def _forget(self) -> None:
        try:
            self._library.pybind_Forget(self._id)
        except RuntimeError as error:
            loop.logger.error("the engine could not be forgotten: %s", translate(error))
