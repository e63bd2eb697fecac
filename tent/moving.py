"""From the arguments of a move to one call into the engine. Engine and Batch share this: a builder of 0 makes a new
transfer, another one collects.

Every check that needs Python's view of an operand is here; ranges, permissions and states are the engine's.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from . import buffers, files, grid, indexes
from ._transports import HINTS, TransportType
from .errors import InvalidArgumentError, InvalidEntryError, NotImplementedError, translate
from .region import Region, RegionSlice
from .segment import RemoteRegion, RemoteSlice, Segment

if TYPE_CHECKING:
    from .handle import Handle

Local = RegionSlice | Region | memoryview | bytearray | bytes | Any
Remote = RemoteSlice | RemoteRegion | Segment | RegionSlice | Region
Notify = tuple[str | bytes, str | bytes]
Hint = TransportType | str | int | None

# The engine's answer (a batch, or an index in a builder), the bytes in all or -1, and what keeps the operands.
Begun = tuple[int, int, tuple[object, ...]]

READ, WRITE = 0, 1
CHECKED = 1 << 32  # slices carry a checksum
DURABLE = 1 << 33  # the transfer ends when the files that it writes are on stable storage

NAME_MAX = 255
MESSAGE_MAX = 64 << 10


def transport_number(hint: Any) -> int:
    """The number of a transport that is given by name or number; None is 0."""
    if hint is None:
        return 0
    if isinstance(hint, str):
        number = HINTS.get(hint.lower())
        if number is not None:
            return number
    else:
        try:
            return int(TransportType(hint))
        except ValueError:
            pass
    raise InvalidArgumentError(f"hint {hint!r} names no transport", hint="known: " + ", ".join(sorted(HINTS)))


def word(op: int, priority: int, hint: Any, stream: Any, integrity: Any, durability: Any = None) -> int:
    """The first word of a request: op | class << 8 | hint << 16 | checked << 32 | durable << 33."""
    if stream is not None:
        raise NotImplementedError("stream= is not in this version", hint="submit when the source is ready")
    if integrity not in (None, "crc32c"):
        raise InvalidArgumentError(f'integrity is {integrity!r}: it must be "crc32c" or None')
    if priority not in (0, 1, 2):
        raise InvalidArgumentError(
            f"priority is {priority!r}: it must be PRIO_HIGH (0), PRIO_MEDIUM (1) or PRIO_LOW (2)"
        )
    flags = 0 if integrity is None else CHECKED
    if durability is not None and files.durable(durability):
        flags |= DURABLE
    return op | int(priority) << 8 | transport_number(hint) << 16 | flags


def deadline(timeout: float | None) -> int:
    """The instant on time.monotonic_ns()'s clock that is `timeout` seconds away; 0 for none."""
    if timeout is None:
        return 0
    if not 0 <= timeout < 1 << 32:
        raise InvalidArgumentError(f"timeout is {timeout!r}: it must be a number of seconds, at least 0, or None")
    return time.monotonic_ns() + int(timeout * 1e9)


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
            raise _read_only(operand)
        return operand
    if isinstance(operand, (RemoteSlice, RemoteRegion, Segment)):
        raise InvalidArgumentError(f"{operand!r} is remote", hint="the local operand comes first, then the remote one")
    found = buffers.describe(operand)
    if op == READ and found.read_only:
        raise _read_only(operand)
    return _Loose(found)


def _read_only(operand: Any) -> InvalidArgumentError:
    return InvalidArgumentError(f"{type(operand).__name__} is read-only: a READ cannot be stored there")


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


def move(engine: Handle, builder: int, op: int, local: Any, remote: Any, head: int, deadline_ns: int) -> Begun:
    """One READ or WRITE: returns the engine's answer, the size and what keeps the operands."""
    if type(local) is not RegionSlice or op == READ or local.region._engine is not engine or local.region._closed:
        local = local_slice(engine, local, op)
    segment, region, offset, size = remote_slice(engine, remote)
    if size != local.size:
        raise InvalidArgumentError(f"the operands differ in size: local {local.size} bytes, remote {size}")
    try:
        answer = engine._library.pybind_Move(
            engine._id, head, local.address, size, segment, region, offset, deadline_ns, builder
        )
    except RuntimeError as error:
        raise translate(error) from None
    return answer, size, (local, remote)


def pages(
    engine: Handle,
    builder: int,
    head: int,
    deadline_ns: int,
    operands: tuple[Any, Any, Any, Any, int | None],
    notify: Packed | None,
) -> Begun:
    """write_pages and read_pages: operands are (pages, src, remote pages, dst, page_bytes), as in the call."""
    local, src, remote, dst, page_bytes = operands
    op = head & 0xFF
    local_grid = _grid(engine, local, page_bytes, remote=False, op=op)
    remote_grid = _grid(engine, remote, page_bytes, remote=True, op=op)
    # In the call, `src` are pages of the local operand and `dst` pages of the remote one, whatever the direction.
    here, there = indexes.describe(src, "src"), indexes.describe(dst, "dst")
    if here.n != there.n:
        raise InvalidArgumentError(f"src has {here.n} indexes and dst {there.n}")
    arguments = array("Q", _head(head, deadline_ns))
    arguments.extend((builder, local_grid._id, remote_grid._id, here.n))
    _extend(arguments, here, there)
    _finish(arguments, notify, head)
    answer = engine._call(engine._library.pybind_Pages, arguments.buffer_info()[0])
    return answer, -1, (local, local_grid, remote, remote_grid)


