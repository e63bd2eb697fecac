"""How engines end: in order, quiescent, and also when nobody asked for it.

A close goes like this, in this order, and a step that fails keeps none of the later ones from running:

 1. The engine leaves `_open`, `_closed` is set, and Go refuses new transfers: all others stand in the shared page.
 2. Transfers under way end by themselves or, when the time is over, are cancelled; we wait for their end.
 3. Each Transfer is settled: its outcome moves into Python, since the shared page and the engine will be gone. A thread
    that comes back from Go beside the close makes its Transfer later: the outcome of that one waits in `_ends`.
 4. The hub hands out the last ends, callbacks run, and the thread lets go of the eventfd.
 5. The page's views are released, so that a thread that still looks gets an answer instead of memory that is given up.
 6. Go closes: regions are revoked, links and sockets go. Only then may buffers be released.
"""

from __future__ import annotations

import atexit
import json
import sys
import threading
import time
import weakref
from array import array
from functools import partial
from typing import TYPE_CHECKING, Any

from . import _native, loop
from .errors import TentError, translate
from .transfer import end_of

if TYPE_CHECKING:
    from ._gotent import Library
    from .handle import Handle

EXIT_SECONDS = 1.0  # in which everything is cancelled when the interpreter ends
_END_SECONDS = 5.0  # for the ends of cancelled transfers; the fence bound is 1 s

_open: weakref.WeakSet[Handle] = weakref.WeakSet()
_held: list[Any] = []  # memory that could not be had back; it must never be released


def close_engine(engine: Handle, timeout: float | str | None, *, exiting: bool = False) -> None:
    """Engine.close(); without a timeout, transfers under way end at limits of their own."""
    _native.check_process()
    limit_ms = _native.milliseconds(timeout)
    if not engine._closing.acquire(blocking=not loop.in_a_close()):
        return  # a callback or a finalizer, which the close under way may be waiting for
    try:
        if engine._closed:  # by another thread, or by this one: a signal handler has interrupted its close()
            return
        hurry = threading.Event()
        buffers: list[object] = []
        steps = partial(_close, engine, limit_ms, hurry, exiting, buffers)
        try:
            if exiting or _interrupts(engine):
                steps()
            else:
                _native.call_to_end(steps, hurry.set)
        finally:
            buffers.clear()  # here: a finalizer of the program may take a lock under which it closes the engine
    finally:
        engine._closing.release()


def _interrupts(engine: Handle) -> bool:
    """Whether the caller, a signal handler or a finalizer, has interrupted the holder of a lock that the close takes.
    Then no other thread can close. The steps take those of tent's thread, and hand log records to `logging`."""
    tail: Any = engine._tail._lock
    return engine._hub.held_here() or tail._is_owned()


def _close(engine: Handle, limit_ms: int, hurry: threading.Event, exiting: bool, buffers: list[object]) -> None:
    """Takes every step, then raises the first error. `hurry` ends the wait for transfers under way; the program's
    buffers come into `buffers` when nothing moves their bytes any more."""
    try:
        _open.remove(engine)  # one step for the interpreter: so one close goes on where a handler interrupts another
    except KeyError:
        return
    engine._closed = True
    library = engine._library
    over = time.monotonic() + (EXIT_SECONDS if exiting else limit_ms / 1000)
    failure: BaseException | None = None
    for step in (
        partial(_refuse, engine),
        partial(_wait_all, engine, limit_ms, hurry),
        partial(_cancel_all, engine, EXIT_SECONDS if exiting else _END_SECONDS),
        partial(_settle_all, engine),
        engine._hub.close,
        partial(_cut_off, engine),
        partial(_finish, engine, library, over, buffers),
        partial(_wake_streams, engine),
    ):
        try:
            step()
        except BaseException as error:
            failure = failure or error
    if failure is not None:
        raise failure


def _cut_off(engine: Handle) -> None:
    """From now on every call finds the engine closed."""
    engine._library = _native.CLOSED
    engine._states.release()
    engine._words.release()


def _wake_streams(engine: Handle) -> None:
    for stream in list(engine._streams):
        stream._wake_all()


