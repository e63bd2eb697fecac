"""Any object with bytes can be registered and moved; one with gaps is refused with its strides and the cure."""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from array import array
from collections.abc import Callable
from multiprocessing import shared_memory
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Pair

import tent
from tent import buffers, indexes
from tent.loop import run_soon
from tent.testing import Memory, PeerProcess, pattern

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    "make",
    [
        lambda: bytearray(pattern(1, 0, 4096)),
        lambda: array("d", pattern(1, 0, 4096)),
        lambda: (ctypes.c_uint32 * 1024).from_buffer(bytearray(pattern(1, 0, 4096))),
        lambda: memoryview(bytearray(pattern(1, 0, 4096))).cast("B", (8, 16, 32)),
        lambda: pattern(1, 0, 4096),
        lambda: mapped(pattern(1, 0, 4096)),
    ],
    ids=["bytearray", "array", "ctypes", "three dimensions", "bytes", "mmap"],
)
def test_the_buffer_protocol(pair: Callable[..., Pair], keep: Any, make: Callable[[], Any]) -> None:
    both = pair(4096)
    region = keep(both.near.register(make()))
    assert region.size == 4096
    assert bytes(region.view) == pattern(1, 0, 4096)
    both.near.write(region, both.remote).result(10)
    both.theirs.expect(0, pattern(1, 0, 4096))
    both.check()


def mapped(data: bytes) -> mmap.mmap:
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    return memory


def test_address_and_size(pair: Callable[..., Pair], keep: Any) -> None:
    both = pair(4096)
    memory = Memory(4096, 5)
    region = keep(both.near.register((buffers.address_of(memory.view), 4096)))
    both.near.read(region[1:11], both.remote[0:10]).result(10)
    memory.expect(1, both.theirs.expected[0:10])
    memory.check()
    both.check()


