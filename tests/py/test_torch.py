"""Tensors of a real torch: moved, viewed, and refused where their bytes are elsewhere.

The stage `torch` of `make test-all` has an environment with torch; elsewhere these tests are skipped.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import apart
import pytest

import tent
from tent import buffers
from tent.testing import pattern
from tent.torch import PagedCache

if TYPE_CHECKING:
    from conftest import Pair

torch = pytest.importorskip("torch")

INVALID = tent.InvalidArgumentError
SIZE = 1 << 16
DTYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.int8,
    torch.uint8,
    torch.int64,
    torch.bool,
    *(getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32") if hasattr(torch, name)),
]


def filled(dtype: Any, seed: int, size: int = SIZE) -> Any:
    """A tensor of `size` bytes in the pattern of a seed."""
    memory = bytearray(pattern(seed, 0, size))
    if dtype is torch.bool:
        memory = bytearray(byte & 1 for byte in memory)
    return torch.frombuffer(memory, dtype=dtype).clone()


def raw(tensor: Any) -> bytes:
    """The bytes of a dense tensor in the order of its memory, by torch alone."""
    flat = torch.as_strided(tensor.detach(), (tensor.numel(),), (1,))
    return bytes(flat.view(torch.uint8).numpy().tobytes())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_moves_both_ways(pair: Callable[..., Pair], seed: int, dtype: Any) -> None:
    both = pair(SIZE)
    source, back = filled(dtype, seed), torch.zeros(SIZE, dtype=torch.uint8).view(dtype)
    with both.near.register(source) as sent, both.near.register(back) as received:
        assert sent.size == received.size == SIZE
        both.near.write(sent, both.remote).result(10)
        both.theirs.expect(0, raw(source))
        both.check()
        both.near.read(received, both.remote).result(10)
    assert raw(back) == raw(source)


def test_views_without_gaps_move_as_they_lie(pair: Callable[..., Pair], seed: int) -> None:
    both = pair(SIZE)
    dense = filled(torch.float16, seed).reshape(4, 8, 16, 64)
    views = {
        "transposed": dense.reshape(128, 256).t(),
        "rows": dense[1:3],
        "one row": dense[2, 3],
        "permuted": dense.permute(2, 0, 3, 1),
        "channels last": dense.reshape(4, 8, 32, 32).to(memory_format=torch.channels_last),
        "a dimension of one": dense[:, :, :, None].transpose(0, 3)[0],
        "a number": dense[0, 0, 0, 0],
    }
    for view in views.values():
        with both.near.register(view) as region:
            assert (region.address, region.size) == (view.data_ptr(), view.numel() * 2)
            both.near.write(region, both.remote[0 : region.size]).result(10)
            both.theirs.expect(0, raw(view))
            both.check()


def test_tensors_whose_bytes_are_elsewhere_or_other_ones_are_refused(engine: tent.Engine) -> None:
    square = torch.ones(8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch: some of these are in beta
        from torch._subclasses import FakeTensorMode

        wrong = {
            "every second column": (square[:, ::2], "not contiguous.*contiguous"),
            "expanded": (torch.ones(1).expand(64), "not contiguous"),
            "overlapping": (torch.as_strided(square, (8, 8), (4, 1)), "not contiguous"),
            "meta": (torch.empty(64, device="meta"), "device meta.*no storage.*empty_like"),
            "meta storage": (torch.empty(64, device="meta").untyped_storage(), "no storage"),
            "empty": (torch.empty(0), "empty"),
            "sparse": (square.to_sparse(), "layout torch.sparse_coo"),
            "rows of a sparse one": (square.to_sparse_csr(), "layout torch.sparse_csr"),
            "nested": (torch.nested.nested_tensor([torch.ones(3), torch.ones(4)]), "nested"),
            "conjugate": (torch.ones(8, dtype=torch.complex64).conj(), "lazy view.*resolve_conj"),
            "negative": (torch._neg_view(torch.ones(8)), "lazy view.*resolve_neg"),
            "fake": (FakeTensorMode().from_tensor(square), "FakeTensor has a shape and no storage"),
        }
        freed = torch.ones(8)
        freed.untyped_storage().resize_(0)
        wrong["freed storage"] = (freed, "no storage")
        for name, (tensor, words) in wrong.items():
            with pytest.raises(INVALID, match=words):
                engine.register(tensor)
                pytest.fail(name)
        seen: list[str] = []

        def mapped(row: Any) -> Any:
            with pytest.raises(INVALID, match="no storage") as caught:
                buffers.describe(row)
            seen.append(str(caught.value))
            return row

        torch.vmap(mapped)(square)
        assert len(seen) == 1


def test_resolved_tensors_and_storages_are_taken(engine: tent.Engine) -> None:
    values = torch.ones(8, dtype=torch.complex64) * 1j
    resolved = values.conj().resolve_conj()
    with engine.register(resolved) as region:
        assert bytes(region.view) == raw(resolved) != raw(values)
    storage = torch.arange(64, dtype=torch.uint8).untyped_storage()
    with engine.register(storage) as region:
        assert bytes(region.view) == bytes(range(64))


def test_tensors_with_gradients_and_of_modules_are_taken(pair: Callable[..., Pair], seed: int) -> None:
    both = pair(SIZE)
    layer = torch.nn.Linear(64, 64, bias=False)
    with torch.inference_mode():
        inferred = torch.ones(64, 64)
    for tensor in (layer.weight, torch.ones(64, 64, requires_grad=True), inferred, torch.ones(64, 64).share_memory_()):
        before = tensor.requires_grad
        with both.near.register(tensor) as region:
            both.near.write(region, both.remote[0 : region.size]).result(10)
            both.theirs.expect(0, raw(tensor))
            both.check()
            both.theirs.view[: region.size] = filled(torch.float32, seed, region.size).numpy().tobytes()
            both.theirs.expect(0, both.theirs.view[: region.size])
            both.near.read(region, both.remote[0 : region.size]).result(10)
        assert raw(tensor) == raw(filled(torch.float32, seed, 64 * 64 * 4)) and tensor.requires_grad is before
    layer(torch.ones(64)).sum().backward()  # the weights that were read are used, and their graph is whole


def test_a_region_keeps_its_tensor_and_gives_it_back(engine: tent.Engine) -> None:
    tensor = torch.ones(SIZE, dtype=torch.uint8)
    gone = weakref.ref(tensor)
    region = engine.register(tensor)
    del tensor
    gc.collect()
    assert gone() is not None and bytes(region.view) == b"\1" * SIZE
    region.close()
    del region
    gc.collect()
    assert gone() is None


def test_a_loose_tensor_is_found_in_its_region(pair: Callable[..., Pair], seed: int) -> None:
    both = pair(SIZE)
    cache = filled(torch.bfloat16, seed).reshape(8, -1)
    with both.near.register(cache):
        row = cache[3]
        both.near.write(row, both.remote[0 : row.nbytes]).result(10)
        both.theirs.expect(0, raw(row))
        src, dst = torch.arange(4), torch.tensor([3, 1, 0, 2], dtype=torch.int32)
        grid = both.near.register(filled(torch.uint8, seed + 1))
        with grid:
            both.near.write_pages(grid, src, both.remote, dst, page_bytes=8192).result(10)
            for i, j in zip(src.tolist(), dst.tolist(), strict=True):
                both.theirs.expect(j * 8192, bytes(grid.view[i * 8192 : (i + 1) * 8192]))
            both.check()
    with pytest.raises(tent.AddressNotRegisteredError):
        both.near.write(torch.ones(8), both.remote[0:32])


def test_a_region_is_a_tensor_of_any_dtype_and_shape(engine: tent.Engine, seed: int) -> None:
    with engine.allocate(SIZE, name="kv") as region:
        region.view[:] = pattern(seed, 0, SIZE)
        for dtype in DTYPES:
            if dtype is not torch.bool:
                tensor = region.tensor(dtype, (2, 16, -1))
                assert tensor.dtype is dtype and tensor.shape[:2] == (2, 16) and raw(tensor) == bytes(region.view)
        assert region.tensor("bfloat16").data_ptr() == region.address
        region.tensor("float16", (-1, 128))[0] = 1.5
        assert bytes(region.view[:2]) == b"\x00\x3e"
        for wrong, words in (("zeros", "no dtype 'zeros'"), ("half16", "no dtype 'half16'")):
            with pytest.raises(INVALID, match=words):
                region.tensor(wrong)
        with pytest.raises(INVALID, match=r"as 16384 elements of torch\.float32"):
            region.tensor("float32", (3, -1))


def test_dlpack_shares_the_bytes(engine: tent.Engine) -> None:
    with engine.allocate(SIZE) as region:
        tensor = torch.from_dlpack(region)
        assert (tensor.data_ptr(), tensor.dtype, tensor.numel()) == (region.address, torch.uint8, SIZE)
        tensor[7] = 99
        numpy = pytest.importorskip("numpy")
        array = numpy.from_dlpack(region)
        assert array[7] == region.view[7] == 99
        for shared in (torch.asarray(region), torch.as_tensor(region), torch.from_numpy(array)):
            assert shared.data_ptr() == region.address
        assert torch.from_dlpack(tensor.numpy()).data_ptr() == buffers.describe(tensor.numpy()).address


def test_tensors_outlive_their_region(engine: tent.Engine) -> None:
    region = engine.allocate(SIZE)
    tensors = [region.tensor("float32"), torch.from_dlpack(region)]
    region.close()
    engine.close()
    del region
    gc.collect()
    tensors[0][:] = 2.0
    assert (tensors[1].view(torch.float32) == 2.0).all()


def test_read_only_bytes_become_no_writable_tensor(engine: tent.Engine) -> None:
    with engine.register(b"constant" * 8) as region:
        with pytest.raises(INVALID, match="read-only, and torch has no read-only tensors"):
            region.tensor()
        assert not region.array().flags.writeable


def test_dlpack_without_numpy() -> None:
    """Torch alone gets its tensor from torch, and read-only bytes from nobody."""
    program = """if True:
        import sys
        sys.modules["numpy"] = None
        import warnings
        warnings.simplefilter("ignore")  # torch says that NumPy is missing
        import torch
        import tent
        del sys.modules["numpy"]
        with tent.Engine() as engine, engine.allocate(64) as region, engine.register(b"constant") as fixed:
            assert torch.from_dlpack(region).data_ptr() == region.address
            try:
                torch.from_dlpack(fixed)
            except BufferError as error:
                print(error)
    """
    done = apart.run(program, timeout=90)
    assert "no read-only tensors" in done.stdout, done.stderr


@pytest.mark.parametrize("dim", [0, 1])
def test_a_paged_cache_moves_pages_of_real_tensors(engines: Callable[..., tent.Engine], seed: int, dim: int) -> None:
    shape, larger = [2, 2, 4, 16], [2, 2, 4, 16]
    shape[dim], larger[dim] = 9, 12
    near, far = engines(name="near"), engines(name="far")
    ours = [filled(torch.bfloat16, seed + i, 2 * 9 * 2 * 64).reshape(shape) for i in range(3)]
    theirs = [filled(torch.bfloat16, seed + 10 + i, 2 * 12 * 2 * 64).reshape(larger) for i in range(3)]
    want = [t.clone() for t in theirs]
    src, dst = torch.randperm(9)[:5], torch.randperm(12)[:5]
    for t, o in zip(want, ours):
        t.index_copy_(dim, dst, o.index_select(dim, src))
    with PagedCache(near, ours, dim=dim) as cache, PagedCache(far, theirs, dim=dim, name="kv"):
        with near.open(far.address) as peer:
            near.write_pages(cache.grid, src, cache.at(peer, "kv"), dst).result(10)
    assert [raw(t) for t in theirs] == [raw(w) for w in want]
