"""Region: a registered memory range of this process, and its slices."""

from __future__ import annotations

import ctypes
import json
import operator
import sys
import warnings
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from . import _aio, _native, _text
from ._text import shown
from .enums import Permission
from .errors import AddressNotRegisteredError, InvalidArgumentError, InvalidEntryError, TentError
from .memory import Memory, not_back
from .quantities import bytes_of, integer_of, list_of, text_of
from .rights import identities, permission_of

if TYPE_CHECKING:
    from .admission import PeerInfo
    from .handle import Handle
    from .segment import Segment

    Peer: TypeAlias = Segment | PeerInfo | str

_HOST = ("*", "cpu")  # how the locations of memory begin that the host can look at
_SHARE = "region.share(region[0:4096], name), or a list of slices"


def byte_range(key: Any, size: int, what: str) -> tuple[int, int]:
    """Start and length of a slice of bytes: inside, not empty, step 1; nothing is ever clamped."""
    if not isinstance(key, slice):
        raise InvalidArgumentError(f"{what}[{shown(key)}]: a slice of bytes is needed", hint="write region[start:stop]")
    try:
        start = 0 if key.start is None else operator.index(key.start)
        stop = size if key.stop is None else operator.index(key.stop)
        step = 1 if key.step is None else operator.index(key.step)
    except TypeError:
        raise InvalidArgumentError(f"{what}[{key.start}:{key.stop}:{key.step}]: bounds are integers") from None
    if step != 1 or start < 0 or stop > size or start >= stop:
        cause = (
            "the step must be 1"
            if step != 1
            else "the slice is empty"
            if start == stop or (start > stop >= 0)
            else f"it is not inside the {size} bytes"
        )
        raise InvalidArgumentError(f"{what}[{start}:{stop}]: {cause}", hint="slices count bytes and are never clamped")
    return start, stop - start


def _import(name: str, call: str) -> Any:
    """A library that the caller chose by calling `call`."""
    _native.check_process()
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise InvalidArgumentError(
            f"{call} needs {name}, which is not installed", hint="region.view needs nothing"
        ) from None


class RegionSlice:
    """Bytes of an own region: the local operand of a move, or its remote one when both are in this engine."""

    __slots__ = ("address", "offset", "region", "size")

    def __init__(self, region: Region, offset: int, size: int) -> None:
        self.region = region
        self.offset = offset
        self.size = size
        self.address = region.address + offset

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"<{self.region.name or 'region'}[{self.offset}:{self.offset + self.size}] {_text.size(self.size)}>"


