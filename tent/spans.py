"""OpenTelemetry spans of transfers (the extra `otel`): instrument() and uninstrument().

Nothing here is imported, and no move pays anything, until instrument() replaces the calls that begin transfers, as
instrumentations of OpenTelemetry do. A span begins with the call, in the caller's context, and ends with the transfer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from . import moves
from .batch import Batch
from .errors import NotFoundError
from .moving import READ
from .page import COMPLETED
from .transfer import Transfer

if TYPE_CHECKING:
    from .handle import Handle

Begin = Callable[..., Transfer]

_replaced: list[tuple[type, str, Begin]] = []


def instrument(tracer_provider: Any = None) -> None:
    """Makes a span of every transfer of this process's engines; again: no effect.

    Example:
        from opentelemetry.sdk.trace import TracerProvider

        tent.instrument(TracerProvider())  # or without an argument the global one
        engine.write(region[0:64], segment["kv"][0:64]).result(timeout=10)
        tent.uninstrument()

    A span is called `tent.write`, `tent.read`, `tent.batch` or `tent.notify`. Its attributes are `tent.engine`,
    `tent.peer`, `tent.bytes`, `tent.transports`, `tent.attempts`, `tent.failovers` and `tent.state`, and `tent.trace`
    where the call has given one; a span that failed has the error and its code as `error.type`. Moves of TransferEngine
    make none. Raises NotFoundError without opentelemetry.
    """
    if _replaced:
        return
    try:
        from opentelemetry import trace
    except ImportError:
        raise NotFoundError("opentelemetry is not installed", hint="pip install tent-engine[otel]") from None
    from ._version import __version__

    spans = _Spans(trace, trace.get_tracer("tent", __version__, tracer_provider))
    for owner, name, replacement in (
        (moves.Moves, "_move", spans.move),
        (moves.Moves, "_many", spans.many),
        (moves.Moves, "notify", spans.notify),
        (Batch, "submit", spans.submit),
    ):
        original = getattr(owner, name)
        _replaced.append((owner, name, original))
        setattr(owner, name, _method(replacement, original))


def uninstrument() -> None:
    """Ends the effect of instrument(). Spans of transfers under way still end."""
    while _replaced:
        setattr(*_replaced.pop())


def _method(replacement: Callable[..., Transfer], original: Begin) -> Begin:
    def method(self: Any, *arguments: Any, **keywords: Any) -> Transfer:
        return replacement(self, partial(original, self, *arguments, **keywords), arguments)

    method.__doc__ = original.__doc__
    return method


class _Spans:
    """Begins and ends spans with one tracer."""

    def __init__(self, trace: Any, tracer: Any) -> None:
        self._trace = trace
        self._tracer = tracer

    def move(self, engine: Handle, begin: Begin, arguments: tuple[Any, ...]) -> Transfer:
        op, _, remote, *_ = arguments
        return self._around("tent.read" if op == READ else "tent.write", engine, [remote], begin)

    def many(self, engine: Handle, begin: Begin, arguments: tuple[Any, ...]) -> Transfer:
        _, op, _, operands = arguments
        return self._around("tent.read" if op == READ else "tent.write", engine, [operands[2]], begin)

    def notify(self, engine: Handle, begin: Begin, arguments: tuple[Any, ...]) -> Transfer:
        return self._around("tent.notify", engine, arguments[:1], begin)

    def submit(self, batch: Batch, begin: Begin, arguments: tuple[Any, ...]) -> Transfer:
        return self._around("tent.batch", batch._engine, batch._keep, begin)

    def _around(self, name: str, engine: Handle, operands: Iterable[Any], begin: Begin) -> Transfer:
        began = time.time_ns()
        attributes = {"tent.engine": engine.name, "tent.peer": _peers(engine, operands)}
        span = self._tracer.start_span(name, kind=self._trace.SpanKind.CLIENT, attributes=attributes, start_time=began)
        try:
            transfer = begin()
        except BaseException as error:
            self._fail(span, error)
            span.end()
            raise
        transfer.add_done_callback(partial(self._end, span, began))
        return transfer

    def _end(self, span: Any, began: int, transfer: Transfer) -> None:
        state = transfer._state()
        try:
            span.set_attributes(
                {
                    "tent.bytes": transfer.bytes,
                    "tent.transports": transfer.transports,
                    "tent.attempts": transfer.attempts,
                    "tent.failovers": transfer.failovers,
                    "tent.state": transfer.state.name,
                }
            )
            if transfer.trace:
                span.set_attribute("tent.trace", transfer.trace)
            if state != COMPLETED:
                self._fail(span, transfer._error(state))  # exception() would count as the user's look at it
        finally:
            span.end(end_time=began + transfer._elapsed_ns())

    def _fail(self, span: Any, error: BaseException) -> None:
        span.set_attribute("error.type", getattr(error, "code", type(error).__name__))
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(error)))


def _peers(engine: Handle, operands: Iterable[Any]) -> str:
    """The addresses of the peers that remote operands are of; this engine's own where they name none."""
    found: dict[str, None] = {}
    for operand in operands:
        segment = getattr(operand, "segment", None) or getattr(operand, "_keep", operand)  # of a slice, or of a grid
        address = getattr(segment, "address", None)
        if isinstance(address, str):
            found[address] = None
    return ", ".join(found) or engine.address
