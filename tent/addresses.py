"""Addresses: a prepared list of ranges, so that a stack that knows its memory by address posts by indexes alone."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from . import _native, indexes
from .errors import InvalidArgumentError
from .grid import Grid
from .indexes import Index, Integers
from .quantities import bytes_of, integer_of

if TYPE_CHECKING:
    from .handle import Handle


class Addresses(Grid):
    """Ranges by plain address over any number of regions, from Engine.addresses() or Segment.addresses().

    Each range lies inside one region; each was looked up when the list was made. write_pages() and read_pages() take a
    list on both sides and move range src[i] to or from range dst[i]. Their lengths must be equal.

    Reusable from any thread until close(); dropping it closes it. A region that is closed later makes the transfers
    that name its ranges fail.
    """

    __slots__ = ()

    def __init__(
        self, engine: Handle, segment: int, ranges: Any, lengths: Integers | int | str | None, keep: Any, asks: bool
    ) -> None:
        """For tent only; segment -1 is own memory. `asks`: the segment is of a peer, which may be asked."""
        self._closed = True
        self._engine = engine
        self._keep = keep
        self._read_only = False  # each call looks for regions that it may write to
        self._twin = None
        self.remote = segment >= 0
        at, sizes = _columns(ranges, lengths)
        self.page_bytes = 0
        self.n_regions = 0
        words = array("Q", (*at.words(), *sizes.words()))
        read = words, at, sizes  # by the call, which goes on behind a Ctrl-C

        def make() -> int:
            return engine._call(engine._library.pybind_Addresses, segment, at.n, read[0].buffer_info()[0])

        if asks:
            with _native.result_of(make, self._forget) as self._id:
                self._closed = False
        else:
            self._id = make()
            self._closed = False
        self.n_pages = at.n

    def _forget(self, id: int) -> None:
        """Closes a list that nobody has."""
        self._engine._call(self._engine._library.pybind_CloseGrid, id)

    def as_remote(self) -> Grid:
        """The list as the remote operand; own memory is not: open("") has addresses() too."""
        if self.remote:
            return self
        raise InvalidArgumentError(f"{self!r} is local", hint='own memory as a peer is engine.open("").addresses(...)')

    def __repr__(self) -> str:
        side = f"of {getattr(self._keep, 'address', '')}" if self.remote else "local"
        return f"<Addresses {side}: {self.n_pages} ranges{self._state()}>"


def _columns(ranges: Any, lengths: Integers | int | str | None) -> tuple[Index, Index]:
    if lengths is None:
        return indexes.pairs(ranges, "addresses")
    at = indexes.describe(ranges, "addresses")
    if isinstance(lengths, str) or integer_of(lengths) is not None:
        return at, indexes.one(bytes_of(lengths, "lengths", least=1))
    sizes = indexes.describe(lengths, "lengths")
    if sizes.n != at.n:
        raise InvalidArgumentError(f"there are {at.n} addresses and {sizes.n} lengths")
    return at, sizes
