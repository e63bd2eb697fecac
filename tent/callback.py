"""Callback: a function that add_done_callback() of a transfer was given; and calls in event loops."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .transfer import Transfer


def soon(loop: Any, function: Callable[..., object], *arguments: object, context: Context | None = None) -> None:
    """Calls a function in an event loop; from any thread. Nobody waits any more in a loop that has been closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments, context=context)


class Callback:
    """A callback of add_done_callback(), as the hub calls it; that of asyncio goes to its loop."""

    __slots__ = ("_context", "_loop", "_transfer", "function")

    def __init__(self, transfer: Transfer, function: Callable[[Transfer], object], context: Context | None) -> None:
        self._transfer = transfer
        self.function = function
        self._context = context
        self._loop = None
        if getattr(function, "__module__", None) == "asyncio.tasks":
            from asyncio import get_running_loop

            self._loop = get_running_loop()

    def __call__(self, _: int) -> None:
        if self._loop is not None:
            soon(self._loop, self.function, self._transfer, context=self._context)
        elif self._context is not None:
            self._context.run(self.function, self._transfer)
        else:
            self.function(self._transfer)
