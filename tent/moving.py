"""From the arguments of a move to one call into the engine. Engine and Batch share this: a builder of 0 makes a new
transfer, another one collects.

Every check that needs Python's view of an operand is here; ranges, permissions and states are the engine's.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from . import _abi, buffers, grid, indexes, quantities
from ._abi import Terms
from ._text import shown
from ._transports import HINTS, TransportType
from .errors import AddressNotRegisteredError, InvalidArgumentError, InvalidEntryError
from .operands import outdate
from .region import Region, RegionSlice
from .segment import RemoteRegion, RemoteSlice, Segment

if TYPE_CHECKING:
    from .handle import Handle

Local = RegionSlice | Region | memoryview | bytearray | bytes | Any
Remote = RemoteSlice | RemoteRegion | Segment | RegionSlice | Region
Notify = tuple[str | bytes, str | bytes]
Hint = TransportType | str | int | None
Require = str | Iterable[str] | None

# The engine's answer (a batch, 0 from a builder), the bytes in all or -1, and the keepers of the operands.
Begun = tuple[int, int, tuple[object, ...]]

READ, WRITE = 0, 1

NAME_MAX = 255
MESSAGE_MAX = 64 << 10
TRACE_MAX = 64

_FOREVER = float(1 << 32)  # seconds; a later deadline would leave the clock's range


def transport_number(hint: Any) -> int:
    """The number of a transport that is given by name or number; None is 0."""
    if hint is None:
        return 0
    number = HINTS.get(hint.lower()) if isinstance(hint, str) else quantities.integer_of(hint)
    if number is not None and number in HINTS.values():
        return number
    known = {number: name for name, number in sorted(HINTS.items(), reverse=True)}  # one name of each
    raise InvalidArgumentError(
        f"hint {shown(hint)} names no transport", hint="known: " + ", ".join(sorted(known.values()))
    )


def deadline(timeout: float | str) -> int:
    """The instant on time.monotonic_ns()'s clock that is `timeout` away."""
    if type(timeout) is not float or not 0 <= timeout < _FOREVER:
        timeout = quantities.seconds_of(timeout, none=", or None for no limit")
    return time.monotonic_ns() + int(min(timeout, _FOREVER) * 1e9)


def local_slice(engine: Handle, operand: Any, op: int) -> RegionSlice:
    """The local operand as a slice of own memory: a Region, or any contiguous buffer (which the engine will look for in
    its regions)."""
    if isinstance(operand, Region):
        operand = RegionSlice(operand, 0, operand.size)
    if isinstance(operand, RegionSlice):
        if operand.region._engine is not engine:
            raise InvalidArgumentError(f"{operand!r} belongs to another engine", hint="register the memory in this one")
        if operand.region._closed:
            operand.region._check_open()
        if op == READ and operand.region._memory.read_only:
            raise _read_only(repr(operand))
        return operand
    if isinstance(operand, (RemoteSlice, RemoteRegion, Segment)):
        raise InvalidArgumentError(f"{operand!r} is remote", hint="the local operand comes first, then the remote one")
    found = buffers.describe(operand)
    if op == READ and found.read_only:
        raise _read_only(f"the {type(operand).__name__!r} buffer")
    return _Loose(found)


