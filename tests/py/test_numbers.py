"""Addresses, sizes, handles and capacities: integers of any library are taken, and nothing else is."""

from __future__ import annotations

import pytest

import tent
from tent import buffers


@pytest.mark.interpreter
def test_a_number_that_is_none_is_refused_before_the_border(engine: tent.Engine) -> None:
    region, own = engine.allocate(4096, name="a"), engine.open("")
    for wrong in (
        lambda: own.memory(1.5, 64),
        lambda: own.memory("a", 64),
        lambda: own.memory(4096, None),
        lambda: own.memory(4096, True),
        lambda: engine.register((True, 4096)),
        lambda: region.remap(0.0),
        lambda: region.remap("8KiB"),
        lambda: region.remap(0, "x"),
        lambda: engine.write(region[0:64], own["a"][64:128], timeout=10**400),
    ):
        with pytest.raises(tent.InvalidArgumentError):
            wrong()
    region.close()
    with tent.TransferEngine() as te:
        for handle in (1 << 63, (1 << 64) - 1, -1, "0"):
            with pytest.raises(tent.InvalidArgumentError, match="handle of a segment"):
                te.close_segment(handle)
        with pytest.raises(tent.InvalidArgumentError, match="permission is 7"):
            te.register_local_memory(4096, 4096, 7)
        for call in (te.allocate_transfer_batch, te.free_transfer_batch, te.unregister_local_memory, tent.RequestArray):
            for number in (True, 1.0, "1", None):
                with pytest.raises(tent.InvalidArgumentError, match=repr(number)):
                    call(number)  # type: ignore[operator]
        for options in (None, {}, "cpu:0"):
            with pytest.raises(tent.InvalidArgumentError, match=r"options is .*: it must be a tent\.MemoryOptions"):
                te.register_local_memory_ex(4096, 4096, options)
            with pytest.raises(tent.InvalidArgumentError, match="options is "):
                te.allocate_local_memory_ex(4096, options)


@pytest.mark.parametrize("kind", ["int64", "uint64", "intp"])
def test_integers_of_numpy_are_integers(kind: str) -> None:
    number = getattr(pytest.importorskip("numpy"), kind)
    memory = bytearray(8192)
    with tent.TransferEngine() as te:
        address = buffers.address_of(memoryview(memory))
        te.register_local_memory(number(address), number(4096))
        batch = te.allocate_transfer_batch(number(1))
        requests = tent.RequestArray(number(1))
        requests.source[0], requests.target_offset[0], requests.length[0] = address, address + 100, 10
        te.submit_transfer(batch, requests)
        assert te.wait(number(batch), timeout=30).bytes == 10
        te.unregister_local_memory(number(address), number(4096))
        with te.engine.register((number(address), number(8192)), name="pair") as region:
            assert (region.address, region.size) == (address, 8192)
            there = te.engine.open("").memory(number(address), number(10))
            assert te.engine.write(region[100:110], there).result(timeout=30) == 10
