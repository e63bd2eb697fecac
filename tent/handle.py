"""Handle: an engine as the native module knows it, by a number."""

from __future__ import annotations

import json
import sys
import threading
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from itertools import compress, starmap
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from . import _native, loop
from .enums import TransferStatusEnum
from .errors import TentError, is_full, question_of, translate
from .page import CELL_WORDS, COMPLETED, PENDING

if TYPE_CHECKING:
    from ._gotent import Library
    from .memory import Memory
    from .tail import Tail

P = ParamSpec("P")
R = TypeVar("R")

_UNDO_MS = 30_000  # for a registration that was interrupted


class Settles(Protocol):
    """A Transfer, as its engine sees it."""

    def _settle(self) -> None:
        """Takes its outcome out of the engine, which is about to close."""


class Sleeps(Protocol):
    """A Stream, as its engine sees it."""

    def _wake_all(self) -> None:
        """Wakes the event loops that wait for an item: the engine has closed."""

    def _dropped(self) -> None:
        """The same for an engine that is garbage collected unclosed."""


class Handle:
    """The part of an Engine that the rest of the package uses: calls into Go, the shared page, and its end.

    Everything that an engine hands out keeps it as a Handle, so that no module needs to know the class Engine.
    """

    __slots__ = {
        "_closed": "",
        "_closing": "",
        "_default_priority": "",
        "_ends": "",
        "_hub": "",
        "_id": "",
        "_library": "",
        "_live": "",
        "_looks": "",
        "_memories": "",
        "_spare": "",
        "_spent": "",
        "_states": "",
        "_streams": "",
        "_tail": "",
        "_words": "",
        "address": 'Where peers open this engine, "host:port".',
        "name": "The name of this engine, in logs and at peers.",
        "peer_id": 'Its ID, 32 hexadecimal digits, new at each start: peers=["id:" + peer_id] of an owner names it.',
    }

    name: str
    address: str
    peer_id: str
    _default_priority: int  # of calls that give none
    _closed: bool
    _closing: threading.RLock  # held while close() is under way; a signal handler inside it may close too
    _library: Library
    _id: int
    _states: memoryview  # of the batches, in the shared page
    _words: memoryview  # the shared page by words
    _hub: loop.Hub
    _looks: Iterator[None]  # at transfers, until the engine is let work again
    _live: dict[int, weakref.ref[Settles]]
    _ends: dict[int, tuple[int, Any]]  # states and outcomes that a close keeps for transfers still to be made
    _streams: weakref.WeakSet[Sleeps]
    _memories: dict[int, Memory]  # by region, until it is closed
    _tail: Tail
    _spent: deque[int]  # batches that nobody needs any more
    _spare: int  # how many of them may wait to be given back

    @property
    def closed(self) -> bool:
        """Whether close() has begun."""
        return self._closed

    def _call(self, function: Callable[Concatenate[int, P], R], /, *arguments: P.args, **none: P.kwargs) -> R:
        """Calls a function of `_library` for this engine. Raises tent's exceptions."""
        return _native.call(function, self._id, *arguments, **none)

    def _call_long(self, function: Callable[Concatenate[int, P], R], /, *arguments: P.args, **none: P.kwargs) -> R:
        """Calls one that may take seconds, such that Ctrl-C works."""
        return _native.call_long(function, self._id, *arguments, **none)

    def _call_asking(self, function: Callable[Concatenate[int, P], R], /, *arguments: P.args, **none: P.kwargs) -> R:
        """Calls one that starts moves, and may have to ask peers for their regions first."""
        try:
            return function(self._id, *arguments, **none)
        except RuntimeError as error:
            return self._asked(error, function, *arguments, **none)

    def _asked(
        self, error: RuntimeError, function: Callable[Concatenate[int, P], R], /, *arguments: P.args, **none: P.kwargs
    ) -> R:
        """Makes a call that has failed again if a peer had to be asked first or dropped transfers took the room, and
        raises any other error. Ctrl-C works meanwhile: the question waits on another thread, and the call itself stays
        on this one."""
        if self._made_room(error):
            try:
                return function(self._id, *arguments, **none)
            except RuntimeError as again:
                error = again
        asked: set[int] = set()
        while (question := question_of(error)) is not None and question[0] not in asked:
            asked.add(question[0])
            self._call_long(self._library.pybind_Ask, *question)
            try:
                return function(self._id, *arguments, **none)
            except RuntimeError as again:
                error = again
        raise translate(error) from None

    def _call_json(self, function: Callable[Concatenate[int, P], str], /, *arguments: P.args, **none: P.kwargs) -> Any:
        """Calls one that answers in JSON, and returns the parsed answer."""
        return json.loads(self._call(function, *arguments, **none))

    def _call_long_json(
        self, function: Callable[Concatenate[int, P], str], /, *arguments: P.args, **none: P.kwargs
    ) -> Any:
        """Both: one that may take seconds, and answers in JSON."""
        return json.loads(self._call_long(function, *arguments, **none))

    def _opened_blob(self, blob: bytes | bytearray | memoryview) -> int:
        """Opens a blob of export(), without a word to the peer, and returns the segment."""
        packed = array("B", bytes(blob))
        return self._call(self._library.pybind_OpenBlob, *packed.buffer_info())

    def _register(self, into: list[int], *memory: Any) -> None:
        """Registers memory and appends the region's id to `into`, in one step for the interpreter: no signal handler
        raises between the registration and its record."""
        _native.call(into.extend, starmap(self._library.pybind_Register, [(self._id, *memory)]))

    @contextmanager
    def _registering(self, memory: Memory) -> Iterator[list[int]]:
        """Keeps memory while it is registered; the id of its region goes into the list. If something fails behind that,
        as a signal handler does, the region is closed again, or its memory is kept until the engine has closed."""
        ids: list[int] = []
        key = -id(memory)  # no region has it
        self._memories[key] = memory
        try:
            yield ids
        except BaseException:
            if self._undone(ids):
                self._memories.pop(key, None)
            raise
        try:
            del self._memories[key]  # no call, behind which a signal handler could raise
        except KeyError:
            pass  # a close beside this one has taken it, and lets the buffer go

    def _allocating(
        self, take: Callable[[dict[str, Any]], R], undo: Callable[[R], object], *wanted: Any
    ) -> AbstractContextManager[R]:
        """Allocates memory. `take` makes its record, on a thread that no signal handler interrupts. `undo` gets that if
        the caller is interrupted before the block has ended."""

        def allocate() -> R:
            function = self._library.pybind_Allocate
            self._tail.allocated()  # before the call: the engine may close meanwhile
            try:
                made = self._call_json(function, *wanted)
            except BaseException:
                self._tail.freed()
                raise
            return take(made)

        return _native.result_of(allocate, undo)

    def _opening(
        self, function: Callable[Concatenate[int, P], int], /, *arguments: P.args, **none: P.kwargs
    ) -> AbstractContextManager[int]:
        """Opens a segment, such that Ctrl-C works. It is closed again if the caller is interrupted before the block
        has ended."""

        def undo(segment: int) -> None:
            with suppress(TentError):  # the engine has closed meanwhile, and the segment with it
                self._call(self._library.pybind_CloseSegment, segment)

        return _native.result_of(partial(self._call, function, *arguments, **none), undo)

    def _undone(self, regions: list[int]) -> bool:
        """Closes the regions of a call that has failed. False: their memory could not be had back."""
        try:
            for region in regions:
                if self._call_long(self._library.pybind_CloseRegion, region, _UNDO_MS):
                    return False
                self._memories.pop(region, None)
        except (TentError, TimeoutError) as error:
            loop.logger.warning("engine %s keeps the memory of a call that failed: %s", self.name, error)
            return False
        return True

    def _check_open(self) -> None:
        if self._closed:
            _native.check_process()
            raise _native.closed_error()

    def _usable(self) -> bool:
        """Whether the engine is open: with a closed one all that it has handed out is closed. ForkError in a child."""
        if self._closed:
            _native.check_process()
        return not self._closed

    def _closed_meanwhile(self) -> bool:
        """Whether the engine is closed; waits for a close that another thread has begun."""
        if not self._closed:
            return False
        _native.check_process()
        if not loop.in_a_close():
            with self._closing:
                pass
        return True

    def _has_closed(self) -> bool:
        """Whether the engine is closed, and no other thread is closing it."""
        if ended := self._closed and self._closing.acquire(blocking=False):
            self._closing.release()
        return ended

    def _under_way(self) -> list[int]:
        """The ids of all batches that are under way, from the shared page: those of dropped transfers and of the
        integer level too."""
        words = self._words
        states = bytes(self._states)
        found, at = [], states.find(PENDING)
        while at >= 0:
            found.append(words[at * CELL_WORDS] >> 32 << 32 | at)
            at = states.find(PENDING, at + 1)
        return found

    def _ended(self) -> list[int]:
        """The ids of all batches that have ended and were not freed."""
        words = self._words
        states = bytes(self._states)
        used = compress(range(len(states)), states)
        return [words[at * CELL_WORDS] >> 32 << 32 | at for at in used if states[at] > PENDING]

    def _give_back(self, memory: Memory) -> None:
        """Gives the program its buffer back. Its region is closed, so no transfer begins; those under way may still
        use the bytes, and which of them do is not known here."""
        held = memory.another()
        batches: list[int] = []
        try:
            if held is not None and self._call(self._library.pybind_UnderWay):  # a look at all cells takes far longer
                batches = self._under_way()
        except (ValueError, TentError):
            pass  # the engine has closed meanwhile
        if held is not None and batches:
            keep = _Keep(self, held, batches)
            for batch in batches:
                self._hub.watch(batch, keep)
        memory.let_go()

    def _cut_off(self) -> None:
        """Called in a forked child: cuts this engine off from Go and from the shared page."""
        self._library = _native.FORKED
        self._closed = True
        self._states.release()
        self._words.release()
        self._hub.cut_off()  # a loop that was forked with it may still call it
        self._hub = cast("loop.Hub", _native.FORKED)
        self._tail.cut_off()

    @_native.finalizer
    def _dropped(self, batch: int, at: int, keep: object, asked: bool) -> None:
        """A Transfer was garbage collected, perhaps in the middle of anything: if it goes on, so does its memory. The
        batch of one that has COMPLETED is given back, with those of the small ones before it."""
        try:
            if self._states[at] == COMPLETED:
                self._spent.append(batch)
                self._free_spent()
            else:
                self._hub.watch(batch, Orphan(self, keep, asked))
        except (ValueError, RuntimeError, TentError):
            pass  # the engine has closed meanwhile, or this is a forked child

    def _made_room(self, error: RuntimeError) -> bool:
        """Whether a call is to be made again: it has found max_batches alive, and those that have ended and that the
        program has dropped were given back. Tent's thread does that at its leisure."""
        try:
            if not is_full(error) or 0 in bytes(self._states):  # it was another bound
                return False
            self._free_spent()
            for batch in self._ended():
                for orphan in self._hub.leave(batch, Orphan):
                    orphan(batch)
            if not self._live.keys() >= set(self._ended()):
                self._hub.catch_up()  # it has one of them in hand
        except (ValueError, TentError):
            return False  # the engine has closed meanwhile
        return True

    def _free_spent(self) -> None:
        """Gives back the batches that nobody needs any more."""
        if sys.is_finalizing():
            return
        ids = array("Q")
        try:
            while True:
                ids.append(self._spent.popleft())
        except IndexError:  # empty, or another thread takes the rest
            pass
        address, n = ids.buffer_info()
        self._library.pybind_FreeBatches(self._id, address, n)


