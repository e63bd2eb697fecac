"""Handles of prepared lists and of transfers."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ... import _native
from ...errors import TentError, TransferError
from ...transfer import Transfer
from ..looking import ended
from .errors import (
    nixlInvalidParamError,
    nixlNotAllowedError,
    nixlNoTelemetryError,
    nixlNotFoundError,
    nixlNotPostedError,
    nixlRepostActiveError,
    translated,
)
from .messages import encoded

if TYPE_CHECKING:
    from .moves import Looked

logger = logging.getLogger("tent.compat.nixl")

RELEASE_LIMIT = 2.0  # seconds in which a cancelled transfer becomes quiet: above the engine's bound for a fence

DONE, UNDER_WAY, FAILED = "DONE", "PROC", "ERR"


@dataclass(frozen=True)
class nixlXferTelemetry:
    """Times of a transfer in microseconds, and its size."""

    startTime: int  # since 1970
    postDuration: int
    xferDuration: int
    totalBytes: int
    descCount: int


class nixl_prepped_dlist_handle:
    """A descriptor list that was looked up once, from prep_xfer_dlist()."""

    __slots__ = ("agent_name", "backend", "list", "n")

    def __init__(self, ranges: Looked, agent_name: str | None, backend: str) -> None:
        """For the agent only; without a name the list is local."""
        self.list: Looked | None = ranges
        self.agent_name = agent_name
        self.backend = backend
        self.n = ranges.n

    def taken(self) -> Looked:
        """The list, unless it was released."""
        if self.list is None:
            raise nixlInvalidParamError("the descriptor list was released")
        return self.list

    def release(self) -> None:
        """Forgets the list, which ends with the last transfer that was made from it. Again: no effect."""
        self.list = None

    def __repr__(self) -> str:
        side = "local" if self.agent_name is None else f"of {self.agent_name}"
        return f"<nixl_prepped_dlist_handle {side}: {self.n} descriptors{'' if self.list else ', released'}>"


class nixl_xfer_handle:
    """A transfer that can be posted, again and again, from make_prepped_xfer() or initialize_xfer().

    A handle that is dropped cancels its transfer."""

    __slots__ = (
        "_counts",
        "_error",
        "_message",
        "_post",
        "_posting",
        "_sent",
        "_started",
        "_told",
        "agent_name",
        "backend",
        "n",
    )

    def __init__(
        self,
        post: Callable[[bytes], list[Transfer]],
        agent_name: str,
        backend: str,
        n: int,
        message: bytes | str,
        counts: bool,
    ) -> None:
        """For the agent only."""
        self._post: Callable[[bytes], list[Transfer]] | None = post
        self._message = encoded(message)
        self._counts = counts
        self._sent: list[Transfer] | None = None  # once it was posted
        self._error: TentError | None = None
        self._told = False
        self._started = self._posting = 0
        self.agent_name = agent_name
        self.backend = backend
        self.n = n

    @property
    def error(self) -> TentError | None:
        """The error of tent behind the state "ERR"."""
        return self._error

    def post(self, message: bytes | str = b"") -> str:
        """Begins the transfer and returns its state. An error that is known at once is raised."""
        if self._post is None:
            raise nixlNotFoundError("the transfer was released")
        if self._sent and self.state() == UNDER_WAY:
            raise nixlRepostActiveError("the transfer is under way: it can be posted again after its end")
        self._sent, self._error, self._told = None, None, False
        self._started = time.time_ns()
        begun = time.perf_counter_ns()
        try:
            self._message = encoded(message) or self._message
            self._sent = self._post(self._message)
        except TentError as error:
            self._fail(error)
            raise translated(error) from error
        finally:
            self._posting = time.perf_counter_ns() - begun
        return self._state_by(Transfer.done)  # which moves no bytes: a post gives its thread back

    def state(self) -> str:
        """ "DONE", "PROC" or "ERR". A look at a transfer that is under way drives it, as upstream's does."""
        return self._state_by(ended)

    def _state_by(self, look: Callable[[Transfer], bool]) -> str:
        if self._error is not None:
            return FAILED
        if self._sent is None:
            raise nixlNotPostedError("the transfer was not posted yet: call transfer()")
        for transfer in self._sent:
            if not look(transfer):
                return UNDER_WAY
        for transfer in self._sent:
            error = transfer.exception()
            if error is not None:
                self._fail(error)
                return FAILED
        return DONE

    def _fail(self, error: TentError) -> None:
        """Keeps the error, and logs it once: stacks print no more than "ERR"."""
        self._error = error
        if not self._told:
            self._told = True
            where = f" over {error.transport} {error.rail}" if isinstance(error, TransferError) else ""
            logger.error("a transfer with %s has failed%s: %s: %s", self.agent_name, where, error.code, error)

    def telemetry(self) -> nixlXferTelemetry:
        """Times and size of the last transfer."""
        if not self._counts:
            raise nixlNoTelemetryError("the agent was made without capture_telemetry=True")
        if self._sent is None:
            raise nixlNotPostedError("the transfer was not posted yet: call transfer()")
        last = self._sent[-1:]  # none where there was nothing to do
        took = max(self._posting / 1e9, *(transfer.elapsed for transfer in last), 0.0)
        moved = sum(transfer.total_bytes for transfer in last)
        return nixlXferTelemetry(self._started // 1000, self._posting // 1000, int(took * 1e6), moved, self.n)

    def release(self) -> None:
        """Ends the transfer: one that is under way is cancelled, and no byte of it moves when this returns. Raises
        nixlNotAllowedError when it is not quiet within 2 s; call it again then. Again: no effect."""
        sent = self._sent or []
        for transfer in sent:
            transfer.cancel()
        limit = time.monotonic() + RELEASE_LIMIT
        for transfer in sent:
            try:
                transfer.wait(max(0.0, limit - time.monotonic()))
            except TimeoutError:
                raise nixlNotAllowedError(
                    f"the transfer with {self.agent_name} is not quiet yet, {RELEASE_LIMIT:g} s after it was canceled: "
                    "its memory is still in use; release it again"
                ) from None
        for transfer in sent:
            transfer.exception()  # asked for: it is not logged as forgotten
        self._sent, self._post = None, None

    @_native.finalizer
    def __del__(self) -> None:
        """Cancels the transfer, as upstream's handle does that is dropped, and waits for nothing: the engine holds the
        memory until it is quiet."""
        for transfer in getattr(self, "_sent", None) or ():
            with contextlib.suppress(TentError):  # the engine has closed
                transfer.cancel()

    def __repr__(self) -> str:
        if self._post is None:
            state = "released"
        else:
            state = "not posted" if self._sent is None and self._error is None else self.state()
        return f"<nixl_xfer_handle with {self.agent_name}: {self.n} descriptors, {state}>"


def usable(handle: Any, kind: type) -> None:
    """Refuses everything but handles of this kind."""
    if not isinstance(handle, kind):
        raise TypeError(f"a {kind.__name__} is needed, not {type(handle).__name__}")