class Interface:
    """An object with one of the interfaces, over a bytearray."""

    def __init__(self, name: str, data: bytearray, **changes: Any) -> None:
        self.data = data
        address = ctypes.addressof(ctypes.c_char.from_buffer(data))
        value = {"shape": (len(data) // 4,), "typestr": "<f4", "data": (address, False), "version": 3} | changes
        setattr(self, name, value)


def test_array_interfaces() -> None:
    data = bytearray(64)
    found = buffers.describe(Interface("__array_interface__", data))
    assert (found.size, found.read_only, found.location) == (64, False, "*")
    found = buffers.describe(Interface("__cuda_array_interface__", data, strides=None))
    assert (found.size, found.location) == (64, "cuda")  # the interface has no ordinal: a platform finds it
    with pytest.raises(tent.InvalidArgumentError, match=r"strides \(8,\)") as caught:
        buffers.describe(Interface("__array_interface__", data, strides=(8,)))
    assert "ascontiguousarray" in str(caught.value)
    fortran = Interface("__array_interface__", data, shape=(4, 4), strides=(4, 16))
    assert buffers.describe(fortran).size == 64  # its bytes have no gap


def test_data_ptr_and_nbytes() -> None:
    class Foreign:
        nbytes = 32

        def data_ptr(self) -> int:
            return 4096

    assert buffers.describe(Foreign())[:2] == (4096, 32)


def test_strides_that_leave_gaps_are_found() -> None:
    assert buffers.packed((2, 3), (3, 1), 1)
    assert buffers.packed((2, 3), (1, 2), 1)
    assert buffers.packed((1, 3), (99, 1), 1)  # a dimension of one has no stride
    assert buffers.packed((0, 3), (7, 7), 1)
    assert buffers.packed((2, 3, 4), (1, 8, 2), 1)  # axes in any order
    assert not buffers.packed((2, 3), (4, 1), 1)
    assert not buffers.packed((2, 3), (1, 1), 1)
    assert not buffers.packed((3,), (-1,), 1)
    for view in (memoryview(bytearray(8))[::-1], memoryview(bytearray(64)).cast("B", (8, 8))[::2]):
        with pytest.raises(tent.InvalidArgumentError, match="not contiguous"):
            buffers.describe(view)


def test_numpy_arrays(pair: Callable[..., Pair], keep: Any) -> None:
    numpy = pytest.importorskip("numpy")
    both = pair(1 << 16)
    kv = numpy.frombuffer(pattern(9, 0, 1 << 16), numpy.uint8).reshape(16, 4096).copy()
    keep(both.near.register(kv))
    both.near.write(kv[3], both.remote[0:4096]).result(10)  # a row lies inside the region
    both.theirs.expect(0, kv[3].tobytes())
    both.near.write_pages(
        keep(both.near.register(kv)),
        numpy.array([1, 2]),
        both.remote,
        numpy.array([5, 4], numpy.int32),
        page_bytes=4096,
    ).result(10)
    both.theirs.expect(5 * 4096, kv[1].tobytes())
    both.theirs.expect(4 * 4096, kv[2].tobytes())
    both.check()
    for wrong in (kv[:, 1:3], kv[::2], kv.T[::2]):
        with pytest.raises(tent.InvalidArgumentError, match="not contiguous"):
            both.near.register(wrong)
    assert numpy.asarray(both.local).nbytes == 1 << 16
    frozen = kv.copy()
    frozen.flags.writeable = False
    assert buffers.describe(frozen).read_only
    assert buffers.describe(numpy.asfortranarray(kv)).size == kv.nbytes
    assert buffers.describe(numpy.zeros(3, "M8[s]")).size == 24  # has no buffer protocol


def test_numpy_dlpack() -> None:
    numpy = pytest.importorskip("numpy")

    class OnlyDLPack:
        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack__(self, **keywords: Any) -> Any:
            return self.array.__dlpack__(**keywords)

    values = numpy.arange(12, dtype=numpy.int16).reshape(3, 4)
    found = buffers.describe(OnlyDLPack(values))
    assert (found.address, found.size, found.location) == (values.ctypes.data, 24, "*")
    with pytest.raises(tent.InvalidArgumentError, match="not contiguous"):
        buffers.describe(OnlyDLPack(values[:, ::2]))


def test_torch_tensors(pair: Callable[..., Pair], keep: Any) -> None:
    torch = pytest.importorskip("torch")
    both = pair(4096)
    tensor = torch.arange(1024, dtype=torch.int32)
    region = keep(both.near.register(tensor))
    both.near.write(region, both.remote).result(10)
    both.theirs.expect(0, tensor.numpy().tobytes())
    both.near.write_pages(region, torch.tensor([1]), both.remote, torch.tensor([0]), page_bytes=64).result(10)
    both.theirs.expect(0, tensor.numpy().tobytes()[64:128])
    both.check()
    with pytest.raises(tent.InvalidArgumentError, match="contiguous"):
        both.near.register(tensor.reshape(32, 32).t()[:, ::2])


def test_views_and_arrays_keep_allocated_memory(engines: Callable[..., tent.Engine]) -> None:
    engine = engines()
    region = engine.allocate(1 << 20)
    region.view[:5] = b"alive"
    view = region.view
    region.close()
    engine.close()
    del region
    assert bytes(view[:5]) == b"alive"  # mapped for as long as somebody looks
    view[-1] = 1
    assert view.nbytes == 1 << 20


@pytest.mark.parametrize("code", "bBhHiIlLqQ")
def test_every_integer_buffer_is_an_index(code: str) -> None:
    values = array(code, [3, 1, 2])
    for index in (indexes.describe(values, "src"), indexes.describe(memoryview(values), "src")):
        assert index.n == 3 and index.code & 15 == values.itemsize == index.stride
        assert bool(index.code & indexes.UNSIGNED) == code.isupper()
    strided = indexes.describe(memoryview(array(code, range(6)))[::-2], "src")
    assert (strided.n, strided.stride) == (3, -2 * values.itemsize)


def test_strided_indexes_move_the_right_pages(pair: Callable[..., Pair]) -> None:
    both = pair(4096)
    table = memoryview(array("i", [30, 9, 31, 8, 32, 7]))[::-2]  # 7, 8, 9
    rows = memoryview(array("q", [9, 1, 8, 2, 7, 3]))[1::2]  # 1, 2, 3
    both.near.write_pages(both.local, table, both.remote, rows, page_bytes=64).result(10)
    for page, row in ((7, 1), (8, 2), (9, 3)):
        both.theirs.expect(64 * row, both.mine.expected[64 * page : 64 * page + 64])
    both.check()


def test_nothing_heavy_was_imported_for_it() -> None:
    assert "jax" not in sys.modules  # tent looks in sys.modules; it imports none of them


def bytes_that_grow() -> tuple[Any, Callable[[], object]]:
    own = bytearray(4096)
    return own, lambda: own.extend(b"x")


def a_mapping() -> tuple[Any, Callable[[], object]]:
    own = mmap.mmap(-1, 4096)
    return own, own.close


def memory_of_processes() -> tuple[Any, Callable[[], object]]:
    own = shared_memory.SharedMemory(create=True, size=4096)
    own.unlink()
    return own.buf, own.close


@pytest.mark.parametrize("make", [bytes_that_grow, a_mapping, memory_of_processes])
@pytest.mark.parametrize("end", ["region", "engine"])
def test_a_closed_region_gives_the_buffer_back(
    engines: Callable[..., tent.Engine], make: Callable[[], tuple[Any, Callable[[], object]]], end: str
) -> None:
    engine = engines()
    buffer, change = make()
    region = engine.register(buffer)
    lease = region.share(region[0:64])
    del buffer
    with pytest.raises(BufferError):
        change()
    views = [region.view, lease.view]
    views[0][0] = 7
    region.close() if end == "region" else engine.close()
    while views:  # each of them holds the buffer by itself
        with pytest.raises(BufferError):
            change()
        assert views[-1][0] == 7
        views.pop()
    for ended in (region, lease):
        with pytest.raises(tent.InvalidArgumentError, match="no view"):
            assert ended.view
    change()
    lease.close()


def test_an_array_over_a_region_holds_the_buffer(engines: Callable[..., tent.Engine]) -> None:
    numpy = pytest.importorskip("numpy")
    buffer, close = a_mapping()
    with engines().register(buffer) as region:
        array_of_it = numpy.asarray(region)
        array_of_it[5] = 9
    assert buffer[5] == 9
    with pytest.raises(BufferError):
        close()
    with pytest.raises(AttributeError, match="program's again"):
        assert region.__array_interface__
    assert array_of_it[5] == 9
    del array_of_it
    close()


def test_the_data_of_an_interface_may_be_a_buffer() -> None:
    for own in (bytearray(64), bytes(64)):
        interface = {"shape": (16,), "typestr": "<f4", "data": own, "version": 3}
        found = buffers.describe(SimpleNamespace(__array_interface__=interface))
        assert (found.address, found.size) == (buffers.address_of(memoryview(own)), 64)
        assert found.read_only == isinstance(own, bytes)
        interface |= {"shape": (8,), "offset": 32}
        assert buffers.describe(SimpleNamespace(__array_interface__=interface)).address == found.address + 32


class Wrong:
    """An object that speaks a protocol, and says something else than that wants."""

    def __init__(self, **said: Any) -> None:
        for name, value in said.items():
            setattr(self, name, value)


def refuse(**_: object) -> None:
    raise BufferError("memory of another device")


@pytest.mark.parametrize(
    "wrong",
    [
        Wrong(__dlpack__=refuse),
        Wrong(__dlpack__=lambda **_: 7),
        Wrong(__array_interface__=5),
        Wrong(__array_interface__={"shape": (4,), "typestr": "|u1"}),
        Wrong(__array_interface__={"shape": (4,), "typestr": "|u1", "data": None}),
        Wrong(__array_interface__={"shape": (4,), "typestr": "|u1", "data": ("x", False)}),
        Wrong(__cuda_array_interface__={"shape": 4, "typestr": "|u1", "data": (4096, False)}),
        Wrong(data_ptr=lambda: "x", nbytes=5),
        Wrong(data_ptr=lambda: 1, nbytes="5"),
    ],
    ids=lambda wrong: ",".join(vars(wrong)),
)
def test_an_object_that_says_wrongly_where_its_bytes_are_is_named(wrong: Wrong) -> None:
    with pytest.raises(tent.InvalidArgumentError, match="'Wrong' object does not say where its bytes are"):
        buffers.describe(wrong)


def test_a_transfer_holds_the_buffer_of_a_region_that_is_closed(
    peers: Callable[..., PeerProcess], engine: tent.Engine
) -> None:
    """The block of a region may end while its transfer is under way; the buffer must not be freed or move."""
    there = peers(size=1 << 20)
    kv = engine.open(there.address)["kv"]
    buffer, ended = bytearray(pattern(3, 0, 1 << 20)), threading.Event()
    there.stop()
    with engine.register(buffer) as region:
        transfer = engine.write(region, kv)
        transfer.add_done_callback(lambda _: ended.set())
    assert not transfer.done()
    with pytest.raises(BufferError):
        buffer.append(1)
    with pytest.raises(tent.InvalidArgumentError, match="no view"):
        assert region.view
    there.resume()
    assert ended.wait(30) and transfer.result() == 1 << 20
    handed_out = threading.Event()
    run_soon(handed_out.set)  # behind all that watched the transfer
    assert handed_out.wait(30)
    buffer.append(1)
