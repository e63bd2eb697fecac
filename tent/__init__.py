"""tent moves bytes between the memories of processes and machines, for LLM inference.

Two levels over one engine: objects (Engine, Region, Segment, Transfer, Batch) for people and adapters, and integers
(TransferEngine, Request, RequestArray) for programs that come from Mooncake's module.

Example:
    import numpy as np, tent

    with tent.Engine() as engine:
        kv = np.zeros((1024, 65536), np.uint8)
        with engine.register(kv, name="kv"):
            print(engine.address)

Importing tent starts nothing and loads nothing else: each name is fetched at its first use, the Go engine at the
first Engine.
"""

from __future__ import annotations

from ._lazy import attach
from ._version import __version__ as __version__

# Module to its public names. Type checkers read __init__.pyi, which tools/stubs.py writes from this table.
_PUBLIC = {
    "_members": "READ WRITE INITIAL PENDING INVALID CANCELED COMPLETED TIMEOUT FAILED LocalReadWrite GlobalReadOnly "
    "GlobalReadWrite UNSPEC RDMA MNNVL SHM NVLINK GDS IOURING TCP AscendDirect SUNRISE_LINK TPU UB MPCOMM HP_TCP "
    "INTENT_UNSPEC FOREGROUND_GET BACKGROUND_PREFETCH MIGRATION CHECKPOINT WEIGHT_LOADING STAGING_INTERNAL Memory File",
    "addresses": "Addresses",
    "admission": "PeerInfo",
    "batch": "Batch",
    "engine": "Engine",
    "enums": "LOCAL_SEGMENT_ID PRIO_HIGH PRIO_LOW PRIO_MEDIUM IntentType OpCode Permission Priority "
    "SegmentInfoType TransferStatusEnum TransportType kWildcardLocation",
    "errors": "AddressNotRegisteredError CudaError DeviceNotFoundError EngineClosedError ForkError InternalError "
    "InvalidArgumentError InvalidEntryError MetadataError NoSpaceError NotFoundError NotImplementedError "
    "OutOfMemoryError PeerRestartedError PeerTimeoutError PeerUnreachableError PermissionDeniedError RdmaError "
    "RpcServiceError StorageError TentError TentException TooManyRequestsError TransferCanceledError TransferError "
    "TransferTimeoutError",
    "events": "Event Events",
    "grid": "Grid",
    "metrics_server": "MetricsServer serve_metrics",
    "notifications": "Notifications",
    "records": "BatchGuard MemoryGuard MemoryOptions Notification Request SegmentInfo SegmentInfoBuffer TransferStatus",
    "region": "Lease Region",
    "request_array": "RequestArray",
    "segment": "RemoteRegion Segment",
    "spans": "instrument uninstrument",
    "traffic": "RailTraffic Traffic",
    "transfer": "ALL_COMPLETED FIRST_COMPLETED FIRST_EXCEPTION Transfer as_completed wait",
    "transfer_engine": "TransferEngine",
}
# `from tent import *` shadows neither the builtin NotImplementedError by its child nor a program's own READ.
__all__, __getattr__, __dir__ = attach(__name__, _PUBLIC, eager="__version__", unlisted="NotImplementedError")
