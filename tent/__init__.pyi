# Written by tools/stubs.py from the table in __init__.py.

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
from .region import Region
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
