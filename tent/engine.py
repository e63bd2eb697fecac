"""Engine: one process's instance, and the face of everything that people do with tent."""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import repeat
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from . import _native, buffers, files, loop, moving, settings
from .batch import Batch
from .closing import Tail, close_at_exit, close_engine, close_in_background
from .enums import PRIO_HIGH, Permission
from .errors import InvalidArgumentError, PermissionDeniedError, translate
from .events import Events
from .grid import Grid, shape
from .handle import Handle
from .moving import READ, WRITE, Hint, Local, Notify, Remote
from .notifications import Notifications
from .region import Memory, Region, RegionSlice
from .segment import RemoteRegion, RemoteSlice, Segment
from .traffic import Traffic
from .transfer import CELL_BYTES, Transfer

if TYPE_CHECKING:
    from .indexes import Integers

Target = str | bytes | os.PathLike[str]

OPEN_TIMEOUT = 10.0  # seconds to reach a peer; a refused connection fails at once

_READABLE = (Permission.GlobalReadOnly, Permission.GlobalReadWrite)


class Engine(Handle):
    """Moves bytes between own memory and that of peers. Use it in a `with` block; any thread may.

    `config` is a dict, JSON text or a path; further settings are keywords and win over it. Leaving the block waits for
    what is under way, to its own limits; leaving it by an exception cancels it.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str | None = None,
        *,
        name: str | None = None,
        **keywords: Any,
    ) -> None:
        self._closed = True  # until there is something to close
        self._closing = threading.Lock()
        text = settings.merged(config, keywords)
        library = _native.load()
        self._library = library
        self._id = int(_native.call(library.pybind_Open, text, name or ""))
        info = json.loads(_native.call(library.pybind_Info, self._id))
        self.address: str = info["address"]
        self.name: str = info["name"]
        self._info: dict[str, Any] = info
        self._states = _native.bytes_at(info["page_address"], info["page_bytes"])
        self._words = _native.words_at(info["page_address"], info["page_bytes"] // 8)
        self._tail = Tail(library, self._id)
        self._live = {}
        self._looks = repeat(None, _native.LOOKS_PER_CRANK - 1)
        self._spent = deque()
        self._spare = min(64, info["page_bytes"] // CELL_BYTES // 8)
        self._memories = {}
        self._streams: weakref.WeakSet[Events] = weakref.WeakSet()
        self._hub = loop.Hub(library, self._id, info["event_fd"])
        self._closed = False
        self.notifications = Notifications(weakref.proxy(self), info["note_fd"])
        _native.cut_off_in_child(self)
        close_at_exit(self)

    # Memory

    def register(
        self, buffer: Any, *, name: str | None = None, location: str = "*", permission: Permission | None = None
    ) -> Region:
        """Makes a buffer known, so that it can be moved and, if it is named, reached by peers.

        Anything with DLPack, `__cuda_array_interface__`, the buffer protocol, `data_ptr()` and `nbytes`, or (address,
        size); contiguous. It is kept alive until the region is closed. Named regions can be read and written by peers,
        unnamed ones by nobody, read-only buffers only be read; `permission` says otherwise.
        """
        found = buffers.describe(buffer)
        if location == "*":
            location = found.location
        allowed = self._permission(permission, bool(name), found.read_only)
        id = self._call(
            self._library.pybind_Register, found.address, found.size, found.read_only, name or "", location, allowed
        )
        memory = Memory(found.address, found.size, found.read_only, found.owner)
        return self._adopt(id, memory, name or "", location)

    def allocate(
        self, size: int, *, name: str | None = None, location: str = "cpu:0", permission: Permission | None = None
    ) -> Region:
        """A region of new, zeroed memory, which peers of this host can share. It is unmapped when the region is closed
        and every view of it is gone."""
        if isinstance(size, bool) or not isinstance(size, int) or not 0 < size < 1 << 63:
            raise InvalidArgumentError(f"size is {size!r}: it must be a number of bytes, at least 1")
        allowed = self._permission(permission, bool(name), False)
        made = self._call_json(self._library.pybind_Allocate, size, name or "", location, allowed)
        id = made["id"]
        self._tail.allocated()
        memory = Memory(made["address"], made["size"], False, None, partial(self._tail.free_memory, id))
        return self._adopt(id, memory, name or "", made.get("location") or location)

    @staticmethod
    def _permission(wanted: Permission | None, named: bool, read_only: bool) -> int:
        if wanted is None:
            return int(_READABLE[not read_only]) if named else int(Permission.LocalReadWrite)
        try:
            wanted = Permission(wanted)
        except ValueError:
            raise InvalidArgumentError(f"permission is {wanted!r}: it must be a tent.Permission") from None
        if read_only and wanted == Permission.GlobalReadWrite:
            raise PermissionDeniedError("the buffer is read-only: peers cannot be allowed to write to it")
        return int(wanted)

    def _adopt(self, id: int, memory: Memory, name: str, location: str) -> Region:
        self._memories[id] = memory
        return Region(self, id, memory, name, location)

    def pages(
        self,
        regions: Region | RegionSlice | Iterable[Region | RegionSlice],
        page_bytes: int,
        *,
        stride: int | None = None,
        offset: int = 0,
        rows: int = 1,
        row_stride: int | None = None,
    ) -> Grid:
        """A reusable grid of pages over one or many equal regions, or slices of regions (layers, K and V).

        Page i has `rows` rows of `page_bytes` bytes; row r begins at offset + i * stride + r * row_stride of each
        region. `stride` is page_bytes unless given.
        """
        chosen = [regions] if isinstance(regions, (Region, RegionSlice)) else list(regions)
        described, memories = [], []
        for part in chosen:
            region, start = (part.region, part.offset) if isinstance(part, RegionSlice) else (part, 0)
            if not isinstance(region, Region) or region._engine is not self:
                raise InvalidArgumentError(f"{part!r} is not a region of this engine")
            region._check_open()
            described.append({"address": part.address, "id": region._id, "offset": start, "size": part.size})
            memories.append(region._memory)
        numbers = shape(page_bytes, stride, offset, rows, row_stride)
        return Grid(self, -1, described, memories, **numbers)

    # Peers

    def open(
        self,
        target: Target,
        *,
        timeout: float = OPEN_TIMEOUT,
        create: bool = False,
        size: int | None = None,
        truncate: bool = False,
        readonly: bool = False,
        durability: str | None = None,
    ) -> Segment:
        """The segment of a peer: "host:port", "host:port/region", a blob of export(), or "" for this engine itself; or
        a file of this machine: "file:///path" (as it stands, without percent-decoding) or an os.PathLike.

        Talks to the peer and fails at once if nobody is there; a blob is only looked at, its first use talks. The other
        keywords are for files: `create` makes one that is absent, with mode 0600, and grows it to `size`; only
        `truncate` ever makes one smaller; `readonly` refuses to write; durability="data" is that of every transfer that
        writes there.
        """
        self._check_open()
        options = files.Options(create, size, truncate, readonly, durability)
        path = files.path_of(target)
        if path is not None:
            return Segment(self, files.open_file(self, path, options, timeout))
        options.refuse(target)
        if isinstance(target, (bytes, bytearray)):
            blob = buffers.describe(bytes(target))
            return Segment(self, self._call(self._library.pybind_OpenBlob, blob.address, blob.size))
        if not isinstance(target, str):
            raise InvalidArgumentError(f"target is {target!r}: an address or a blob of export() is needed")
        return Segment(self, self._call_long(self._library.pybind_OpenSegment, target, _native.milliseconds(timeout)))

    async def open_async(self, target: Target, *, timeout: float = OPEN_TIMEOUT, **options: Any) -> Segment:
        """open() without blocking the event loop, with the same keywords."""
        from . import aio

        return await aio.in_thread(lambda: self.open(target, timeout=timeout, **options))

    def export(self, regions: Iterable[Region | str] | None = None) -> bytes:
        """A blob for a handshake of your own: addresses, incarnation, regions (all named ones unless chosen), versions.
        No secrets. open() takes it in another process."""
        names = None if regions is None else [r if isinstance(r, str) else r.name for r in regions]
        return base64.b64decode(self._call(self._library.pybind_Export, json.dumps(names)))

    # Moving: each returns a Transfer at once, and raises before anything moves when an argument is wrong

    def write(
        self,
        local: Local,
        remote: Remote,
        *,
        priority: int = PRIO_HIGH,
        timeout: float | None = None,
        notify: Notify | None = None,
        hint: Hint = None,
        stream: object = None,
        integrity: str | None = None,
        durability: str | None = None,
    ) -> Transfer:
        """Moves bytes from here to a peer. `timeout` ends the transfer after so many seconds; `notify` is (name,
        message), delivered after the last byte; `hint` names a transport; durability="data" is for files: the transfer
        ends when what it has written is on stable storage."""
        if (
            priority == 0
            and timeout is None
            and notify is None
            and hint is None
            and stream is None
            and integrity is None
            and durability is None
        ):
            return self._plain(WRITE, local, remote)
        return self._move(WRITE, local, remote, priority, timeout, notify, hint, stream, integrity, durability)

    def read(
        self,
        local: Local,
        remote: Remote,
        *,
        priority: int = PRIO_HIGH,
        timeout: float | None = None,
        notify: Notify | None = None,
        hint: Hint = None,
        stream: object = None,
        integrity: str | None = None,
    ) -> Transfer:
        """Moves bytes from a peer to here. With `notify` the owner learns that its memory is free again."""
        if (
            priority == 0
            and timeout is None
            and notify is None
            and hint is None
            and stream is None
            and integrity is None
        ):
            return self._plain(READ, local, remote)
        return self._move(READ, local, remote, priority, timeout, notify, hint, stream, integrity)

    def write_ranges(
        self,
        local: Local,
        local_offsets: Integers,
        remote: Remote,
        remote_offsets: Integers,
        lengths: Integers,
        *,
        priority: int = PRIO_HIGH,
        timeout: float | None = None,
        notify: Notify | None = None,
        hint: Hint = None,
        stream: object = None,
        integrity: str | None = None,
        durability: str | None = None,
    ) -> Transfer:
        """Moves many ranges as one transfer; offsets count from the operands' first bytes."""
        head = moving.word(WRITE, priority, hint, stream, integrity, durability)
        return self._many(moving.ranges, head, timeout, notify, (local, local_offsets, remote, remote_offsets, lengths))

    def read_ranges(
        self,
        local: Local,
        local_offsets: Integers,
        remote: Remote,
        remote_offsets: Integers,
        lengths: Integers,
        *,
        priority: int = PRIO_HIGH,
        timeout: float | None = None,
        notify: Notify | None = None,
        hint: Hint = None,
        stream: object = None,
        integrity: str | None = None,
    ) -> Transfer:
        """The same from a peer to here."""
        head = moving.word(READ, priority, hint, stream, integrity)
        return self._many(moving.ranges, head, timeout, notify, (local, local_offsets, remote, remote_offsets, lengths))

    def write_pages(
        self,
        pages: Region | Grid,
        src: Integers,
        remote_pages: RemoteRegion | Segment | Region | Grid,
        dst: Integers,
        *,
        page_bytes: int | None = None,
        priority: int = PRIO_HIGH,
        timeout: float | None = None,
        notify: Notify | None = None,
        hint: Hint = None,
        stream: object = None,
        integrity: str | None = None,
        durability: str | None = None,
    ) -> Transfer:
        """Moves page src[i] of each local region to page dst[i] of its counterpart, all as one transfer. Indexes are
        lists or any integer buffers, read before the call returns."""
        head = moving.word(WRITE, priority, hint, stream, integrity, durability)
        return self._many(moving.pages, head, timeout, notify, (pages, src, remote_pages, dst, page_bytes))

    def read_pages(
        self,
        pages: Region | Grid,
        src: Integers,
        remote_pages: RemoteRegion | Segment | Region | Grid,
        dst: Integers,
        *,
        page_bytes: int | None = None,
        priority: int = PRIO_HIGH,
        timeout: float | None = None,
        notify: Notify | None = None,
        hint: Hint = None,
        stream: object = None,
        integrity: str | None = None,
    ) -> Transfer:
        """The same in the other direction: page dst[i] of each remote region arrives in page src[i] of its local
        counterpart. The order of the operands is that of write_pages: local ones first."""
        head = moving.word(READ, priority, hint, stream, integrity)
        return self._many(moving.pages, head, timeout, notify, (pages, src, remote_pages, dst, page_bytes))

    def batch(
        self,
        *,
        priority: int = PRIO_HIGH,
        timeout: float | None = None,
        notify: Notify | None = None,
        hint: Hint = None,
        stream: object = None,
        integrity: str | None = None,
        durability: str | None = None,
    ) -> Batch:
        """Collects moves, to be submitted as one transfer: `with engine.batch() as b: b.write(...); t = b.submit()`."""
        return Batch(self, priority, timeout, notify, hint, stream, integrity, durability)

    def notify(self, peer: Segment, name: str | bytes, message: str | bytes = b"") -> Transfer:
        """Sends a notification without data; result() returns when the peer has it."""
        if not isinstance(peer, Segment) or peer._engine is not self:
            raise InvalidArgumentError("notify() needs a segment of this engine, from open()")
        peer._check_open()
        packed = moving.Packed((name, message))
        batch = self._call(self._library.pybind_Notify, peer._handle, *packed.addresses, 0)
        return Transfer(self, batch, 0, (RemoteSlice(peer, 0, 0, 0),))

    def _move(
        self,
        op: int,
        local: Any,
        remote: Any,
        priority: int,
        timeout: float | None,
        notify: Any,
        hint: Any,
        stream: Any,
        integrity: Any,
        durability: Any = None,
    ) -> Transfer:
        if self._closed:
            self._check_open()
        head = moving.word(op, priority, hint, stream, integrity, durability)
        deadline = 0 if timeout is None else moving.deadline(timeout)
        if notify is None:
            batch, size, keep = moving.move(self, 0, op, local, remote, head, deadline)
        else:
            batch, size, keep = moving.with_notify(
                self,
                moving.Packed(notify),
                head,
                lambda builder: moving.move(self, builder, op, local, remote, head, deadline),
            )
        return Transfer(self, batch, size, keep)

    def _plain(self, op: int, local: Any, remote: Any) -> Transfer:
        """The common move, without further terms; from a slice to a slice moving.move's checks are in one place."""
        if (
            type(local) is RegionSlice
            and type(remote) is RemoteSlice
            and not self._closed
            and (region := local.region)._engine is self
            and not region._closed
            and (segment := remote.segment)._engine is self
            and not segment._closed
            and (size := local.size) == remote.size
            and (op == WRITE or not region._memory.read_only)
        ):
            try:
                batch = self._library.pybind_Move(
                    self._id, op, local.address, size, segment._handle, remote.region_id, remote.offset, 0, 0
                )
            except RuntimeError as error:
                raise translate(error) from None
            return Transfer(self, batch, size, (local, remote))
        self._check_open()
        batch, size, keep = moving.move(self, 0, op, local, remote, op, 0)
        return Transfer(self, batch, size, keep)

    def _many(self, form: Any, head: int, timeout: float | None, notify: Any, operands: tuple[Any, ...]) -> Transfer:
        self._check_open()
        packed = None if notify is None else moving.Packed(notify)
        batch, size, keep = form(self, 0, head, moving.deadline(timeout), operands, packed)
        return Transfer(self, batch, size, keep)

    # Looking

    @property
    def closed(self) -> bool:
        """Whether close() has begun."""
        return self._closed

    @property
    def config(self) -> dict[str, settings.Setting]:
        """Every setting with its effective value and where that came from."""
        return {entry["key"]: settings.Setting.of(entry) for entry in self._info["config"] or ()}

    def explain(self, local: Any, remote: Any, *, op: int = WRITE) -> dict[str, Any]:
        """Which routes a move between these operands would take, in order, and why not the others."""
        own = moving.local_slice(self, local, op)
        segment, region, offset, _ = moving.remote_slice(self, remote)
        return dict(self._call_json(self._library.pybind_Explain, int(op), own.address, segment, region, offset))

    def topology(self) -> dict[str, Any]:
        """What this machine has: network interfaces, memories, how they are near to each other."""
        return dict(self._call_json(self._library.pybind_Topology))

    def events(self) -> Events:
        """What has happened to rails, links and peers, and goes on happening: an iterator, also for `async for`, with
        drain(), wait_for() and fileno(). Each call gives a reader with a place of its own, at the oldest event kept."""
        self._check_open()
        return Events(self)

    def metrics(self) -> dict[str, float]:
        """Every counter by name, with and without labels."""
        return dict(self._call_json(self._library.pybind_Metrics))

    def metrics_text(self) -> str:
        """The same in Prometheus' text format."""
        return self._call(self._library.pybind_MetricsText)

    def traffic(self) -> Traffic:
        """What each rail has carried, its rate, and what is on its way; print it for a table."""
        return Traffic.of(self.metrics())

    def close(self, timeout: float | None = 30) -> None:
        """Waits up to `timeout` seconds for what is under way (None: to its own limits), cancels what is left, and
        returns when no byte will be read or written any more. Again: no effect."""
        close_engine(self, timeout)

    async def aclose(self, timeout: float | None = 30) -> None:
        """close() without blocking the event loop."""
        from . import aio

        await aio.in_thread(close_engine, self, timeout)

    def __enter__(self) -> Engine:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_engine(self, None if kind is None else 0)

    async def __aenter__(self) -> Engine:
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose(None if kind is None else 0)

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<Engine {getattr(self, 'name', '')!r} at {getattr(self, 'address', 'no address')}{state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Engine cannot be pickled; send engine.export() and open it in the other process")

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or _native.forked() or sys.is_finalizing():
            return
        warnings.warn(f"{self!r} was dropped without close()", ResourceWarning, source=self, stacklevel=2)
        close_in_background(self)