class Region:
    """A registered memory range, from Engine.register() or Engine.allocate(). Peers reach its bytes until close().

    Slices count bytes. Any thread may use it; it keeps the memory alive. array() and tensor() are its bytes for NumPy
    and torch; np.from_dlpack() and torch.from_dlpack() take it.

    Example:
        with engine.allocate(1 << 16, name="pages") as pages:
            pages.view[0:4] = b"tent"
            engine.write(pages[0:4096], segment["kv"][0:4096]).result(timeout=10)
            pages.fence(timeout=5)  # nothing that began before arrives here any more
            await pages.fence_async()
        assert pages.closed  # or close(), or in a coroutine aclose()
    """

    __slots__ = {
        "__weakref__": "",
        "_closed": "",
        "_engine": "",
        "_grids": "",
        "_id": "",
        "_memory": "",
        "address": "The address of its first byte.",
        "location": 'Where the memory is: "cpu:0", or "*" where nobody said.',
        "name": 'The name by which peers find it, "" for none.',
        "size": "Its bytes.",
    }

    def __init__(self, engine: Handle, id: int, memory: Memory, name: str, location: str) -> None:
        """For tent only."""
        self._closed = False
        self._engine = engine
        self._id = id
        self._memory = memory
        self._grids: dict[int, Any] = {}
        self.address = memory.address
        self.size = memory.size
        self.name = name
        self.location = location

    def __getitem__(self, key: slice) -> RegionSlice:
        if type(key) is slice:
            start, stop = key.start, key.stop
            if type(start) is int is type(stop) and 0 <= start < stop <= self.size and key.step is None:
                return RegionSlice(self, start, stop - start)
        start, size = byte_range(key, self.size, self.name or "region")
        return RegionSlice(self, start, size)

    def __len__(self) -> int:
        return self.size

    @property
    def closed(self) -> bool:
        """Whether peers have lost access for good."""
        return self._closed

    @property
    def view(self) -> memoryview:
        """The bytes as a memoryview, writable unless the buffer is not; it keeps the memory alive."""
        keeper = self._check_host()
        _native.check_process()
        holder = (ctypes.c_ubyte * self.size).from_address(self.address)
        holder.keeper = keeper  # type: ignore[attr-defined]
        view = memoryview(holder).cast("B")
        return view.toreadonly() if self._memory.read_only else view

    def array(self, dtype: Any = "uint8", shape: Any = -1) -> Any:
        """The bytes as a NumPy array of a dtype and a shape; it keeps the memory alive.

        Example:
            kv = engine.allocate("64KiB")
            layers = kv.array("float16", (2, 16, -1))
            layers[0] = 1
            kv.close()
        """
        flat = _import("numpy", "array()").asarray(self.view)
        try:
            flat = flat.view(dtype)
        except (SyntaxError, TypeError, ValueError) as error:  # NumPy parses words
            raise InvalidArgumentError(f"{self!r} as numbers of {shown(dtype)}: {error}") from None
        return self._shaped(flat, shape)

    def tensor(self, dtype: Any = "uint8", shape: Any = -1) -> Any:
        """The bytes as a torch tensor of a dtype (torch.float16 or "float16") and a shape, with the memory alive."""
        torch = _import("torch", "tensor()")
        if isinstance(dtype, str):
            found = getattr(torch, dtype, None)
            if not isinstance(found, torch.dtype):
                raise InvalidArgumentError(f"torch has no dtype {shown(dtype)}")
            dtype = found
        if self._memory.read_only:
            raise InvalidArgumentError(
                f"{self!r} is read-only, and torch has no read-only tensors", hint="region.array() has read-only arrays"
            )
        return self._shaped(torch.frombuffer(self.view, dtype=dtype), shape)

    def _shaped(self, flat: Any, shape: Any) -> Any:
        try:
            return flat.reshape(shape)
        except (RuntimeError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"{self!r} as {len(flat)} elements of {flat.dtype}: {error}") from None

    def __dlpack__(self, **wanted: Any) -> Any:
        """For `torch.from_dlpack(region)` and its like: all bytes, as uint8."""
        if "numpy" in sys.modules or "torch" not in sys.modules:  # one of them is there, or nobody would ask
            return self.array().__dlpack__(**wanted)
        if self._memory.read_only:
            raise BufferError(f"{self!r} is read-only, and torch has no read-only tensors")
        return self.tensor().__dlpack__(**wanted)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The device of the bytes, in DLPack's numbers: host memory."""
        self._check_host()
        return 1, 0

    def __buffer__(self, flags: int) -> memoryview:
        return self.view

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if not self.location.startswith(_HOST):
            raise AttributeError(f"memory in {self.location} is not host memory")
        if not self.address:
            raise AttributeError("a lease of several ranges is no array")
        if self._memory.keeper is None:
            raise AttributeError("the region is closed, and its buffer is the program's again")
        # NumPy keeps the view, which holds the bytes; of an address it would keep the region, which lets go of them.
        return {"shape": (self.size,), "typestr": "|u1", "data": self.view, "version": 3}

    def fence(
        self, peer: Peer | None = None, timeout: float | str | None = 30, pages: Iterable[int] | None = None
    ) -> None:
        """Returns when nothing that began before can read or write here any more; the region stays open.

        Transfers that peers began before fail, also where they have not been sent yet; later ones pass, but for one of
        a peer that is only just connecting (Segment.connect() ends that). A peer that does not answer delays it by a
        second at most. `peer` limits it to one, a Segment, a row of Engine.peers() or an address, or to those with an
        identity: "spiffe://prod/prefill/*", "id:" and a peer_id. `pages` are ignored: all of the region is fenced.
        Raises InvalidEntryError where `peer` is nobody, and the builtin TimeoutError after `timeout` seconds.
        """
        who = text_of(getattr(peer, "id", None) or getattr(peer, "address", peer), "peer")
        if peer is not None and not who:
            raise InvalidArgumentError("peer is empty", hint="fence() without a peer is for all of them")
        self._check_open()
        self._engine._call_long(self._engine._library.pybind_FenceRegion, self._id, who, _native.milliseconds(timeout))

    def remap(self, offset: int | str = 0, length: int | str | None = None, timeout: float | str | None = 30) -> None:
        """Says that other pages, or none, are behind `length` bytes from `offset` on: memory that grows or shrinks.

        Call it after the pages have changed. When it returns, no transfer that peers began before touches the range,
        and later ones reach its new pages over every transport. A transfer that needs bytes without pages fails as
        ADDRESS_NOT_REGISTERED, and no other does. `length` None is up to the end. Memory of allocate() keeps its
        pages.

        Example:
            import mmap

            cache = mmap.mmap(-1, 1 << 16)
            with engine.register(cache, name="cache") as region:
                region.remap(0, mmap.PAGESIZE)  # after its first page was mapped anew
        """
        self._check_open()
        start = bytes_of(offset, "offset")
        n = self.size - start if length is None else bytes_of(length, "length")
        if n < 1 or start + n > self.size:
            raise InvalidArgumentError(f"remap({offset}, {length}): the range is not inside the {self.size} bytes")
        self._engine._call_long(
            self._engine._library.pybind_RemapRegion, self._id, start, n, _native.milliseconds(timeout)
        )

    @property
    def transports(self) -> dict[str, str]:
        """The state of the region on each transport that moves its kind of memory.

        It is "ready", "registering" while the transport pins its pages, "not here: " and the reason why it cannot use
        the memory on this machine, or "not shared: " and the reason why peers cannot reach it that way; transfers that
        begin here can. The region lives on the others.

        Example:
            with engine.allocate(4096) as scratch:
                assert scratch.transports["tcp"] == "ready"
        """
        self._check_open()
        found = self._engine._call_json(self._engine._library.pybind_RegionStanding, self._id)["transports"]
        return {name: f"{on['state']}: {on['why']}" if on["why"] else on["state"] for name, on in found.items()}

    async def fence_async(
        self, peer: Peer | None = None, timeout: float | str | None = 30, pages: Iterable[int] | None = None
    ) -> None:
        """fence() without blocking the event loop."""
        await _aio.in_thread(self.fence, peer, timeout, pages)

    def close(self, timeout: float | str | None = 30) -> None:
        """Ends remote access and returns when no peer can touch the bytes any more. Again: no effect.

        A registered buffer is the program's again then, but for views of the region that are still there; transfers of
        this engine that are under way go on, and hold it until they have ended. The builtin TimeoutError if it could
        not be had in time: the region is then still to be closed. So it is when a driver or the kernel may still use
        memory that was given as (address, size). Other buffers are kept until the engine has closed.
        """
        if self._closed or self._engine._closed_meanwhile():
            return
        for grid in list(self._grids.values()):
            grid.close()
        self._grids.clear()
        lingers = self._engine._call_long(
            self._engine._library.pybind_CloseRegion, self._id, _native.milliseconds(timeout)
        )
        if lingers and self._memory.borrowed:
            raise not_back(self.address)
        self._closed = True
        if not lingers:  # else somebody still has a transfer of it that ended dirty: the engine's end waits for that
            self._engine._memories.pop(self._id, None)
            self._engine._give_back(self._memory)

    async def aclose(self, timeout: float | str | None = 30) -> None:
        """close() without blocking the event loop."""
        await _aio.in_thread(self.close, timeout)

    def pages(self, indexes: Iterable[int], page_bytes: int | str) -> list[RegionSlice]:
        """The slices of some pages of `page_bytes` bytes each, for share().

        Example:
            with engine.allocate(1 << 16) as kv:
                assert [page.offset for page in kv.pages([3, 1], 4096)] == [12288, 4096]
        """
        size = bytes_of(page_bytes, "page_bytes", least=1)
        n = self.size // size
        found = list_of(indexes, "indexes", "integers")
        for at, page in enumerate(found):
            index = integer_of(page)
            if index is None or not 0 <= index < n:
                raise InvalidArgumentError(f"index [{at}] is {shown(page)}: {self!r} has {n} pages of {size} bytes")
            found[at] = index
        return [RegionSlice(self, page * size, size) for page in found]

    def share(
        self,
        part: slice | RegionSlice | Iterable[slice | RegionSlice],
        name: str = "",
        *,
        peers: str | Iterable[str] | None = None,
        permission: Permission | None = None,
        expires: float | str | None = None,
    ) -> Lease:
        """Gives peers a part of this region as a lease: a narrower region, which ends by itself.

        Example:
            with engine.allocate(1 << 16) as pages:  # peers do not reach it
                with pages.share(pages[0:4096], "step-7", expires="60s") as lease:
                    handshake = {"lease": lease.token}  # the other side: peer.lease(handshake["lease"])
                    lease.renew("60s")
                    assert not lease.closed
                with pages.share(pages.pages([9, 2], 4096)) as lease:  # one lease, and no byte between its pages
                    assert lease.size == 2 * 4096

        `part` counts bytes, as slices of a region do. A list of them is one lease in which they lie side by side, in
        that order; at most 1,024 that do not follow one another in memory, and none overlaps another. Peers find the
        lease by its name or by its token. `peers` are the patterns of register(), `permission` a tent.Permission;
        without them, those of this region, and where it lets nobody in, all that its buffer allows. It ends with
        close(), when `expires` seconds have passed, and with this region. The memory is yours again when close() has
        returned: then nobody can touch it by the lease.

        Raises InvalidArgumentError for a part outside the region, and for a lease of a lease.
        """
        self._check_open()
        parts = self._parts(part)
        allowed = 0 if permission is None else permission_of(permission)
        if permission is not None and allowed == Permission.LocalReadWrite:
            raise InvalidArgumentError(f"permission is {permission!r}: a lease is GlobalReadOnly or GlobalReadWrite")
        address, size = parts[0].address, sum(each.size for each in parts)
        if any(a.address + a.size != b.address for a, b in pairwise(parts)):
            address = 0
        memory = Memory(address, size, self._memory.read_only, self._memory)
        share = partial(
            self._engine._call_json,
            self._engine._library.pybind_ShareRegion,
            self._id,
            json.dumps([(each.offset, each.size) for each in parts]),
            text_of(name, "name"),
            allowed,
            identities("peers", peers),
            _expires(expires),
        )
        # A lease that nobody has would be one that nobody ends.
        with _native.result_of(share, lambda made: self._engine._undone([made["lease"]])) as made:
            return Lease(self._engine, made["lease"], memory, name, self.location, made["token"])

    def _parts(self, part: slice | RegionSlice | Iterable[slice | RegionSlice]) -> list[RegionSlice]:
        """The parts of a lease as slices of this region."""
        listed = [part] if isinstance(part, (slice, RegionSlice)) else list(part) if isinstance(part, Iterable) else []
        parts = []
        for given in listed:
            each = self[given] if isinstance(given, slice) else given
            if not isinstance(each, RegionSlice) or each.region is not self:
                raise InvalidArgumentError(f"{each!r} is no part of {self!r}", hint=_SHARE)
            parts.append(each)
        if not parts:
            raise InvalidArgumentError(f"{part!r} is no part of {self!r}", hint=_SHARE)
        return parts

    def _check_host(self) -> object:
        """The keeper of bytes that the host can look at."""
        keeper = self._memory.keeper
        if not self.address:
            raise InvalidArgumentError(f"{self!r} has several ranges and no view", hint="slice the view of its region")
        if keeper is None:
            raise InvalidArgumentError(f"{self!r} has no view any more", hint="its buffer is the program's again")
        if not self.location.startswith(_HOST):
            raise InvalidArgumentError(f"memory in {self.location} has no view on the host")
        return keeper

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidEntryError(f"region {self.name or hex(self.address)} is closed", code="STALE_ID")

    def __enter__(self) -> Region:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Region:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        state = " closed" if self._closed or self._engine.closed else self._missing()
        place = f"at {self.address:#x}" if self.address else "in several ranges"
        return f"<{type(self).__name__}{name} {_text.size(self.size)} {place} {self.location}{state}>"

    def _missing(self) -> str:
        """The transports on which the region is not, or its end, for its repr; nothing where that cannot be asked."""
        if _native.forked():
            return ""
        try:
            states = self.transports
        except AddressNotRegisteredError:  # a lease of which the time is up, or the region was closed
            return " closed" if self.closed else " closing"
        except TentError:
            return ""
        return "".join(f" {state.split(':')[0]} over {name}" for name, state in states.items() if state != "ready")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Region cannot be pickled; send engine.export() and open it in the other process")

    @_native.finalizer
    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self._engine.closed:
            return
        try:
            if self.closed:  # its time was over
                return
        except TentError:
            return  # the engine has closed meanwhile
        warnings.warn(
            f"{self!r} was dropped without close(): peers reach it until its engine closes",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )


