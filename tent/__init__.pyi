# Written by tools/stubs.py from the table in __init__.py.

from ._members import BACKGROUND_PREFETCH as BACKGROUND_PREFETCH
from ._members import CANCELED as CANCELED
from ._members import CHECKPOINT as CHECKPOINT
from ._members import COMPLETED as COMPLETED
from ._members import FAILED as FAILED
from ._members import FOREGROUND_GET as FOREGROUND_GET
from ._members import GDS as GDS
from ._members import HP_TCP as HP_TCP
from ._members import INITIAL as INITIAL
from ._members import INTENT_UNSPEC as INTENT_UNSPEC
from ._members import INVALID as INVALID
from ._members import IOURING as IOURING
from ._members import MIGRATION as MIGRATION
from ._members import MNNVL as MNNVL
from ._members import MPCOMM as MPCOMM
from ._members import NVLINK as NVLINK
from ._members import PENDING as PENDING
from ._members import RDMA as RDMA
from ._members import READ as READ
from ._members import SHM as SHM
from ._members import STAGING_INTERNAL as STAGING_INTERNAL
from ._members import SUNRISE_LINK as SUNRISE_LINK
from ._members import TCP as TCP
from ._members import TIMEOUT as TIMEOUT
from ._members import TPU as TPU
from ._members import UB as UB
from ._members import UNSPEC as UNSPEC
from ._members import WEIGHT_LOADING as WEIGHT_LOADING
from ._members import WRITE as WRITE
from ._members import AscendDirect as AscendDirect
from ._members import File as File
from ._members import GlobalReadOnly as GlobalReadOnly
from ._members import GlobalReadWrite as GlobalReadWrite
from ._members import LocalReadWrite as LocalReadWrite
from ._members import Memory as Memory
from ._version import __version__
from .addresses import Addresses
from .admission import PeerInfo
from .batch import Batch
from .engine import Engine
from .enums import (
    LOCAL_SEGMENT_ID,
    PRIO_HIGH,
    PRIO_LOW,
    PRIO_MEDIUM,
    IntentType,
    OpCode,
    Permission,
    Priority,
    SegmentInfoType,
    TransferStatusEnum,
    TransportType,
    kWildcardLocation,
)
from .errors import (
    AddressNotRegisteredError,
    CudaError,
    DeviceNotFoundError,
    EngineClosedError,
    ForkError,
    InternalError,
    InvalidArgumentError,
    InvalidEntryError,
    MetadataError,
    NoSpaceError,
    NotFoundError,
    OutOfMemoryError,
    PeerRestartedError,
    PeerTimeoutError,
    PeerUnreachableError,
    PermissionDeniedError,
    RdmaError,
    RpcServiceError,
    StorageError,
    TentError,
    TentException,
    TooManyRequestsError,
    TransferCanceledError,
    TransferError,
    TransferTimeoutError,
)
from .errors import NotImplementedError as NotImplementedError
from .events import Event, Events
from .grid import Grid
from .metrics_server import MetricsServer, serve_metrics
from .notifications import Notifications
from .records import (
    BatchGuard,
    MemoryGuard,
    MemoryOptions,
    Notification,
    Request,
    SegmentInfo,
    SegmentInfoBuffer,
    TransferStatus,
)
from .region import Lease, Region
from .request_array import RequestArray
from .segment import RemoteRegion, Segment
from .spans import instrument, uninstrument
from .traffic import RailTraffic, Traffic
from .transfer import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, Transfer, as_completed, wait
from .transfer_engine import TransferEngine

__all__ = [
    "ALL_COMPLETED",
    "FIRST_COMPLETED",
    "FIRST_EXCEPTION",
    "LOCAL_SEGMENT_ID",
    "PRIO_HIGH",
    "PRIO_LOW",
    "PRIO_MEDIUM",
    "AddressNotRegisteredError",
    "Addresses",
    "Batch",
    "BatchGuard",
    "CudaError",
    "DeviceNotFoundError",
    "Engine",
    "EngineClosedError",
    "Event",
    "Events",
    "ForkError",
    "Grid",
    "IntentType",
    "InternalError",
    "InvalidArgumentError",
    "InvalidEntryError",
    "Lease",
    "MemoryGuard",
    "MemoryOptions",
    "MetadataError",
    "MetricsServer",
    "NoSpaceError",
    "NotFoundError",
    "Notification",
    "Notifications",
    "OpCode",
    "OutOfMemoryError",
    "PeerInfo",
    "PeerRestartedError",
    "PeerTimeoutError",
    "PeerUnreachableError",
    "Permission",
    "PermissionDeniedError",
    "Priority",
    "RailTraffic",
    "RdmaError",
    "Region",
    "RemoteRegion",
    "Request",
    "RequestArray",
    "RpcServiceError",
    "Segment",
    "SegmentInfo",
    "SegmentInfoBuffer",
    "SegmentInfoType",
    "StorageError",
    "TentError",
    "TentException",
    "TooManyRequestsError",
    "Traffic",
    "Transfer",
    "TransferCanceledError",
    "TransferEngine",
    "TransferError",
    "TransferStatus",
    "TransferStatusEnum",
    "TransferTimeoutError",
    "TransportType",
    "__version__",
    "as_completed",
    "instrument",
    "kWildcardLocation",
    "serve_metrics",
    "uninstrument",
    "wait",
]