def _finish(engine: Handle, library: Library, over: float, buffers: list[object]) -> None:
    """The last call into Go, and the end of the buffers that it gives back, which come into `buffers`."""
    bound_ms = max(0, min(_native.left_ms(over), int(1000 * _END_SECONDS)))
    held = json.loads(_native.call(library.pybind_Close, engine._id, bound_ms, True)).get("held") or []
    memories = list(engine._memories.values())
    engine._memories.clear()
    if held:
        _held.append(memories)
        loop.logger.error(
            "engine %s is closed, but not everything came back: %s", engine.name, "; ".join(map(str, held))
        )
    else:
        for memory in memories:
            buffers.append(memory.owner)
            memory.let_go()
    engine._tail.close()


def _refuse(engine: Handle) -> None:
    """Go takes no transfer any more, also not from a thread that has found the engine open."""
    _native.call(engine._library.pybind_Refuse, engine._id)


def _wait_all(engine: Handle, limit_ms: int, hurry: threading.Event | None = None) -> None:
    """Waits until nothing is under way, the time is over, or somebody is in a hurry."""
    over = time.monotonic() + limit_ms / 1000
    while ids := array("Q", engine._under_way()):
        left_ms = _native.left_ms(over)
        if left_ms <= 0 or (hurry is not None and hurry.is_set()):
            return
        address, n = ids.buffer_info()
        try:
            engine._library.pybind_WaitMany(engine._id, address, n, n, min(left_ms, _native.WAIT_SLICE_MS))
        except RuntimeError as error:
            if isinstance(translate(error), LookupError):
                continue  # one of them was freed meanwhile: look again
            raise translate(error) from None


def _cancel_all(engine: Handle, seconds: float) -> None:
    """Cancels what is still under way, and waits for its end."""
    for batch in engine._under_way():
        try:
            _native.call(engine._library.pybind_Cancel, engine._id, batch, -1)
        except TentError:
            pass  # it has ended meanwhile
    _wait_all(engine, int(1000 * seconds))


def _settle_all(engine: Handle) -> None:
    """Settles every Transfer, and keeps the ends of batches from which another thread has still to make one."""
    known = set(engine._spent)
    while engine._live:
        batch, reference = engine._live.popitem()
        known.add(batch)
        transfer = reference()
        if transfer is not None:
            try:
                transfer._settle()
            except TentError:
                pass  # another thread is dropping it, and has given its batch back
    for batch in engine._ended():
        if batch not in known:
            try:
                engine._ends[batch] = end_of(engine, batch)
            except TentError:
                pass  # freed meanwhile
    engine._live.clear()


def abandon(engine: Handle, library: Library, id: int) -> None:
    """Ends an engine in Go, the Python side of which could not be made."""
    engine._closed = True
    if (hub := getattr(engine, "_hub", None)) is not None:
        hub.close()
    for view in (getattr(engine, name, None) for name in ("_states", "_words")):
        if view is not None:
            view.release()
    try:
        _native.call(library.pybind_Close, id, int(1000 * EXIT_SECONDS), True)
        _native.call(library.pybind_Forget, id)
    except TentError as error:
        loop.logger.error("an engine that could not begin has not ended: %s", error)


def close_at_exit(engine: Handle) -> None:
    """Remembers an open engine, weakly, for the interpreter's end."""
    if not _open:
        atexit.unregister(_close_all)
        atexit.register(_close_all)  # anew, so that it runs before earlier ones
    _open.add(engine)


def _close_all() -> None:
    if _native.forked():
        return
    for engine in list(_open):
        try:
            close_engine(engine, 0, exiting=True)
        except Exception as error:
            loop.logger.error("closing engine %s at exit: %s", engine.name, error)


def close_in_background(engine: Handle) -> None:
    """Closes an Engine that is being garbage collected: takes over its parts, and closes them on tent's thread."""
    engine._closed = True
    for stream in list(engine._streams):
        stream._dropped()
    hub, library, id, tail = engine._hub, engine._library, engine._id, engine._tail
    views, memories = (engine._states, engine._words), list(engine._memories.values())

    def close() -> None:
        hub.close()
        for view in views:
            view.release()
        try:
            held = json.loads(_native.call(library.pybind_Close, id, int(1000 * EXIT_SECONDS), True)).get("held")
        except TentError as error:
            held = [str(error)]
        if held:
            _held.append(list(memories))
        memories.clear()
        tail.close()

    if not sys.is_finalizing():
        loop.run_soon(close)
