"""The bridge to asyncio, imported at the first await: an event loop listens to the engine's eventfd itself."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

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
    if timeout is not None and not transfer.done():
        try:
            await asyncio.wait_for(_end(transfer), seconds_of(timeout))
        except asyncio.TimeoutError:
            raise TimeoutError(f"the transfer has not ended within {limit_of(timeout)}; it goes on") from None
    return await result(transfer)


async def _end(transfer: Transfer) -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    hub = transfer._engine._hub
    _join(hub, loop)

    def settle(_: int) -> None:
        if not future.done():
            future.set_result(None)

    def ended(_: int) -> None:
        if asyncio._get_running_loop() is loop:
            settle(0)
            return
        try:
            loop.call_soon_threadsafe(settle, 0)
        except RuntimeError:
            pass  # the loop has been closed: nobody waits there any more

    hub.watch(transfer._batch, ended, bound=False)
    await future


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


async def _readable(
    fd: int, loop: asyncio.AbstractEventLoop, future: asyncio.Future[None], settle: Callable[[], None]
) -> None:
    """Returns when a descriptor is readable, or the future has been settled otherwise."""
    own = os.dup(fd)
    loop.add_reader(own, settle)
    try:
        await future
    finally:
        loop.remove_reader(own)
        os.close(own)


async def next_item(stream: Stream[T], timeout: float | str | None = None) -> T:
    """stream.get() without blocking the loop."""
    loop = asyncio.get_running_loop()

    async def wait() -> T:
        while True:
            future: asyncio.Future[None] = loop.create_future()

            def settle(future: asyncio.Future[None] = future) -> None:
                if not future.done():
                    future.set_result(None)

            def wake(settle: Callable[[], None] = settle) -> None:  # called by the engine's close, on any thread
                try:
                    loop.call_soon_threadsafe(settle)
                except RuntimeError:
                    pass

            stream._sleepers.add(wake)  # before the look, or a close between the two would wake nobody
            try:
                taken = stream.drain(1)
                if taken:
                    return taken[0]
                await _readable(stream.fileno(), loop, future, settle)
            finally:
                stream._sleepers.discard(wake)

    if timeout is None:
        return await wait()
    try:
        return await asyncio.wait_for(wait(), seconds_of(timeout))
    except asyncio.TimeoutError:
        raise TimeoutError(f"no {stream._what} came within {limit_of(timeout)}") from None
