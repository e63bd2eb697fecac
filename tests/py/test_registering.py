"""Registering memory beside other threads and signals: no region outlives its record or its buffer."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tent
from tent import buffers
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
