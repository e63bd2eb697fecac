"""Forks at the worst moment: while other threads hold each lock, load the engine or import a module, in a handler of a
signal and in a callback. In the child each call raises ForkError at once: the other threads are not there."""

from __future__ import annotations

import ast
import asyncio
import faulthandler
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import apart
import pytest
from conftest import Pair

import tent
from tent import _native, loop

pytestmark = pytest.mark.interpreter

PACKAGE = Path(tent.__file__).parent
LIMIT = 20  # seconds, after which a child that stands still is killed

# Makers of locks that no call of a child takes, each with its reason.
OTHERS = {
    "_native.py: _lock = threading.Lock()": "_after_fork makes another one",
    "_native.py: self._lock = threading.Lock()": "of one call, with waits of slices",
    "_native.py: turn = threading.Lock()": "of one call, and never waited for",
    "loop.py: self.lock = threading.RLock()": "cut_off makes another one",
    "loop.py: _guard = threading.RLock()": "_forget makes another one",
    "loop.py: _Worker._guard = threading.RLock()": "it is that one",
    "loop.py: ran = threading.Event()": "waits for it have a limit",
    "closing.py: hurry = threading.Event()": "nobody waits for it",
    "compat/nixl/listener.py: self._room = threading.BoundedSemaphore(_AT_ONCE)": "of the listener's own threads",
    "compat/nixl/listener.py: self._closed = threading.Event()": "of the listener's own threads",
    "command/bench.py: stop = threading.Event()": "of one run, and never waited for",
    "command/pair.py: self._busy = threading.Lock()": "`tent serve` does not fork",
    "integrations/sglang_stand.py: _swapping = threading.Lock()": "held while others' modules are imported",
    "integrations/vllm_stand.py: _swapping = threading.Lock()": "held while others' modules are imported",
}


def forked(child: Callable[[], object]) -> int:
    """Runs a function in a forked child, and returns its number. The child ends with 0 if that returns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are threads is the point
        pid = os.fork()
    if pid == 0:  # nothing but os._exit may leave this block
        try:
            mortal()
            child()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
        finally:
            os._exit(1)
    return pid


def mortal() -> None:
    """Ends this child, with a traceback, when it stands still."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.register(signal.SIGALRM, 2, all_threads=False, chain=True)
    signal.alarm(LIMIT)


def well(pid: int) -> bool:
    """Whether a child has ended well."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def refused(call: Callable[[], object]) -> None:
    """A call that raises ForkError, or that error of another engine's interface which stands for it."""
    try:
        call()
    except BaseException as error:
        if not isinstance(error, tent.ForkError) and not isinstance(error.__cause__, tent.ForkError):
            raise AssertionError(f"{call} raises {error!r}") from error
    else:
        raise AssertionError(f"{call} returns")


@contextmanager
def held(locks: list[Any]) -> Iterator[None]:
    """Another thread has all of these locks."""
    has, ends = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            has.set()
            ends.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert has.wait(60)
    try:
        yield
    finally:
        ends.set()
        thread.join()


def calls(both: Pair, te: tent.TransferEngine, address: int) -> list[Callable[[], object]]:
    """Calls of every kind of object."""
    near, transfer, notes = both.near, both.near.write(both.local, both.remote), both.near.notifications
    grid, batch, events = near.pages([both.local], 4096), near.batch(), near.events()
    return [
        tent.Engine, near.close, near.metrics, near.batch, near.events, near.export, near.peers, near.topology,
        lambda: near.write(both.local, both.remote), lambda: near.register(bytearray(9)), lambda: near.allocate(9),
        lambda: near.open(both.far.address), lambda: near.notify(both.peer, "n"), lambda: both.local.view,
        lambda: both.local.share(slice(0, 9)), both.local.fence, both.local.close, lambda: both.local.array(),
        lambda: both.peer["other"], both.peer.alive, both.peer.close, both.peer.refresh, notes.drain, notes.get,
        transfer.done, transfer.result, transfer.wait, transfer.cancel, lambda: tent.wait([transfer]),
        lambda: transfer.add_done_callback(print), lambda: transfer.remove_done_callback(print),
        grid.close, lambda: batch.write(both.local, both.remote), batch.submit, events.close, events.drain,
        lambda: te.free_local_memory(address), lambda: te.register_local_memory(address, 4096), te.close,
        lambda: te.unregister_local_memory(address), lambda: te.allocate_transfer_batch(1),
        lambda: asyncio.run(transfer.result_async()), lambda: asyncio.run(notes.get_async()),
        lambda: asyncio.run(near.aclose()), lambda: asyncio.run(both.local.aclose()),
    ]  # fmt: skip


