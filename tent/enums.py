"""Enumerations with Mooncake's numbers. Members go by Mooncake's spelling and by PEP 8's; both are the same object."""

from __future__ import annotations

from enum import IntEnum

from ._transports import TransportType

__all__ = [
    "LOCAL_SEGMENT_ID",
    "PRIO_HIGH",
    "PRIO_LOW",
    "PRIO_MEDIUM",
    "IntentType",
    "OpCode",
    "Permission",
    "Priority",
    "SegmentInfoType",
    "TransferStatusEnum",
    "TransportType",
    "kWildcardLocation",
]


class Priority(IntEnum):
    """The class of a request: a smaller number is served first wherever requests of several classes wait."""

    HIGH = 0
    MEDIUM = 1
    LOW = 2


PRIO_HIGH = Priority.HIGH
PRIO_MEDIUM = Priority.MEDIUM
PRIO_LOW = Priority.LOW

LOCAL_SEGMENT_ID = 0
kWildcardLocation = "*"  # Mooncake's spelling


class OpCode(IntEnum):
    """The direction of a request: READ fetches from the peer, WRITE sends to it."""

    READ = 0
    WRITE = 1


class TransferStatusEnum(IntEnum):
    """The state of a task, a batch or a transfer. After a submit it is never INITIAL; from INVALID on it is final."""

    INITIAL = 0
    PENDING = 1
    INVALID = 2
    CANCELED = 3
    COMPLETED = 4
    TIMEOUT = 5
    FAILED = 6


class Permission(IntEnum):
    """The rights of peers to a region."""

    LocalReadWrite = 0
    GlobalReadOnly = 1
    GlobalReadWrite = 2
    LOCAL_READ_WRITE = 0
    GLOBAL_READ_ONLY = 1
    GLOBAL_READ_WRITE = 2


class IntentType(IntEnum):
    """Why the bytes move; policies may choose by it."""

    UNSPEC = 0
    INTENT_UNSPEC = 0
    FOREGROUND_GET = 1
    BACKGROUND_PREFETCH = 2
    MIGRATION = 3
    CHECKPOINT = 4
    WEIGHT_LOADING = 5
    STAGING_INTERNAL = 6


class SegmentInfoType(IntEnum):
    """The kind of a segment."""

    Memory = 0
    File = 1
    MEMORY = 0
    FILE = 1
