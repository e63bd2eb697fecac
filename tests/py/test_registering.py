"""Registering memory beside other threads and signals: no region outlives its record or its buffer."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tent
from tent import _native, buffers
from tent.testing import Memory

pytestmark = pytest.mark.interpreter


class Buffer(bytearray):
    """A buffer that tells its end."""


class Interruption:
    """Raises KeyboardInterrupt behind the nth call of a C function, where a signal handler may raise."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        if event == "c_return" and frame.f_code.co_filename.startswith(tent.__path__[0]):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


def interrupted(call: Callable[[], Any], n: int) -> Any:
    """The result of a call, or None where KeyboardInterrupt came behind its nth step."""
    sys.setprofile(Interruption(n))
    try:
        return call()
    except KeyboardInterrupt:
        return None
    finally:
        sys.setprofile(None)


def regions(engine: tent.Engine) -> int:
    return int(engine.metrics()["tent_regions"])


def test_an_interrupted_register_leaves_no_region_without_its_buffer(engine: tent.Engine) -> None:
    before = regions(engine)
    for n in range(1, 10_000):
        buffer = Buffer(4096)
        gone = weakref.ref(buffer)
        region = interrupted(lambda buffer=buffer: engine.register(buffer, name="kv"), n)
        if region is not None:
            break
        del buffer
        gc.collect()
        kept = gone() is not None
        assert regions(engine) == before or kept, f"interrupted at step {n}"
        assert "kv" not in engine.open(engine.address), f"interrupted at step {n}"
    region.close()
    assert n > 5


def test_an_interrupted_register_of_an_address_has_a_record_for_each_region() -> None:
    memory = Memory(4096, 5)
    with tent.TransferEngine() as te:
        before = regions(te.engine)
        key = buffers.address_of(memory.view), memory.size
        for n in range(1, 10_000):
            if interrupted(lambda: te.register_local_memory(*key) or True, n):
                break
            if regions(te.engine) > before:
                te.unregister_local_memory(*key)
            assert regions(te.engine) == before, f"interrupted at step {n}"
        te.unregister_local_memory(*key)
        assert n > 5


