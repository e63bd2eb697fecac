"""Callback: a function that add_done_callback() of a transfer was given."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .transfer import Transfer


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
            try:
                self._loop.call_soon_threadsafe(self.function, self._transfer, context=self._context)
            except RuntimeError:
                pass  # the loop has been closed: nobody waits there any more
        elif self._context is not None:
            self._context.run(self.function, self._transfer)
        else:
            self.function(self._transfer)