class _Keep:
    """Watches transfers that were under way when a region was closed: keeps its buffer until their end. Runs on tent's
    thread. Until then the engine has the memory too, for a close that cannot have all of it back."""

    __slots__ = ("_batches", "_engine", "_key")

    def __init__(self, engine: Handle, memory: Memory, batches: list[int]) -> None:
        self._engine = engine
        self._batches = set(batches)
        self._key = -id(memory)  # no region has it
        engine._memories[self._key] = memory

    def __call__(self, batch: int) -> None:
        engine = self._engine
        try:
            if engine._states[batch & 0xFFFFFFFF] == PENDING and batch in engine._under_way():
                return  # its engine closes, and it has not ended
        except ValueError:
            return
        self._batches.discard(batch)
        if not self._batches:
            engine._memories.pop(self._key, None)


class Orphan:
    """Watches a transfer that nobody holds any more: keeps its memory until the end, frees its batch, and logs a
    failure that nobody asked for. Runs on tent's thread."""

    __slots__ = ("_asked", "_engine", "_keep")

    def __init__(self, engine: Handle, keep: object, asked: bool) -> None:
        self._engine = engine
        self._keep = keep
        self._asked = asked

    def __call__(self, batch: int) -> None:
        engine = self._engine
        try:
            state = engine._states[batch & 0xFFFFFFFF]
            if state > PENDING and state not in (COMPLETED, TransferStatusEnum.CANCELED) and not self._asked:
                failure = engine._call_json(engine._library.pybind_Failure, batch)
                loop.logger.warning(
                    "a transfer that was dropped has ended as %s: %s",
                    TransferStatusEnum(state).name,
                    failure.get("message"),
                )
            engine._call(engine._library.pybind_FreeBatch, batch)
        except (TentError, ValueError):
            pass  # the engine has closed, and the batch with it
