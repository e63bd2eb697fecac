"""The bridge to asyncio, imported at the first await: an event loop listens to the engine's eventfd itself."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from .callback import soon
from .loop import Hub
from .quantities import limit_of, seconds_of

if TYPE_CHECKING:
    from .stream import Stream
    from .transfer import Transfer

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """A call that blocks, off the loop."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


async def result(transfer: Transfer) -> int:
    """transfer.result() without blocking the loop. Cancelling it cancels the transfer and re-raises after its end."""
    if not transfer.done():
        try:
            await _end(transfer)
        except asyncio.CancelledError:
            transfer.cancel()
            while not transfer.done():
                try:
                    await _end(transfer)
                except asyncio.CancelledError:
                    continue  # it is being cancelled already, and its memory is not the caller's before the end
            raise
    return transfer.result()


async def result_within(transfer: Transfer, timeout: float | str | None) -> int:
    """transfer.result(timeout) without blocking the loop. A time-out leaves the transfer alone."""
    if timeout is not None:
        seconds = seconds_of(timeout)  # before there is a coroutine that nobody would await
        try:
            if not transfer.done():
                await asyncio.wait_for(_end(transfer), seconds)
        except asyncio.TimeoutError:
            raise TimeoutError(f"the transfer has not ended within {limit_of(timeout)}; it goes on") from None
    return await result(transfer)


async def _end(transfer: Transfer) -> None:
    loop, end = asyncio.get_running_loop(), asyncio.Event()
    hub = transfer._engine._hub
    _join(hub, loop)

    def ended(_: int) -> None:
        if asyncio._get_running_loop() is loop:
            end.set()
        else:
            soon(loop, end.set)

    hub.watch(transfer._batch, ended, bound=False)
    try:
        await end.wait()
    finally:
        if not end.is_set():  # given up: while an await is open that no loop serves, nobody listens
            hub.unwatch(transfer._batch, lambda watcher: watcher is ended)


def _join(hub: Hub, loop: asyncio.AbstractEventLoop) -> None:
    """Lets loop listen to the engine, from its first await until either of them closes."""
    if loop in hub.loops:
        return
    with hub.lock:
        if hub.closed:  # its descriptor may be another file's by now
            return
        for other in [other for other in hub.loops if other.is_closed()]:
            os.close(hub.loops.pop(other))
        fd = os.dup(hub.fd)
        hub.loops[loop] = fd
        hub.leave_loops = partial(leave_all, hub)
    loop.add_reader(fd, hub.dispatch)


def leave_all(hub: Hub) -> None:
    """Takes the engine's eventfd out of every loop; from any thread."""

    def leave(loop: Any, fd: int) -> None:
        loop.remove_reader(fd)
        os.close(fd)

    for loop, fd in list(hub.loops.items()):
        hub.loops.pop(loop, None)
        if asyncio._get_running_loop() is loop:
            leave(loop, fd)
            continue
        try:
            loop.call_soon_threadsafe(leave, loop, fd)
        except RuntimeError:
            os.close(fd)


async def _readable(fd: int, awake: asyncio.Event) -> None:
    """Returns when a descriptor is readable, or the event was set otherwise; at once where another thread has closed
    the descriptor meanwhile, and its number may be another file's, for which the loop cannot wait."""
    loop = asyncio.get_running_loop()
    try:
        own = os.dup(fd)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return
    try:
        loop.add_reader(own, awake.set)
        await awake.wait()
    except PermissionError:
        return
    finally:
        loop.remove_reader(own)
        os.close(own)


async def _next(stream: Stream[T]) -> T:
    while True:
        awake = asyncio.Event()
        wake = partial(soon, asyncio.get_running_loop(), awake.set)  # called by the engine's close, on any thread
        stream._sleepers.add(wake)  # before the look, or a close between the two would wake nobody
        try:
            if taken := stream.drain(1):
                return taken[0]
            await _readable(stream.fileno(), awake)
        finally:
            stream._sleepers.discard(wake)


async def next_item(stream: Stream[T], timeout: float | str | None = None) -> T:
    """stream.get() without blocking the loop."""
    if timeout is None:
        return await _next(stream)
    seconds = seconds_of(timeout)
    for item in stream.drain(1):  # with a time of 0, wait_for() would not look
        return item
    try:
        return await asyncio.wait_for(_next(stream), seconds)
    except asyncio.TimeoutError:
        raise TimeoutError(f"no {stream._what} came within {limit_of(timeout)}") from None
