"""Members of enumerations by themselves, as Mooncake's module has them: tent.READ is tent.OpCode.READ."""

from __future__ import annotations

from .enums import IntentType, OpCode, Permission, SegmentInfoType, TransferStatusEnum, TransportType

READ, WRITE = OpCode
INITIAL, PENDING, INVALID, CANCELED, COMPLETED, TIMEOUT, FAILED = TransferStatusEnum
LocalReadWrite, GlobalReadOnly, GlobalReadWrite = Permission
UNSPEC, RDMA, MNNVL, SHM, NVLINK, GDS, IOURING, TCP, AscendDirect, SUNRISE_LINK, TPU, UB, MPCOMM, HP_TCP = TransportType
INTENT_UNSPEC, FOREGROUND_GET, BACKGROUND_PREFETCH, MIGRATION, CHECKPOINT, WEIGHT_LOADING, STAGING_INTERNAL = IntentType
Memory, File = SegmentInfoType