class Late:
    """The answers of one C function come when the main thread has been interrupted in its wait for them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.answers: list[Any] = []
        self._function = function
        self._caught = threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        self.answers.append(self._function(*arguments))
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        assert self._caught.wait(timeout=30)
        return self.answers[-1]

    def interrupts(self, call: Callable[[], Any]) -> None:
        """Makes a call, and waits until nothing of it is left."""
        old = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                call()
        finally:
            signal.signal(signal.SIGINT, old)
            self._caught.set()
        calls_end()


class Patched:
    """The native module with another function."""

    def __init__(self, library: Any, **functions: Any) -> None:
        self._library = library
        vars(self).update(functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)


def calls_end() -> None:
    for thread in threading.enumerate():
        if thread.name == "tent-call":
            thread.join(timeout=30)


def allocated(engine: tent.Engine) -> tuple[int, int]:
    gc.collect()
    return regions(engine), engine._tail._memories


def test_an_interrupted_allocate_leaves_neither_a_region_nor_memory(engine: tent.Engine) -> None:
    before = allocated(engine)
    for n in range(1, 10_000):
        region = interrupted(lambda: engine.allocate(4096, name="kv"), n)
        if region is not None:
            break
        calls_end()
        assert allocated(engine) == before, f"interrupted at step {n}"
    region.close()
    assert n > 3


def test_memory_that_comes_behind_an_interruption_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with tent.TransferEngine() as te:
        for allocate in (
            lambda: te.engine.allocate(4096, name="kv", prefault=True),
            lambda: te.allocate_local_memory(4096),
        ):
            before = allocated(te.engine)
            late = Late(te.engine._library.pybind_Allocate)
            with monkeypatch.context() as patch:
                patch.setattr(te.engine, "_library", Patched(te.engine._library, pybind_Allocate=late))
                late.interrupts(allocate)
            assert len(late.answers) == 1 and allocated(te.engine) == before
        te.engine.allocate(4096, name="kv").close()


def test_an_engine_that_begins_behind_an_interruption_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = _native.load()
    late = Late(library.pybind_Open)
    with monkeypatch.context() as patch:
        patch.setattr(_native, "_library", Patched(library, pybind_Open=late))
        late.interrupts(tent.Engine)
    with pytest.raises(RuntimeError):
        library.pybind_Info(*late.answers)


@pytest.mark.parametrize("size", [0, 4096])
def test_a_range_that_threads_register_at_once_is_one_region(size: int) -> None:
    memory = Memory(4096, 5)
    key = buffers.address_of(memory.view), memory.size
    with tent.TransferEngine() as te:
        before = regions(te.engine)
        for _ in range(50):
            together = threading.Barrier(4)

            def register(together: threading.Barrier = together) -> None:
                together.wait()
                te.register_local_memory(*key)

            threads = [threading.Thread(target=register) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert regions(te.engine) == before + 1
            te.unregister_local_memory(key[0], size)
            assert regions(te.engine) == before
            with pytest.raises(tent.AddressNotRegisteredError):
                te.unregister_local_memory(key[0], size)


def test_a_handler_that_takes_a_range_back_inside_the_same_call_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(4096, 5)
    address = buffers.address_of(memory.view)
    call_long, told = tent.Engine._call_long, []

    def interrupted(engine: tent.Engine, *arguments: Any) -> Any:
        for _ in range(2):
            with pytest.raises(tent.InvalidArgumentError, match="this thread registers or ends the memory") as error:
                te.unregister_local_memory(address)
            told.append(error)
        return call_long(engine, *arguments)

    with tent.TransferEngine() as te:
        te.register_local_memory(address, memory.size)
        before = regions(te.engine)
        with monkeypatch.context() as patch:
            patch.setattr(tent.Engine, "_call_long", interrupted)
            te.unregister_local_memory(address)
        assert len(told) == 2 and regions(te.engine) == before - 1


def test_a_list_with_a_range_that_is_unknown_unregisters_none() -> None:
    memories = [Memory(4096, seed) for seed in range(3)]
    known, second, unknown = (buffers.address_of(memory.view) for memory in memories)
    with tent.TransferEngine() as te:
        te.register_local_memory_batch([known, second], [4096, 4096])
        before = regions(te.engine)
        for addresses, sizes in (
            ([known, unknown], [4096, 4096]),
            ([known, second], [4096, 8]),
            ([known, unknown, second], []),
            ([known, known], []),
        ):
            with pytest.raises(tent.AddressNotRegisteredError):
                te.unregister_local_memory_batch(addresses, sizes)
            assert regions(te.engine) == before
        te.unregister_local_memory_batch([second, known], [0, 4096])
        assert regions(te.engine) == before - 2


def mapped(address: int) -> bool:
    """Whether this process has pages at an address."""
    ranges = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(first, 16) <= address < int(end, 16) for first, end in ranges)


def test_allocated_memory_can_be_freed_behind_close() -> None:
    with tent.TransferEngine() as te:
        address = te.allocate_local_memory(1 << 20)
        guard = te.allocate_memory_guard(1 << 20)
    assert mapped(address), "it is the program's"
    te.free_local_memory(address)
    guard.release()
    assert not mapped(address)
    with pytest.raises(tent.AddressNotRegisteredError):
        te.free_local_memory(address)


def test_a_callback_frees_memory_while_the_engine_closes() -> None:
    with tent.Engine() as peer, peer.allocate(4096, name="kv"):
        te = tent.TransferEngine(allow_faults=True, faults="op=WRITE blackhole")
        own, other = te.allocate_local_memory(1 << 20), te.allocate_local_memory(1 << 20)
        transfer = te.engine.write((own, 64), te.engine.open(peer.address)["kv"][0:64])
        failures: list[BaseException | None] = []

        def free(_: object) -> None:
            try:
                te.free_local_memory(own)
                failures.append(None)
            except BaseException as error:
                failures.append(error)

        transfer.add_done_callback(free)
        te.engine.close(timeout=0)
    assert failures == [None] and not mapped(own)
    te.free_local_memory(other)
    assert not mapped(other)