def _expires(expires: float | str | None) -> int:
    """The milliseconds of a lease, 0 for one without an end."""
    if expires is None:
        return 0
    if (time := _native.milliseconds(expires, name="expires")) > 0:
        return time
    raise InvalidArgumentError(
        f"expires is {shown(expires)}: a lease ends later than it begins", hint="close() ends it now"
    )


class Lease(Region):
    """A part of a region that peers have for a time, from Region.share(). It is fenced and closed as a region is.
    One of several ranges has the address 0 and no view here: its bytes are those of its region.

    Example:
        with engine.allocate("64KiB") as pages, pages.share(pages[0:4096], "part", expires=60) as lease:
            assert lease.size == 4096 and lease.token
    """

    __slots__ = {
        "token": "Text for a stack's own handshake, of at most 64 characters. It names the lease and gives no rights."
    }

    def __init__(self, engine: Handle, id: int, memory: Memory, name: str, location: str, token: str) -> None:
        """For tent only."""
        super().__init__(engine, id, memory, name, location)
        self.token = token

    @property
    def closed(self) -> bool:
        """Whether peers have lost access for good: it was closed, its time is up, or its region was closed. A peer that
        does not let go when the time is up delays that."""
        if self._closed or self._engine.closed:
            return self._closed or self._engine._has_closed()
        try:
            self._engine._call(self._engine._library.pybind_LeaseToken, self._id)
        except InvalidEntryError:
            return True
        return False

    def renew(self, expires: float | str | None) -> None:
        """Gives the lease another end, `expires` seconds from now on; None is no end but that of its region.

        Raises InvalidEntryError once the time is up, or it was closed: it cannot come back, share the range again.
        """
        self._check_open()
        self._engine._call(self._engine._library.pybind_RenewLease, self._id, _expires(expires))