def _grid(engine: Handle, operand: Any, page_bytes: int | None, *, remote: bool, op: int) -> grid.Grid:
    side = "remote" if remote else "local"
    if isinstance(operand, grid.Grid):
        if operand._engine is not engine or operand._closed:
            raise InvalidEntryError(f"{operand!r} is closed or of another engine", code="STALE_ID")
        if page_bytes is not None and page_bytes != operand.page_bytes:
            raise InvalidArgumentError(f"page_bytes is {page_bytes}, but {operand!r}")
        if operand.remote and not remote:
            raise InvalidArgumentError(f"{operand!r} is remote", hint="the local operand comes first")
        return operand.as_remote() if remote else operand
    if remote and isinstance(operand, (RemoteRegion, Segment)):
        single = operand._single() if isinstance(operand, Segment) else operand
        remote_slice(engine, single)
        return grid.cached(single, page_bytes, single.segment.pages)
    if isinstance(operand, Region):
        local_slice(engine, operand, WRITE if remote else op)
        found = grid.cached(operand, page_bytes, partial(grid.own, engine))
        return found.as_remote() if remote else found
    raise InvalidArgumentError(f"the {side} operand is {type(operand).__name__!r}: a region or a grid is needed")


def ranges(
    engine: Handle,
    builder: int,
    head: int,
    deadline_ns: int,
    operands: tuple[Any, Any, Any, Any, Any],
    notify: Packed | None,
) -> Begun:
    """write_ranges and read_ranges: operands are (local, local offsets, remote, remote offsets, lengths)."""
    local, local_offsets, remote, remote_offsets, lengths = operands
    own = local_slice(engine, local, head & 0xFF)
    segment, region, offset, size = remote_slice(engine, remote)
    columns = (
        indexes.describe(local_offsets, "local_offsets"),
        indexes.describe(remote_offsets, "remote_offsets"),
        indexes.describe(lengths, "lengths"),
    )
    if len({column.n for column in columns}) != 1:
        counts = ", ".join(str(column.n) for column in columns)
        raise InvalidArgumentError(f"local_offsets, remote_offsets and lengths differ in number: {counts}")
    arguments = array("Q", _head(head, deadline_ns))
    arguments.extend((builder, own.address, own.size, segment, region, offset, size, columns[0].n))
    _extend(arguments, *columns)
    _finish(arguments, notify, head)
    answer = engine._call(engine._library.pybind_Ranges, arguments.buffer_info()[0])
    return answer, -1, (own, remote)


def _head(head: int, deadline_ns: int) -> tuple[int, int, int, int, int]:
    """op, class, deadline, hint, intent: the first arguments of Pages and Ranges."""
    return head & 0xFF, head >> 8 & 0xFF, deadline_ns, head >> 16 & 0xFF, head >> 24 & 0xFF


def _extend(arguments: array[int], *columns: indexes.Index) -> None:
    for column in columns:
        arguments.extend((column.address, column.code, column.stride & 0xFFFFFFFFFFFFFFFF))


def _finish(arguments: array[int], notify: Packed | None, head: int) -> None:
    flags = (2 if head & CHECKED else 0) | (4 if head & DURABLE else 0)
    arguments.extend((*notify.addresses, flags | 1) if notify is not None else (0, 0, 0, 0, flags))


class Packed:
    """A notification's bytes, at addresses that hold for as long as this object."""

    __slots__ = ("_bytes", "addresses")

    def __init__(self, notify: Any) -> None:
        if not isinstance(notify, tuple) or len(notify) != 2:
            raise InvalidArgumentError(f"notify is {notify!r}: it must be (name, message)")
        name, message = (_encoded(part) for part in notify)
        if len(name) > NAME_MAX:
            raise InvalidArgumentError(f"the notification's name has {len(name)} bytes: the limit is {NAME_MAX}")
        if len(message) > MESSAGE_MAX:
            raise InvalidArgumentError(
                f"the notification's message has {len(message)} bytes: the limit is {MESSAGE_MAX}"
            )
        self._bytes = array("B", name + message)
        address = self._bytes.buffer_info()[0]
        self.addresses = (address, len(name), address + len(name), len(message))


def _encoded(text: Any) -> bytes:
    if isinstance(text, str):
        return text.encode("utf-8", "surrogateescape")
    if isinstance(text, (bytes, bytearray, memoryview)):
        return bytes(text)
    raise InvalidArgumentError(f"a notification is str or bytes, not {type(text).__name__!r}")


def commit(engine: Handle, builder: int, notify: Packed | None, durable: bool) -> int:
    """Submits what a builder holds, all or nothing."""
    addresses = notify.addresses if notify is not None else (0, 0, 0, 0)
    return engine._call(engine._library.pybind_Commit, builder, *addresses, notify is not None, durable)


def with_notify(engine: Handle, notify: Packed, head: int, add: Callable[[int], Begun]) -> Begun:
    """A single move with a notification: a builder of one."""
    builder = engine._call(engine._library.pybind_Builder)
    try:
        _, size, keep = add(builder)
    except BaseException:
        engine._call(engine._library.pybind_Discard, builder)
        raise
    return commit(engine, builder, notify, bool(head & DURABLE)), size, keep