def test_a_child_finds_every_lock_free(pair: Callable[..., Pair]) -> None:
    both, te = pair(1 << 16), tent.TransferEngine()
    listed = calls(both, te, te.allocate_local_memory(4096))
    before = both.near._hub.loops
    hubs = [engine._hub.lock for engine in (both.near, both.far, te.engine)]
    with held([*_native._locks, *hubs, loop._Worker._guard]):

        def child() -> None:
            for call in listed:
                refused(call)
            assert os.fork() or os._exit(0) is None, "a child of the child"
            assert well(-1)

        pid = forked(child)
    assert well(pid)
    assert both.near._hub.loops is before
    both.near.write(both.local, both.remote).result(LIMIT)  # the parent is as before
    both.theirs.expect(0, both.mine.expected)
    te.close()


@pytest.mark.adapters
def test_a_child_finds_every_lock_of_the_stand_ins_free() -> None:
    numpy = pytest.importorskip("numpy")
    from tent.compat.mooncake import TransferEngine
    from tent.compat.nixl import nixl_agent, nixl_agent_config

    memory = numpy.zeros(4096, numpy.uint8)
    agent, peer = nixl_agent("a", nixl_agent_config(enable_listen_thread=True, listen_port=0)), nixl_agent("b")
    mooncake = TransferEngine()
    assert mooncake.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    rows = [(memory.ctypes.data, 4096, 0)]
    listed = agent.register_memory([(*rows[0], "")], "DRAM")
    agent.add_remote_agent(peer.get_agent_metadata())
    local, own = (agent.prep_xfer_dlist(name, rows, "DRAM") for name in ("", "a"))
    handle = agent.make_prepped_xfer("WRITE", local, [0], own, [0], b"note")
    listener = agent._listener
    assert listener is not None
    with held(list(_native._locks)):

        def child() -> None:
            for call in (
                lambda: agent.register_memory([(*rows[0], "")], "DRAM"), lambda: agent.deregister_memory(listed),
                lambda: agent.send_notif("b", b"x"), agent.get_new_notifs, agent.update_notifs,
                lambda: agent.check_remote_xfer_done("b", b"x"), lambda: agent.remove_remote_agent("b"),
                lambda: agent.transfer(handle), agent.get_agent_metadata, agent.close,
                lambda: agent.prep_xfer_dlist("", rows, "DRAM"), mooncake.get_notifies, mooncake.close,
            ):  # fmt: skip
                refused(call)
            assert mooncake.register_memory(memory.ctypes.data, 4096) == -1
            assert mooncake.allocate_managed_buffer(4096) == 0
            assert mooncake.transfer_check_status(1) == -1
            assert mooncake.send_probe("127.0.0.1:1") == -1

        pid = forked(child)
    assert well(pid)
    peer.fetch_remote_metadata("a", "127.0.0.1", listener.port)  # the parent listens
    assert peer.check_remote_metadata("a")
    for one in (agent, peer, mooncake):
        one.close()


def test_every_lock_of_the_package_is_renewed_or_has_its_reason() -> None:
    makers = ("Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier")
    found = set()
    for path in PACKAGE.rglob("*.py"):
        where = str(path.relative_to(PACKAGE))
        if where.startswith(("testing/", "demos/")):  # they start processes, and never fork
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                text = ast.unparse(node.value)
                made = [make for make in makers if f"threading.{make}(" in text]
                if made and not text.startswith("_native.renewed(threading."):
                    found.add(f"{where}: {ast.unparse(node)}")
    assert found == set(OTHERS)


