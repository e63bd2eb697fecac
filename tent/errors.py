"""The exceptions of tent: one tree under TentError, and its leaves are also the builtins that people catch.

Every failure that comes from the engine crosses the border as one JSON object; `translate` makes the exception of it.
Nobody outside tent raises these classes.
"""

from __future__ import annotations

import builtins
import errno
import json
from typing import Any

from .enums import TransferStatusEnum

__all__ = [
    "AddressNotRegisteredError",
    "CudaError",
    "DeviceNotFoundError",
    "EngineClosedError",
    "ForkError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidEntryError",
    "MetadataError",
    "NoSpaceError",
    "NotFoundError",
    "OutOfMemoryError",
    "PeerRestartedError",
    "PeerTimeoutError",
    "PeerUnreachableError",
    "PermissionDeniedError",
    "RdmaError",
    "RpcServiceError",
    "StorageError",
    "TentError",
    "TentException",
    "TooManyRequestsError",
    "TransferCanceledError",
    "TransferError",
    "TransferTimeoutError",
]


class TentError(Exception):
    """Base of all. `code` is a stable name such as "PEER_UNREACHABLE"; `hint` is the knob or the cure, or ""."""

    code: str = "INTERNAL_ERROR"

    def __init__(self, message: str = "", *, code: str | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        if not self.hint or self.hint in self.message:
            return self.message
        return f"{self.message}; {self.hint}"


TentException = TentError


class InvalidArgumentError(TentError, ValueError):
    """An argument or a setting is wrong; nothing has moved."""

    code = "INVALID_ARGUMENT"


class TooManyRequestsError(TentError):
    """A bound would be exceeded (a batch's capacity, max_pending_requests); nothing was taken."""

    code = "TOO_MANY_REQUESTS"


class AddressNotRegisteredError(TentError, LookupError):
    """The bytes are not inside a registered region of their owner, or no region has that name."""

    code = "ADDRESS_NOT_REGISTERED"


class DeviceNotFoundError(TentError, LookupError):
    """The named device is not there."""

    code = "DEVICE_NOT_FOUND"


class InvalidEntryError(TentError, LookupError):
    """A stale or unknown id: its object has been closed or freed, or belongs to another engine."""

    code = "INVALID_ENTRY"


class RdmaError(TentError):
    """The RDMA stack refused."""

    code = "RDMA_ERROR"


class CudaError(TentError):
    """The CUDA driver or runtime refused."""

    code = "CUDA_ERROR"


class MetadataError(TentError):
    """The description of a segment, from a peer or a metadata store, cannot be had or used."""

    code = "METADATA_ERROR"


class RpcServiceError(TentError):
    """The control plane failed, or the other side is not a tent engine of a version that we speak."""

    code = "RPC_SERVICE_ERROR"


class PermissionDeniedError(TentError, PermissionError):
    """The owner of the memory does not allow it, or one side does not admit the other one (PEER_NOT_ADMITTED)."""

    code = "PERMISSION_DENIED"


class NotFoundError(TentError, FileNotFoundError):
    """No file has that name."""

    code = "NOT_FOUND"
    errno = errno.ENOENT


class NoSpaceError(TentError, OSError):
    """The file system is full, or a quota or the largest file size is reached."""

    code = "NO_SPACE"
    errno = errno.ENOSPC


class OutOfMemoryError(TentError, MemoryError):
    """The machine, a cgroup or the address space of the process has no memory for this; nothing was touched."""

    code = "OUT_OF_MEMORY"


class StorageError(TentError, OSError):
    """The device or the file system under a file has failed."""

    code = "STORAGE_ERROR"
    errno = errno.EIO


class EngineClosedError(TentError):
    """The engine of this object has been closed."""

    code = "ENGINE_CLOSED"


class ForkError(TentError, RuntimeError):
    """The engine does not survive os.fork(): use the "spawn" start method, or create the Engine in the child."""

    code = "FORK"


class InternalError(TentError):
    """A defect of tent; please report it with its text."""


class NotImplementedError(TentError, builtins.NotImplementedError):
    """Known, but not in this version."""

    code = "NOT_IMPLEMENTED"


class TransferError(TentError):
    """A transfer has ended without moving everything, or could not begin because its peer is gone.

    `failed_tasks` lists the indexes, in the order of the call's requests, ranges or pages (grids: region * n + i), of
    all that did not complete; all others are complete at the destination. `dirty`: the listed ranges may have
    changed, and the peer could not be asked to stop. An error of the call itself, before anything moved, lists none.
    `trace` is the caller's name for the transfer. `scope` says how much failed with it ("slice", "rail", "link" or
    "transport"), `side` at which end ("local", "remote", "path" or "unknown"); `attempts` counts the tries.
    """

    state: TransferStatusEnum = TransferStatusEnum.FAILED
    scope: str = ""
    side: str = ""
    transport: str = ""
    rail: str = ""
    peer: str = ""
    trace: str = ""
    attempts: int = 0
    dirty: bool = False
    failed_tasks: list[int]

    def __init__(self, message: str = "", *, code: str | None = None, hint: str = "", **details: Any) -> None:
        super().__init__(message, code=code, hint=hint)
        self.failed_tasks = []
        for name, value in details.items():
            setattr(self, name, value)


class PeerUnreachableError(TransferError, ConnectionError):
    """Nobody answers at the peer's address, or the connection broke and could not be made again."""

    code = "PEER_UNREACHABLE"


class PeerTimeoutError(PeerUnreachableError, TimeoutError):
    """The peer did not answer a call of the control plane within its time, for example open(timeout=5)."""


class PeerRestartedError(TransferError, ConnectionError):
    """The peer has restarted: another process answers at its address. Open the segment again."""

    code = "PEER_RESTARTED"


class TransferTimeoutError(TransferError, TimeoutError):
    """The transfer itself has ended: its deadline or the stall limit was reached."""

    code = "TIMEOUT"
    state = TransferStatusEnum.TIMEOUT


class TransferCanceledError(TransferError):
    """The transfer was canceled, and has ended."""

    code = "CANCELED"
    state = TransferStatusEnum.CANCELED


_BY_CODE: dict[str, type[TentError]] = {
    cls.code: cls
    for cls in (
        InvalidArgumentError,
        TooManyRequestsError,
        AddressNotRegisteredError,
        DeviceNotFoundError,
        InvalidEntryError,
        RdmaError,
        CudaError,
        MetadataError,
        RpcServiceError,
        PermissionDeniedError,
        NotFoundError,
        NoSpaceError,
        OutOfMemoryError,
        StorageError,
        PeerUnreachableError,
        PeerRestartedError,
        EngineClosedError,
        InternalError,
        NotImplementedError,
    )
}
_BY_CODE |= {
    "STALE_ID": InvalidEntryError,
    "PEER_NOT_ADMITTED": PermissionDeniedError,
    "MALFORMED_JSON": InvalidArgumentError,
    "PROTOCOL": RpcServiceError,
    "NO_ROUTE": PeerUnreachableError,
    "NOT_HERE": DeviceNotFoundError,
    "LOST": PeerUnreachableError,
}

_GONE: dict[str, type[TransferError]] = {  # codes that tell of a peer that is gone
    code: cls for code, cls in _BY_CODE.items() if issubclass(cls, TransferError)
}

_BY_STATE: dict[int, type[TransferError]] = {
    TransferStatusEnum.TIMEOUT: TransferTimeoutError,
    TransferStatusEnum.CANCELED: TransferCanceledError,
}


_DETAILS = ("scope", "side", "transport", "rail", "peer", "trace")  # of a failure, beside its code, message and hint


def translate(error: BaseException) -> BaseException:
    """Returns the exception to raise for an error of the native module; anything but its RuntimeError as it is."""
    if not isinstance(error, RuntimeError) or isinstance(error, TentError):
        return error
    text = str(error)
    try:
        fields = json.loads(text)
        code, message, hint = fields["code"], fields["message"], fields.get("hint", "")
    except (ValueError, TypeError, KeyError):
        return InternalError(text)
    if code == "TIMEOUT" and fields.get("scope") != "link":
        # a caller's wait, not a transfer's end: the builtin that people catch
        return TimeoutError(f"{message}; {hint}" if hint and hint not in message else message)
    cls = PeerTimeoutError if code == "TIMEOUT" else _BY_CODE.get(code, TentError)
    if not issubclass(cls, TransferError):
        return cls(message, code=code, hint=hint)
    if code == "TIMEOUT":
        code = cls.code
    return cls(message, code=code, hint=hint, **{name: fields.get(name, "") for name in _DETAILS})


def question_of(error: BaseException) -> tuple[int, int] | None:
    """The arguments of pybind_Ask if a call has failed since a peer has to be asked first, else None."""
    try:
        segment, deadline = json.loads(str(error))["ask"]
    except (ValueError, TypeError, KeyError):
        return None
    return segment, deadline


def is_full(error: BaseException) -> bool:
    """Whether a call has failed because a bound would have been exceeded."""
    try:
        return bool(json.loads(str(error))["code"] == TooManyRequestsError.code)
    except (ValueError, TypeError, KeyError):
        return False


def transfer_error(state: int, failure: dict[str, Any], failed_tasks: list[int]) -> TransferError:
    """The exception for a transfer that ended in another state than COMPLETED; `failure` is the engine's account.

    Its class says the end of the transfer; for one that failed, whether its peer is gone.
    """
    code = failure.get("code") or ""
    cls = _BY_STATE.get(state) or _GONE.get(code, TransferError)
    name = TransferStatusEnum(state).name
    return cls(
        failure.get("message") or f"the transfer has ended as {name}",
        code=code or (cls.code if cls is not TransferError else "INTERNAL_ERROR"),
        hint=failure.get("hint", ""),
        state=TransferStatusEnum(state),
        attempts=failure.get("attempts", 0),
        dirty=failure.get("dirty", False),
        failed_tasks=failed_tasks,
        **{name: failure.get(name, "") for name in _DETAILS},
    )
