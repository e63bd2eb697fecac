"""Transfers of an agent: looked-up lists, and moves between two of them with a notification behind the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._abi import RECORD_WORDS
from ..._text import shown
from ...moving import READ, WRITE
from ...terms import filled, terms
from ...transfer import Transfer
from .descriptors import FILE_SEG, nixlXferDList
from .errors import nixlInvalidParamError, nixlNotSupportedError, translating
from .files import FileRanges

if TYPE_CHECKING:
    from ...addresses import Addresses
    from ...engine import Engine
    from ..options import Options
    from .mailbox import Mailbox
    from .memory import Memory
    from .remotes import Remotes

_OPERATIONS = {"READ": READ, "WRITE": WRITE}


class Ranges:
    """A list of ranges that was looked up. As upstream, one without bytes has its index, and nothing of it moves."""

    __slots__ = ("addresses", "n", "places", "rows")

    def __init__(self, look_up: Callable[[Any], Addresses], rows: Any) -> None:
        """`look_up` makes the engine's list, of the ranges that have bytes."""
        full = rows[:, 1] > 0
        self.n = len(rows)
        # The index of each range in the engine's list, -1 for one without bytes; None where every one is at its own.
        self.places = None if full.all() else np.where(full, np.cumsum(full) - 1, -1)
        self.rows = rows if self.places is None else rows[full]
        self.addresses = look_up(self.rows) if full.any() else None

    def close(self) -> None:
        """Forgets the list. Again: no effect."""
        if self.addresses is not None:
            self.addresses.close()


Looked = Ranges | FileRanges


class Moves:
    """Begins the transfers of one agent. Any thread may use it."""

    def __init__(self, engine: Engine, own: str, memory: Memory, remotes: Remotes, mailbox: Mailbox, options: Options):
        """`own` is this agent's name, under which the remote side of a transfer within it goes."""
        self._engine = engine
        self._own = own
        self._memory = memory
        self._remotes = remotes
        self._mailbox = mailbox
        self._options = options

    def look_up(self, name: str | None, descs: nixlXferDList) -> Looked:
        """Looks ranges of an agent up; without a name they are local."""
        if descs.isEmpty():
            raise nixlInvalidParamError("a descriptor list has at least one range")
        with translating():
            if descs.getType() == FILE_SEG:
                return self._files(name, descs)
            if name is None:
                return Ranges(self._engine.addresses, descs.rows)
            return Ranges(self._remotes.segment(name).addresses, descs.rows)

    def _files(self, name: str | None, descs: nixlXferDList) -> FileRanges:
        if name != self._own:
            raise nixlNotSupportedError("ranges of a file go on the remote side, under this agent's own name")
        return self._memory.files.ranges(descs.rows)

    def post(
        self, op: int, name: str, here: Looked, src: Any, there: Looked, dst: Any, message: bytes
    ) -> list[Transfer]:
        """Begins a move between ranges of two lists. Of a long message all parts but the last go by themselves. Without
        any bytes there is a message alone, or nothing."""
        assert isinstance(here, Ranges)  # _files() refuses the others
        src, dst = _with_bytes(here, src, there, dst)
        if isinstance(there, FileRanges):
            return self._post_files(op, here, src, there, dst, message)
        move = self._engine.read_pages if op == READ else self._engine.write_pages
        parts = self._mailbox.parts(message)
        segment = self._remotes.segment(name)
        if here.addresses is None or there.addresses is None or not len(src):
            return self._mailbox.post(segment, parts)
        sent = self._mailbox.post(segment, parts[:-1])
        last = parts[-1] if parts else None
        sent.append(move(here.addresses, src, there.addresses, dst, notify=last, **self._options.terms))
        return sent

    def _post_files(
        self, op: int, here: Ranges, src: Any, there: FileRanges, dst: Any, message: bytes
    ) -> list[Transfer]:
        if message:
            raise nixlNotSupportedError("a transfer with a file carries no notification: call send_notif() at its end")
        if here.addresses is None or not len(src):
            return []
        own, rows = here.rows[src], there.rows[dst]
        if (own[:, 1] != rows[:, 1]).any():  # before a file grows
            raise nixlInvalidParamError("a range of memory and its range of a file are of two lengths")
        with self._memory.files.reached(there, rows, grows=op != READ) as segments:
            given, _ = terms(**self._options.terms)
            requests = np.empty((len(rows), RECORD_WORDS), np.uint64)
            requests[:, 5:] = filled(op, self._engine._default_priority, given)
            requests[:, 0], requests[:, 1] = own[:, 0], segments
            requests[:, 2:4] = rows[:, :2]
            requests[:, 4] = 0  # a file is one region
            start = self._engine._library.pybind_Start
            batch = self._engine._call_asking(start, 0, requests.ctypes.data, len(requests), 0)
        return [Transfer(self._engine, batch, int(rows[:, 1].sum()), (here.addresses,))]


def _with_bytes(here: Ranges, src: Any, there: Looked, dst: Any) -> tuple[Any, Any]:
    """Indexes into the engine's two lists, without the pairs of ranges that have no bytes."""
    if here.places is None is there.places:
        return src, dst
    src = src if here.places is None else here.places[src]
    dst = dst if there.places is None else there.places[dst]
    if ((src < 0) != (dst < 0)).any():
        raise nixlInvalidParamError("a range without bytes is paired with one that has some")
    return src[src >= 0], dst[dst >= 0]


def operation(text: str) -> int:
    """The engine's number of an operation."""
    try:
        return _OPERATIONS[text]
    except (KeyError, TypeError):
        raise nixlInvalidParamError(f'the operation is {shown(text)}: it must be "READ" or "WRITE"') from None


def indexes(given: Any, n: int, side: str) -> Any:
    """Indexes into a list of n ranges, as an array of the handle's own."""
    array = np.asarray(given)
    if array.dtype == object and isinstance(given, Iterable):  # a set, the keys of a dict, a generator
        array = np.asarray(list(given))
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "iubf":
        raise nixlInvalidParamError(f"the {side} indexes are a list of at least one integer")
    if array.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # of NaN
            table = array.astype(np.int64)
        if (table != array).any():
            raise nixlInvalidParamError(f"the {side} indexes are integers, not {array[table != array][0]}")
    else:
        table = array.astype(np.int64)
    if int(table.view(np.uint64).max()) >= n:  # a negative one as well
        wrong = int(array[(table < 0) | (table >= n)][0])
        raise nixlInvalidParamError(f"the {side} index {wrong} is not in the list, which has 0 to {n - 1}")
    return table