def test_a_signal_handler_may_fork(engines: Callable[..., tent.Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the child, the call that the handler has interrupted raises ForkError too."""
    pids: list[int] = []
    parent, goes_on = os.getpid(), threading.Event()

    def fork(*_: object) -> None:
        if (pid := os.fork()) == 0:
            mortal()
        else:
            pids.append(pid)
            goes_on.set()

    def interrupts() -> None:
        os.kill(parent, signal.SIGUSR1)
        goes_on.wait(LIMIT)

    def interrupted(call: Callable[[], object]) -> None:
        goes_on.clear()
        try:
            call()
        except tent.ForkError:
            os._exit(0)  # in the child
        except TimeoutError:
            pass
        finally:
            if os.getpid() != parent:
                os._exit(1)
        assert well(pids.pop())

    class Interrupting:
        """The library of an engine, with a signal behind the first wait."""

        def __init__(self, library: Any) -> None:
            self._library = library

        def __getattr__(self, name: str) -> Any:
            return getattr(self._library, name)

        def pybind_Wait(self, *arguments: int) -> int:
            state = int(self._library.pybind_Wait(*arguments))
            if not goes_on.is_set():
                os.kill(parent, signal.SIGUSR1)
            return state

    monkeypatch.setattr(warnings, "filters", [])
    old = signal.signal(signal.SIGUSR1, fork)
    settings = {"transports/shm/enable": False, "allow_faults": True}
    engine, far = engines(faults="blackhole silent", **settings), engines(**settings)
    own, offered = engine.allocate(4096), far.allocate(4096, name="kv")
    transfer = engine.write(own, engine.open(far.address)["kv"])
    try:
        interrupted(lambda: _native.call_long(interrupts))
        interrupted(lambda: _native.call_to_end(interrupts, lambda: None))
        engine._library = Interrupting(engine._library)  # type: ignore[assignment]
        interrupted(lambda: transfer.result(timeout=1))
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert transfer.cancel() and offered.size == own.size


def test_a_callback_may_fork(pair: Callable[..., Pair]) -> None:
    """The callbacks behind it are the parent's alone, and so are the signals that wake tent's thread."""
    both = pair(4096)
    out, into = os.pipe()
    pids: list[int] = []

    def forks(_: tent.Transfer) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if (pid := os.fork()) == 0:
                mortal()
            else:
                pids.append(pid)

    ran = threading.Event()
    transfer = both.near.write(both.local, both.remote)
    for callback in (forks, lambda _: os.write(into, b"x"), lambda _: ran.set()):
        transfer.add_done_callback(callback)
    assert ran.wait(LIMIT)
    both.theirs.expect(0, both.mine.expected)
    assert well(pids[0]), "the child of tent's thread ends with its callback"
    os.close(into)
    with os.fdopen(out, "rb") as said:
        assert said.read() == b"x"
    ran.clear()
    both.near.write(both.local, both.remote).add_done_callback(lambda _: ran.set())
    assert ran.wait(LIMIT)


PROGRAM = """
    import asyncio, faulthandler, importlib.machinery, os, signal, sys, threading, warnings
    import tent
    warnings.simplefilter("ignore")
    begun, ends = threading.Event(), threading.Event()

    class Slow:
        def find_spec(self, name, path, target=None):
            if name == sys.argv[1]:
                spec = importlib.machinery.PathFinder.find_spec(name, path)
                self.exec_module, spec.loader.exec_module = spec.loader.exec_module, self.begins
                return spec

        def begins(self, module):
            begun.set()
            ends.wait(60)
            self.exec_module(module)

    if sys.argv[1] == "tent.aio":
        engine = tent.Engine()
        transfer = engine.write(engine.allocate(64), engine.allocate(64))
        call = lambda: asyncio.run(transfer.result_async())
    else:
        call = tent.Engine
    sys.meta_path.insert(0, Slow())
    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(60)
    if (pid := os.fork()) == 0:
        faulthandler.register(signal.SIGALRM, all_threads=False, chain=True)
        signal.alarm(20)
        try:
            call()
        except tent.ForkError:
            os._exit(0)
        os._exit(1)
    status = os.waitpid(pid, 0)[1]
    ends.set()
    thread.join()
    os._exit(os.waitstatus_to_exitcode(status) != 0)
"""


@pytest.mark.parametrize("module", ["tent.aio", "tent._gotent"])
def test_a_child_waits_for_no_import_that_another_thread_had_begun(module: str) -> None:
    apart.passes(PROGRAM, module)
