"""Transfers of an agent: looked-up lists, and moves between two of them with a notification behind the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...moving import READ, WRITE
from .descriptors import FILE_SEG, nixlXferDList
from .errors import nixlInvalidParamError, nixlNotSupportedError, translating

if TYPE_CHECKING:
    from ...addresses import Addresses
    from ...engine import Engine
    from ...segment import Segment
    from ...transfer import Transfer
    from ..options import Options
    from .mailbox import Mailbox
    from .memory import Memory
    from .remotes import Remotes

_OPERATIONS = {"READ": READ, "WRITE": WRITE}


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

    def look_up(self, name: str | None, descs: nixlXferDList) -> Addresses:
        """The engine's list of these ranges of an agent; without a name they are local."""
        if descs.isEmpty():
            raise nixlInvalidParamError("a descriptor list has at least one range")
        with translating():
            if descs.getType() == FILE_SEG:
                return self._file(name, descs).addresses(descs.rows)
            if name is None:
                return self._engine.addresses(descs.rows)
            return self._remotes.segment(name).addresses(descs.rows)

    def _file(self, name: str | None, descs: nixlXferDList) -> Segment:
        if name != self._own:
            raise nixlNotSupportedError("ranges of a file go on the remote side, under this agent's own name")
        return self._memory.file_of(descs)

    def post(
        self, op: int, name: str, here: Addresses, src: Any, there: Addresses, dst: Any, message: bytes
    ) -> list[Transfer]:
        """Begins a move between ranges of two lists. Of a long message all parts but the last go by themselves."""
        move = self._engine.read_pages if op == READ else self._engine.write_pages
        parts = self._mailbox.parts(message)
        sent = self._mailbox.post(self._remotes.segment(name), parts[:-1])
        last = parts[-1] if parts else None
        sent.append(move(here, src, there, dst, notify=last, **self._options.terms))
        return sent


def operation(text: str) -> int:
    """The engine's number of an operation."""
    try:
        return _OPERATIONS[text]
    except (KeyError, TypeError):
        raise nixlInvalidParamError(f'the operation is {text!r}: it must be "READ" or "WRITE"') from None


def indexes(given: Any, n: int, side: str) -> Any:
    """Indexes into a list of n ranges, as an array of the handle's own."""
    array = np.asarray(given)
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "iubf":
        raise nixlInvalidParamError(f"the {side} indexes are a list of at least one integer")
    with np.errstate(invalid="ignore"):  # of NaN
        table = array.astype(np.int64)
    if array.dtype.kind == "f" and (table != array).any():
        raise nixlInvalidParamError(f"the {side} indexes are integers, not {array[table != array][0]}")
    if int(table.min()) < 0 or int(table.max()) >= n:
        wrong = int(table.min()) if int(table.min()) < 0 else int(table.max())
        raise nixlInvalidParamError(f"the {side} index {wrong} is not in the list, which has 0 to {n - 1}")
    return table