def _read_only(what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{what} is read-only: a READ cannot be stored there")


class _Loose(RegionSlice):
    """A buffer that lies in some region; it stands for its own region, and keeps its owner."""

    __slots__ = ()

    def __init__(self, buffer: buffers.Buffer) -> None:
        self.address = buffer.address
        self.size = buffer.size
        self.offset = 0
        self.region = buffer.owner  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<buffer at {self.address:#x}, {self.size} bytes>"


def remote_slice(engine: Handle, operand: Any) -> tuple[int, int, int, int]:
    """The remote operand as (segment, region, offset, size). An own region is segment 0."""
    if type(operand) is RemoteSlice:
        segment, size = operand.segment, operand.size
        region, offset = operand.region_id, operand.offset
    elif isinstance(operand, (RemoteRegion, Segment)):
        single = operand._single() if isinstance(operand, Segment) else operand
        segment, region, offset, size = single.segment, single._id, 0, single.size
    elif isinstance(operand, (Region, RegionSlice)) and not isinstance(operand, _Loose):
        own = operand if isinstance(operand, RegionSlice) else RegionSlice(operand, 0, operand.size)
        own.region._check_open()
        if own.region._engine is not engine:
            raise InvalidArgumentError(f"{own!r} belongs to another engine", hint="open that engine's address")
        return 0, own.region._id, own.offset, own.size
    else:
        raise InvalidArgumentError(
            f"the remote operand is {type(operand).__name__!r}",
            hint='give segment["name"][a:b], segment.memory(address, size) or an own Region',
        )
    if segment._engine is not engine:
        raise InvalidEntryError(f"the segment of {segment.address} was opened by another engine")
    if segment._closed:
        segment._check_open()
    return segment._handle, region, offset, size


def move(engine: Handle, builder: int, terms: Terms, local: Any, remote: Any, notify: Packed | None = None) -> Begun:
    """Begins one READ or WRITE; returns the engine's answer, the size and the keepers of the operands."""
    op = terms[0]
    if type(local) is not RegionSlice or op == READ or local.region._engine is not engine or local.region._closed:
        local = local_slice(engine, local, op)
    segment, region, offset, size = remote_slice(engine, remote)
    if size != local.size:
        raise InvalidArgumentError(f"the operands differ in size: local {local.size} bytes, remote {size}")
    record = _abi.record(terms, local.address, segment, offset, size, region)
    note = 0 if notify is None else notify.address
    answer = _begun(engine, remote, engine._library.pybind_Start, builder, record.buffer_info()[0], 1, note)
    return answer, size, (local, remote)


def _begun(engine: Handle, remote: object, function: Callable[..., int], /, *arguments: int) -> int:
    """Makes a call that begins moves, as Handle._call_asking() does."""
    try:
        return function(engine._id, *arguments)
    except RuntimeError as error:
        try:
            return engine._asked(error, function, *arguments)
        except AddressNotRegisteredError:
            outdate([remote])
            raise


def pages(
    engine: Handle,
    builder: int,
    terms: Terms,
    operands: tuple[Any, Any, Any, Any, int | str | None],
    notify: Packed | None = None,
) -> Begun:
    """write_pages and read_pages: operands are (pages, src, remote pages, dst, page_bytes), as in the call."""
    local, src, remote, dst, page_bytes = operands
    local_grid = _grid(engine, local, page_bytes, remote=False, op=terms[0])
    remote_grid = _grid(engine, remote, page_bytes, remote=True, op=terms[0])
    # In the call, `src` are pages of the local operand and `dst` pages of the remote one, in both directions.
    here, there = indexes.describe(src, "src"), indexes.describe(dst, "dst")
    if here.n != there.n:
        raise InvalidArgumentError(f"src has {here.n} indexes and dst {there.n}")
    note = 0 if notify is None else notify.address
    far = remote_grid.as_remote()._id  # of own memory: this grid ends with the other one, which is kept until the call
    block = _abi.pages_block(terms, builder, local_grid._id, far, here.n, here.words(), there.words(), note)
    answer = _begun(engine, remote, engine._library.pybind_Pages, block.buffer_info()[0])
    return answer, -1, (local, local_grid, remote, remote_grid)


def _grid(engine: Handle, operand: Any, page_bytes: int | str | None, *, remote: bool, op: int) -> grid.Grid:
    """The grid of an operand. That of own memory is a local one on both sides."""
    if type(page_bytes) is int:  # the usual cases first: a region that remembers its grid
        known: grid.Grid | None = None
        if type(operand) is RemoteRegion:
            segment = operand.segment
            if remote and segment._engine is engine and not segment._closed:
                known = operand._grids.get(page_bytes)
        elif type(operand) is Region and not remote:
            usable = operand._engine is engine and not operand._closed
            if usable and not (op == READ and operand._memory.read_only):
                known = operand._grids.get(page_bytes)
        if known is not None:
            return known
    if isinstance(operand, grid.Grid):
        if operand._engine is not engine or operand._closed:
            raise InvalidEntryError(f"{operand!r} is closed or of another engine", code="STALE_ID")
        if page_bytes is not None and quantities.bytes_of(page_bytes, "page_bytes") != operand.page_bytes:
            raise InvalidArgumentError(f"page_bytes is {page_bytes}, but {operand!r}")
        if operand.remote and not remote:
            raise InvalidArgumentError(f"{operand!r} is remote", hint="the local operand comes first")
        if op == READ and not remote and operand._read_only:
            raise _read_only(repr(operand))
        return operand
    if remote and isinstance(operand, (RemoteRegion, Segment)):
        single = operand._single() if isinstance(operand, Segment) else operand
        remote_slice(engine, single)
        return grid.cached(single, page_bytes, single.segment.pages)
    if isinstance(operand, Region):
        local_slice(engine, operand, WRITE if remote else op)
        return grid.cached(operand, page_bytes, partial(grid.own, engine))
    if page_bytes is None:
        raise grid.no_page_bytes()
    if remote and not isinstance(operand, RegionSlice):
        remote_slice(engine, operand)  # an error for all that is no RemoteSlice
        there: grid.Grid = operand.segment.pages(operand, page_bytes)
        return there
    part = local_slice(engine, operand, WRITE if remote else op)
    if isinstance(part, _Loose):
        return grid.of_buffer(engine, part.address, part.size, part.region, page_bytes)
    return grid.own(engine, part, page_bytes)


class _Anywhere:
    """All registered memory of the engine: offsets in it are addresses."""

    address = size = 0


def ranges(
    engine: Handle,
    builder: int,
    terms: Terms,
    operands: tuple[Any, Any, Any, Any, Any],
    notify: Packed | None = None,
) -> Begun:
    """write_ranges and read_ranges: operands are (local, local offsets, remote, remote offsets, lengths)."""
    local, local_offsets, remote, remote_offsets, lengths = operands
    own: Any = _Anywhere if local is engine else local_slice(engine, local, terms[0])
    if isinstance(remote, Segment) and remote._engine is engine and remote._spans():
        segment, region, offset, size = remote._handle, 0, 0, 0  # by address
    else:
        segment, region, offset, size = remote_slice(engine, remote)
    here = indexes.describe(local_offsets, "local_offsets")
    there = indexes.describe(remote_offsets, "remote_offsets")
    sizes = indexes.describe(lengths, "lengths")
    if not here.n == there.n == sizes.n:
        counts = f"{here.n}, {there.n}, {sizes.n}"
        raise InvalidArgumentError(f"local_offsets, remote_offsets and lengths differ in number: {counts}")
    block = _abi.ranges_block(
        terms,
        builder,
        local=own.address,
        local_bytes=own.size,
        target_id=segment,
        target_region=region,
        target_offset=offset,
        remote_bytes=size,
        n=here.n,
        local_offsets=here.words(),
        remote_offsets=there.words(),
        lengths=sizes.words(),
        note=0 if notify is None else notify.address,
    )
    answer = _begun(engine, remote, engine._library.pybind_Ranges, block.buffer_info()[0])
    return answer, -1, (own, remote)


class Packed:
    """A notification and a trace as the engine reads them, at an address that holds for as long as this object."""

    __slots__ = ("_bytes", "_words", "address")

    def __init__(self, notify: Any, trace: Any = None) -> None:
        told = notify is not None
        if told and (not isinstance(notify, tuple) or len(notify) != 2):
            raise InvalidArgumentError(f"notify is {shown(notify)}: it must be (name, message)")
        name, message = (quantities.encoded(part, "a notification") for part in notify or (b"", b""))
        mark = _trace(trace)
        if len(name) > NAME_MAX:
            raise InvalidArgumentError(f"the notification's name has {len(name)} bytes: the limit is {NAME_MAX}")
        if len(message) > MESSAGE_MAX:
            raise InvalidArgumentError(
                f"the notification's message has {len(message)} bytes: the limit is {MESSAGE_MAX}"
            )
        self._bytes = array("B", name + message + mark)
        at = self._bytes.buffer_info()[0]
        then = at + len(name)
        note: _abi.Note = (told, at, len(name), then, len(message), then + len(message), len(mark))
        self._words = array("Q", note)
        self.address = self._words.buffer_info()[0]


def _trace(text: Any) -> bytes:
    """A trace in UTF-8; None is none."""
    if text is None:
        return b""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"trace is {shown(text)}: it must be a str")
    encoded = quantities.encoded(text, "trace")
    if len(encoded) > TRACE_MAX:
        raise InvalidArgumentError(f"the trace has {len(encoded)} bytes: the limit is {TRACE_MAX}")
    return encoded
