"""NIXL's error classes, and the one that stands for each error of tent.

As upstream they are siblings. Unlike upstream's their text says cause, peer and cure; the error of tent is `__cause__`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ... import errors

__all__ = [
    "nixlBackendError",
    "nixlCancelledError",
    "nixlInvalidParamError",
    "nixlMismatchError",
    "nixlNoTelemetryError",
    "nixlNotAllowedError",
    "nixlNotFoundError",
    "nixlNotPostedError",
    "nixlNotSupportedError",
    "nixlRemoteDisconnectError",
    "nixlRepostActiveError",
    "nixlUnknownError",
]


class nixlNotPostedError(Exception):
    """The transfer was not posted yet."""


class nixlInvalidParamError(Exception):
    """An argument is wrong."""


class nixlBackendError(Exception):
    """The engine could not do it."""


class nixlNotFoundError(Exception):
    """An agent, a backend or a registration is unknown."""


class nixlMismatchError(Exception):
    """Metadata is not that of an agent."""


class nixlNotAllowedError(Exception):
    """The owner does not permit it, or it cannot be done now."""


class nixlRepostActiveError(Exception):
    """The transfer is under way; it can be posted again after its end."""


class nixlUnknownError(Exception):
    """An error without a cause that is known."""


class nixlNotSupportedError(Exception):
    """tent does not do this in NIXL's place."""


class nixlRemoteDisconnectError(Exception):
    """The remote agent is gone, or is another incarnation."""


class nixlCancelledError(Exception):
    """The transfer was cancelled."""


class nixlNoTelemetryError(Exception):
    """The agent was made without capture_telemetry."""


# The first class that fits counts.
_STANDS_FOR: tuple[tuple[type[BaseException], type[Exception]], ...] = (
    (errors.PeerUnreachableError, nixlRemoteDisconnectError),
    (errors.PeerRestartedError, nixlRemoteDisconnectError),
    (errors.TransferCanceledError, nixlCancelledError),
    (errors.AddressNotRegisteredError, nixlNotFoundError),
    (errors.InvalidEntryError, nixlNotFoundError),
    (errors.DeviceNotFoundError, nixlNotSupportedError),
    (errors.NotImplementedError, nixlNotSupportedError),
    (errors.PermissionDeniedError, nixlNotAllowedError),
    (errors.InvalidArgumentError, nixlInvalidParamError),
    (errors.TentError, nixlBackendError),
    (TimeoutError, nixlNotAllowedError),
)


def translated(error: BaseException) -> Exception:
    """NIXL's error for one of tent's, with its text and hint."""
    kind = next((nixl for ours, nixl in _STANDS_FOR if isinstance(error, ours)), nixlUnknownError)
    made = kind(str(error))
    made.__cause__ = error
    return made


@contextlib.contextmanager
def translating() -> Iterator[None]:
    """Raises NIXL's error for one of tent's."""
    try:
        yield
    except errors.TentError as error:
        raise translated(error) from error
