"""The records of the integer level, with Mooncake's names and positional order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from ._abi import PACKED, Fields
from ._text import address, member, shown
from .enums import (
    OpCode,
    Permission,
    SegmentInfoType,
    TransferStatusEnum,
    TransportType,
    kWildcardLocation,
)
from .quantities import encoded

if TYPE_CHECKING:
    from typing_extensions import Self


class Request(Fields):
    """One READ or WRITE. `source` is the local address in either direction; `target_offset` an address in the peer, or
    an offset when the segment is a single region; `deadline_ns` is on time.monotonic_ns()'s clock, 0 for none; `trace`
    the caller's name for the call that submits it, the same or none in all requests of one call."""

    __slots__ = ()

    def __repr__(self) -> str:
        return (
            f"Request({member(OpCode, self.opcode)}, source={address(self.source)}, "
            f"target_id={shown(self.target_id)}, target_offset={address(self.target_offset)}, "
            f"length={shown(self.length)}, priority={shown(self.priority)})"
        )


pack = attrgetter(*PACKED)  # a request's fields as a packed request has them


class TransferStatus(NamedTuple):
    """The state of a task or a batch, and the bytes acknowledged so far."""

    state: TransferStatusEnum = TransferStatusEnum.INITIAL
    bytes: int = 0


class Notification:
    """A small message after data. `message` is text; `data` the bytes as they were sent; `msg` is Mooncake's name.
    `trace` is the sender's name for the transfer before it."""

    __slots__ = ("data", "name", "peer", "trace")

    def __init__(self, name: str = "", message: str | bytes = "", peer: str = "", trace: str = "") -> None:
        self.name = name
        self.data = encoded(message, "message")
        self.peer = peer
        self.trace = trace

    @property
    def message(self) -> str:
        """The message as text; bytes that are not UTF-8 are surrogates, `data` has them as they are."""
        return self.data.decode("utf-8", "surrogateescape")

    @property
    def msg(self) -> str:
        """The message, by Mooncake's name."""
        return self.message

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Notification):
            return NotImplemented
        return (self.name, self.data, self.peer, self.trace) == (other.name, other.data, other.peer, other.trace)

    def __hash__(self) -> int:
        return hash((self.name, self.data, self.peer, self.trace))

    def __repr__(self) -> str:
        trace = f", trace={self.trace!r}" if self.trace else ""
        return f"Notification(name={self.name!r}, message={self.message!r}, peer={self.peer!r}{trace})"


class SegmentInfoBuffer(NamedTuple):
    """One registered range of a segment."""

    base: int = 0
    length: int = 0
    location: str = kWildcardLocation


class SegmentInfo(NamedTuple):
    """The kind of a segment, and its registered ranges."""

    type: SegmentInfoType = SegmentInfoType.Memory
    buffers: Sequence[SegmentInfoBuffer] = ()


class MemoryOptions:
    """How memory is allocated or registered. `type`, `shm_path` and `shm_offset` are Mooncake's and have no effect
    yet."""

    __slots__ = ("internal", "location", "perm", "shm_offset", "shm_path", "type")

    def __init__(
        self,
        location: str = kWildcardLocation,
        perm: Permission = Permission.GlobalReadWrite,
        type: TransportType = TransportType.UNSPEC,
        shm_path: str = "",
        shm_offset: int = 0,
        internal: bool = False,
    ) -> None:
        self.location = location
        self.perm = perm
        self.type = type
        self.shm_path = shm_path
        self.shm_offset = shm_offset
        self.internal = internal

    def __repr__(self) -> str:
        return f"MemoryOptions(location={self.location!r}, perm={member(Permission, self.perm)})"


class _Guard(int):
    """A number that is given back at the end of its `with` block, once."""

    _free: Callable[[int], None] | None

    def release(self) -> None:
        """Gives it back now. Again: no effect."""
        free, self._free = self._free, None
        if free is not None:
            free(int(self))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)  # a copy gives nothing back


class MemoryGuard(_Guard):
    """The address of allocated memory that is freed at the end of its `with` block."""

    size: int

    def __new__(cls, free: Callable[[int], None], address: int, size: int) -> Self:
        """For tent only; users call TransferEngine.allocate_memory_guard()."""
        guard = super().__new__(cls, address)
        guard._free, guard.size = free, size
        return guard

    @property
    def address(self) -> int:
        """The address as a plain integer."""
        return int(self)


class BatchGuard(_Guard):
    """The id of a batch that is freed at the end of its `with` block; its transfers go on."""

    def __new__(cls, free: Callable[[int], None], id: int) -> Self:
        """For tent only; users call TransferEngine.allocate_batch_guard()."""
        guard = super().__new__(cls, id)
        guard._free = free
        return guard

    @property
    def id(self) -> int:
        """The id as a plain integer."""
        return int(self)
