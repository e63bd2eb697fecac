"""tent moves bytes between the memories of processes and machines, for LLM inference.

Two levels over one engine: objects (Engine, Region, Segment, Transfer, Batch) for people and adapters, and integers
(TransferEngine, Request, RequestArray) for whoever knows upstream's module.

    import numpy as np, tent

    with tent.Engine() as engine:
        kv = np.zeros((1024, 65536), np.uint8)
        with engine.register(kv, name="kv"):
            print(engine.address)

Importing tent starts nothing and loads nothing else: each name is fetched at its first use, the Go engine at the
first Engine.
"""

from __future__ import annotations

from ._version import __version__

TYPE_CHECKING = False  # typing's costs more than all of this; type checkers know the name
if TYPE_CHECKING:
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
        PeerRestartedError,
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
    from .traffic import RailTraffic, Traffic
    from .transfer import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, Transfer, as_completed, wait
    from .transfer_engine import TransferEngine

_HOME = {
    "batch": "Batch",
    "engine": "Engine",
    "enums": "LOCAL_SEGMENT_ID PRIO_HIGH PRIO_LOW PRIO_MEDIUM IntentType OpCode Permission SegmentInfoType "
    "TransferStatusEnum TransportType kWildcardLocation",
    "errors": "AddressNotRegisteredError CudaError DeviceNotFoundError EngineClosedError ForkError InternalError "
    "InvalidArgumentError InvalidEntryError MetadataError NoSpaceError NotFoundError NotImplementedError "
    "PeerRestartedError PeerUnreachableError PermissionDeniedError RdmaError RpcServiceError StorageError TentError "
    "TentException TooManyRequestsError TransferCanceledError TransferError TransferTimeoutError",
    "events": "Event Events",
    "grid": "Grid",
    "notifications": "Notifications",
    "records": "BatchGuard MemoryGuard MemoryOptions Notification Request SegmentInfo SegmentInfoBuffer TransferStatus",
    "region": "Region",
    "request_array": "RequestArray",
    "segment": "RemoteRegion Segment",
    "traffic": "RailTraffic Traffic",
    "transfer": "ALL_COMPLETED FIRST_COMPLETED FIRST_EXCEPTION Transfer as_completed wait",
    "transfer_engine": "TransferEngine",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

# The builtin's child stays out, so that `from tent import *` does not shadow the builtin.
__all__ = [
    "ALL_COMPLETED",
    "FIRST_COMPLETED",
    "FIRST_EXCEPTION",
    "LOCAL_SEGMENT_ID",
    "PRIO_HIGH",
    "PRIO_LOW",
    "PRIO_MEDIUM",
    "AddressNotRegisteredError",
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
    "NoSpaceError",
    "NotFoundError",
    "Notification",
    "Notifications",
    "OpCode",
    "PeerRestartedError",
    "PeerUnreachableError",
    "Permission",
    "PermissionDeniedError",
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
    "kWildcardLocation",
    "wait",
]


if not TYPE_CHECKING:  # or a type checker would take every name for one of ours

    def __getattr__(name: str) -> object:
        """Fetch a public name from its module at its first use (PEP 562)."""
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module 'tent' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module("." + module, __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_MODULE_OF))
