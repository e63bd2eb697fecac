"""Segment: the address space that a peer offers, and the regions in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, overload

from . import _native, _text, files
from ._text import shown
from .addresses import Addresses
from .enums import Permission
from .errors import AddressNotRegisteredError, InvalidArgumentError, InvalidEntryError
from .grid import Grid, shape
from .indexes import Integers, Ranges
from .quantities import integer_of, list_of, text_of
from .region import byte_range

if TYPE_CHECKING:
    from .handle import Handle


_SHOWN = 4  # regions that a repr lists


class RemoteSlice:
    """Bytes of a peer: the remote operand of a move. Region 0 means that the offset is an address of the peer."""

    __slots__ = ("offset", "region_id", "segment", "size")

    def __init__(self, segment: Segment, region_id: int, offset: int, size: int) -> None:
        self.segment = segment
        self.region_id = region_id
        self.offset = offset
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        segment, size = self.segment, _text.size(self.size)
        bounds = f"[{self.offset}:{self.offset + self.size}] {size}"
        if segment.path is not None:
            return f"<{segment.address}{bounds}>"
        for name, region in segment._regions.items():
            if region._id == self.region_id:
                return f"<{_text.name(name)}{bounds} of {segment.address}>"
        return f"<{self.offset:#x} {size} of {segment.address}>"


class RemoteRegion:
    """A region of a peer, from segment["name"]. Slices count bytes."""

    __slots__ = ("_grids", "_id", "address", "location", "name", "readonly", "segment", "size")

    def __init__(self, segment: Segment, fields: dict[str, Any]) -> None:
        self._grids: dict[int, Grid] = {}
        self._id = int(fields["id"])
        self.segment = segment
        self.name = str(fields["name"])
        self.address = int(fields["address"])
        self.size = int(fields["size"])
        self.location = str(fields["location"])
        self.readonly = bool(fields["read_only"]) or fields["permission"] != Permission.GlobalReadWrite

    def __getitem__(self, key: slice) -> RemoteSlice:
        if type(key) is slice:
            start, stop = key.start, key.stop
            if type(start) is int is type(stop) and 0 <= start < stop <= self.size and key.step is None:
                return RemoteSlice(self.segment, self._id, start, stop - start)
        start, size = byte_range(key, self.size, self.name or "region")
        return RemoteSlice(self.segment, self._id, start, size)

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"<RemoteRegion {self.name!r} {_text.size(self.size)} {self.location} of {self.segment.address}>"


class Segment:
    """The memory that a peer offers, from Engine.open(). Any thread may use it.

    Example:
        with engine.open(address) as peer:
            assert peer.alive(timeout=5) and "kv" in peer and list(peer) == list(peer.regions) == list(peer.refresh())
            kv = peer["kv"]
            engine.write(region[0:64], kv[0:64]).result(timeout=10)
            engine.write(region[0:64], peer.memory(kv.address, 64)).result(timeout=10)
        with engine.open(f"{address}/kv") as only:  # a single region is sliced directly, and so is a file
            assert only.size == len(only) == kv.size and not only.readonly
            engine.read(region[0:64], only[0:64]).result(timeout=10)

    A file has its `path`. Leave the block, or call close(), or in a coroutine aclose().
    """

    __slots__ = {
        "__weakref__": "",
        "_closed": "",
        "_engine": "",
        "_handle": "",
        "_outdated": "",
        "_region": "",
        "_regions": "",
        "_size": "",
        "address": "Where the peer listens, or the path of a file.",
        "identity": 'The names that the peer proves, with spaces between: "spiffe://prod/decode/0", or "uid:1000".',
        "machine_id": "The id of the peer's machine.",
        "name": "The peer's name.",
        "path": "The path of a file; None for a peer.",
        "peer_id": "The fingerprint of the peer's key; a restarted one has another.",
    }

    def __init__(self, engine: Handle, handle: int, fields: dict[str, Any] | None = None) -> None:
        """For tent only. `fields` describe it, if the caller has them."""
        self._closed = False
        self._engine = engine
        self._handle = handle
        self._regions: dict[str, RemoteRegion] = {}
        self._outdated = False  # the peer has refused one of them since
        self._region = ""  # the only one, or the path of a file
        self.address = ""
        self.name = ""
        self.machine_id = ""
        self.peer_id = ""
        self.identity = ""
        self.path: str | None = None
        self._size = 0  # of a file, for repr after close()
        if fields is None:
            self._load(refresh=False)
        else:
            self._learn(fields)

    @property
    def regions(self) -> dict[str, RemoteRegion]:
        """The peer's named regions as they were when they were last asked for; refresh() asks again."""
        return dict(self._regions)

    def refresh(self) -> dict[str, RemoteRegion]:
        """Asks the peer for its regions, and returns them."""
        self._load(refresh=True)
        return self.regions

    @overload
    def __getitem__(self, key: str) -> RemoteRegion: ...

    @overload
    def __getitem__(self, key: slice) -> RemoteSlice: ...

    def __getitem__(self, key: str | slice) -> RemoteRegion | RemoteSlice:
        if isinstance(key, slice):
            return self._single()[key]
        if not isinstance(key, str):
            raise InvalidArgumentError(f"segment[{shown(key)}]: a region's name is needed, or a slice of bytes")
        if self.path is not None:
            raise InvalidArgumentError(f"{self.address} is a file and has no regions", hint="slice it: file[0:4096]")
        region = None if self._outdated else self._regions.get(key)
        region = region or self.refresh().get(key)
        if region is None:
            known = ", ".join(map(repr, self._regions)) or "none"
            raise AddressNotRegisteredError(f"{self.address} has no region {shown(key)}; its named regions: {known}")
        return region

    def __contains__(self, name: object) -> bool:
        """Whether the peer has a region of that name; asks it anew when the name is not known here, or a move has
        failed because the peer does not offer a region any more."""
        self._check_named()
        if not isinstance(name, str):
            return False
        return (name in self._regions and not self._outdated) or name in self.refresh()

    def __iter__(self) -> Iterator[str]:
        """The names of the regions, as `regions` has them."""
        self._check_named()
        return iter(self.regions)

    def __len__(self) -> int:
        """The number of named regions; of a single region or a file, its bytes."""
        return len(self._regions) if self._spans() else self._single().size

    @property
    def size(self) -> int:
        """Bytes of the single region, or of the file as it was when it was opened."""
        return self._single().size

    @property
    def readonly(self) -> bool:
        """Whether the single region or the file takes no WRITE."""
        return self._single().readonly

    def __bool__(self) -> bool:
        return True

    def memory(self, address: int, size: int) -> RemoteSlice:
        """Bytes at an address of the peer; whether they are registered is checked by their owner."""
        if self.path is not None:
            raise InvalidArgumentError(f"{self.address} is a file and has no addresses", hint="slice it: file[0:4096]")
        at, n = integer_of(address), integer_of(size)
        if at is None or n is None or not (0 < at < 1 << 64 and 0 < n <= (1 << 64) - at):
            first = shown(address) if at is None else hex(at)
            raise InvalidArgumentError(f"memory({first}, {shown(size)}) is not a range of an address space")
        return RemoteSlice(self, 0, at, n)

    def lease(self, token: str, timeout: float | str = 10) -> RemoteRegion:
        """Returns the lease of this peer that a token names: a part of a region, from Region.share() there.

        Example:
            with other.allocate(1 << 16) as pages, pages.share(pages[0:4096], expires=60) as granted:
                with engine.open(other.address) as peer:
                    engine.write(region[0:4096], peer.lease(granted.token)[0:4096]).result(timeout=10)

        The peer is asked where the lease is not known here yet; one that was known and has ended fails its moves.
        Raises AddressNotRegisteredError for a lease that has ended or is for other peers, InvalidArgumentError for text
        that is no token, and InvalidEntryError for a token of another engine.

        A lease of several ranges is one region here, in which they lie side by side in their order. It has no address.
        A move lies inside one of them; pages(lease, page_bytes) moves those of all.
        """
        self._check_open()
        fields = self._engine._call_long_json(
            self._engine._library.pybind_FindLease,
            self._handle,
            text_of(token, "token", needed=True),
            _native.milliseconds(timeout),
        )
        return RemoteRegion(self, fields)

    def pages(
        self,
        regions: RemoteRegion | RemoteSlice | Sequence[RemoteRegion | RemoteSlice],
        page_bytes: int | str,
        *,
        stride: int | str | None = None,
        offset: int | str = 0,
        rows: int = 1,
        row_stride: int | str | None = None,
    ) -> Grid:
        """A grid over regions of this peer or slices of them; see Engine.pages()."""
        single = isinstance(regions, (RemoteRegion, RemoteSlice, Segment))
        takes = f"regions of {self.address}, or slices of them"
        chosen: list[Any] = [regions] if single else list_of(regions, "regions", takes)
        described = []
        for region in (r._single() if isinstance(r, Segment) else r for r in chosen):
            if isinstance(region, RemoteSlice) and region.segment is self and region.region_id:
                described.append({"id": region.region_id, "offset": region.offset, "size": region.size})
            elif isinstance(region, RemoteRegion) and region.segment is self:
                described.append({"id": region._id, "offset": 0, "size": region.size})
            else:
                raise InvalidArgumentError(f"{shown(region)} is not a region of {self.address}, nor a slice of one")
        numbers = shape(page_bytes, stride, offset, rows, row_stride)
        return Grid(self._engine, self._handle, described, self, **numbers)

    def addresses(self, ranges: Ranges, lengths: Integers | int | str | None = None) -> Addresses:
        """Prepares ranges of this peer by plain address, each inside one region that it offers; see Engine.addresses().
        In a segment of one region or of a file addresses count from 0. A peer that was opened by a blob is asked."""
        self._check_open()
        return Addresses(self._engine, self._handle, ranges, lengths, self, asks=self.path is None)

    def connect(self, timeout: float | str = 10) -> None:
        """Makes ready for the first transfer, and returns when a rail to the peer is up. Without it a segment that was
        opened by a blob connects at its first use. PeerUnreachableError when none comes up in time, and at once when no
        transport reaches the peer.

        Example:
            peer = engine.open(other.export())
            peer.connect(timeout=5)
        """
        self._check_open()
        self._engine._call_long(self._engine._library.pybind_Connect, self._handle, _native.milliseconds(timeout))

    def alive(self, timeout: float | str = 5) -> bool:
        """Asks the peer; False if it does not answer in time or has restarted. One that is gone is not asked,
        and one for which transfers wait in silence (the event `peer_silent`) for a second at most."""
        return bool(
            self._engine._call_long(self._engine._library.pybind_Alive, self._handle, _native.milliseconds(timeout))
        )

    def close(self) -> None:
        """Forgets the peer; transfers under way to it end with an error. Those to a file go on, and its
        descriptors are closed after that. Again: no effect."""
        if handle := self._left():
            self._engine._call(self._engine._library.pybind_CloseSegment, handle)

    def _left(self) -> int:
        """Closes all of it but the handle in the engine, which it returns; 0 where there is nothing to close."""
        if self._closed or not self._engine._usable():
            return 0
        self._closed = True
        for region in self._regions.values():
            for grid in list(region._grids.values()):
                grid.close()
        self._regions = {}
        return self._handle

    async def aclose(self) -> None:
        """close(), which does not block."""
        self.close()

    def _single(self) -> RemoteRegion:
        """The one region that this segment was opened on."""
        self._check_open()
        region = self._regions.get(self._region)
        if region is None:
            raise InvalidArgumentError(
                f"{self.address} was opened as a whole",
                hint='choose a region, segment["name"], or memory(address, size)',
            )
        return region

    def _spans(self) -> bool:
        """Whether it is a whole address space, not one region nor a file."""
        self._check_open()
        return not self._region

    def _check_named(self) -> None:
        if self._region:
            raise InvalidArgumentError(f"{self!r} is a single region", hint="slice it: it[0:64]")

    def _load(self, refresh: bool) -> None:
        self._check_open()
        call = self._engine._call_long_json if refresh else self._engine._call_json
        self._learn(call(self._engine._library.pybind_Segment, self._handle, refresh))

    def _learn(self, fields: dict[str, Any]) -> None:
        self.address = fields["address"]
        self.name = fields["name"]
        self.machine_id = fields["machine_id"]
        self.peer_id = fields["id"]
        self.identity = fields["identity"]
        self._region = fields.get("region") or ""
        self.path = self._region if fields["file"] else None
        known = self._regions
        regions = {}
        for region in fields["regions"] or []:
            if name := region["name"]:
                old = known.get(name)
                regions[name] = old if old is not None and old._id == region["id"] else RemoteRegion(self, region)
        self._regions, self._outdated = regions, False
        if self.path is not None:
            self._size = regions[self.path].size

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidEntryError(f"the segment of {self.address} is closed", code="STALE_ID")

    def __enter__(self) -> Segment:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Segment:
        self._check_open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " closed" if self._closed or self._engine.closed else ""
        if self.path is not None:
            what = _text.size(self._size)
        else:
            first = list(self._regions.items())[:_SHOWN]
            listed = [f"{_text.name(name)} {_text.size(region.size)}" for name, region in first]
            more = len(self._regions) - len(listed)
            what = ", ".join([*listed, *([f"{more} more"] if more else [])]) or "no named regions"
        return f"<Segment {self.address}: {what}{state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Segment cannot be pickled; send engine.export() and open it in the other process")

    @_native.finalizer
    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            try:
                self.close()
            except Exception:  # the engine is closing at this moment, on another thread
                pass


def close_all(engine: Handle, segments: Iterable[Segment]) -> None:
    """Closes segments of an engine in one call."""
    if handles := [handle for segment in segments if (handle := segment._left())]:
        files.close(engine, handles)
