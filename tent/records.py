"""The records of the integer level, with upstream's names and positional order."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from ._abi import PACKED, Fields
from .enums import (
    OpCode,
    Permission,
    SegmentInfoType,
    TransferStatusEnum,
    TransportType,
    kWildcardLocation,
)


class Request(Fields):
    """One READ or WRITE. `source` is the local address in either direction; `target_offset` an address in the peer, or
    an offset when the segment is a single region; `deadline_ns` is on time.monotonic_ns()'s clock, 0 for none; `trace`
    the caller's name for the call that submits it, the same or none in all requests of one call."""

    __slots__ = ()

    def __repr__(self) -> str:
        return (
            f"Request({OpCode(self.opcode).name}, source={self.source:#x}, target_id={self.target_id}, "
            f"target_offset={self.target_offset:#x}, length={self.length}, priority={self.priority!r})"
        )


pack = attrgetter(*PACKED)  # a request's fields as a packed request has them


class TransferStatus(NamedTuple):
    """The state of a task or a batch, and the bytes acknowledged so far."""

    state: TransferStatusEnum
    bytes: int


class Notification:
    """A small message after data. `message` is text; `data` the bytes as they were sent; `msg` is upstream's name.
    `trace` is the sender's name for the transfer before it."""

    __slots__ = ("data", "name", "peer", "trace")

    def __init__(self, name: str = "", message: str | bytes = "", peer: str = "", trace: str = "") -> None:
        self.name = name
        self.data = message.encode("utf-8", "surrogateescape") if isinstance(message, str) else bytes(message)
        self.peer = peer
        self.trace = trace

    @property
    def message(self) -> str:
        """The message as text; bytes that are not UTF-8 are surrogates, `data` has them as they are."""
        return self.data.decode("utf-8", "surrogateescape")

    @property
    def msg(self) -> str:
        """The message, by upstream's name."""
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

    base: int
    length: int
    location: str


class SegmentInfo(NamedTuple):
    """The kind of a segment, and its registered ranges."""

    type: SegmentInfoType
    buffers: list[SegmentInfoBuffer]


class MemoryOptions:
    """How memory is allocated or registered. `type`, `shm_path` and `shm_offset` are upstream's and have no effect
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
        return f"MemoryOptions(location={self.location!r}, perm={Permission(self.perm).name})"


class MemoryGuard:
    """Allocated memory that is freed at the end of its `with` block."""

    def __init__(self, free: Callable[[int], None], address: int, size: int) -> None:
        """For tent only; users call TransferEngine.allocate_memory_guard()."""
        self._free = free
        self.address = address
        self.size = size

    def release(self) -> None:
        """Frees the memory now. Again: no effect."""
        if self.address:
            address, self.address = self.address, 0
            self._free(address)

    def __enter__(self) -> MemoryGuard:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class BatchGuard:
    """A batch that is freed at the end of its `with` block."""

    def __init__(self, free: Callable[[int], None], id: int) -> None:
        """For tent only; users call TransferEngine.allocate_batch_guard()."""
        self._free = free
        self.id = id

    def release(self) -> None:
        """Frees the batch now; its transfers go on. Again: no effect."""
        if self.id:
            id, self.id = self.id, 0
            self._free(id)

    def __enter__(self) -> BatchGuard:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
