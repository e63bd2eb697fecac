"""tent.torch.PagedCache, with tensors that are nothing but shape, strides and memory; test_torch.py has real ones."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import tent
import tent.torch
from tent.testing import pattern
from tent.torch import PageLayout, page_layout

INVALID = tent.InvalidArgumentError


class Tensor:
    """A dense tensor of bytes; `order` lists its dimensions from the largest stride to the smallest."""

    def __init__(self, shape: Sequence[int], order: Sequence[int] = (), seed: int | None = None) -> None:
        self.shape = tuple(shape)
        self.nbytes = math.prod(shape)
        self.memory = bytearray(self.nbytes) if seed is None else bytearray(pattern(seed, 0, self.nbytes))
        self.strides = [0] * len(shape)
        step = 1
        for i in reversed(order or range(len(shape))):
            self.strides[i], step = step, step * shape[i]

    def stride(self) -> tuple[int, ...]:
        return tuple(self.strides)

    def element_size(self) -> int:
        return 1

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self.memory)

    def data_ptr(self) -> int:
        import ctypes

        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def page(self, dim: int, i: int) -> list[int]:
        """The places of all elements with index i of a dimension, by the definition of strides."""
        places = [0]
        for d, n in enumerate(self.shape):
            some = [i] if d == dim else range(n)
            places = [at + k * self.strides[d] for at in places for k in some]
        return places


LAYOUTS = {
    "K and V in front": ((2, 9, 4, 16), (), 1),
    "K and V in each page": ((9, 2, 4, 16), (), 0),
    "K and V in front, in memory in each page": ((2, 9, 4, 16), (1, 0, 2, 3), 1),
    "heads before tokens in memory": ((2, 9, 4, 16), (0, 1, 3, 2), 1),
    "layers in one tensor": ((3, 2, 9, 64), (), 2),
    "counted from behind": ((2, 9, 4, 16), (), -3),
    "one page": ((2, 1, 64), (), 1),
    "pages alone": ((9,), (), 0),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_a_page_is_all_bytes_of_its_index(case: str) -> None:
    shape, order, dim = LAYOUTS[case]
    tensor = Tensor(shape, order)
    layout = page_layout(tensor.shape, tensor.stride(), 2, dim)
    assert layout.n_pages == shape[dim]
    spans = page_layout(tensor.shape, tensor.stride(), 1, dim).spans(tensor.nbytes)
    size = layout.page_bytes // 2
    for i in range(layout.n_pages):
        named = sorted(place for start, _ in spans for place in range(start + i * size, start + (i + 1) * size))
        assert named == sorted(tensor.page(dim % len(shape), i)), (i, layout)


@pytest.mark.parametrize("case", [case for case in LAYOUTS if not LAYOUTS[case][1]])
@pytest.mark.parametrize("stride", [1, 7])
def test_a_single_page_is_that_of_more_pages_whatever_its_stride(case: str, stride: int) -> None:
    shape, _, dim = LAYOUTS[case]
    many = page_layout(shape, Tensor(shape).stride(), 2, dim)
    single = [1 if i == dim % len(shape) else n for i, n in enumerate(shape)]
    strides = list(Tensor(tuple(single)).stride())
    for given in (strides[dim], stride):  # torch gives any, and DLPack 1
        strides[dim] = given
        assert page_layout(single, strides, 2, dim) == many._replace(n_pages=1)


def test_tensors_that_have_no_pages_are_refused() -> None:
    for shape, strides, dim, words in [
        ((2, 8, 16), (128, 32, 1), 1, "does not fill its memory.*contiguous"),
        ((8, 16), (8, 1), 0, "does not fill"),
        ((8, 16), (0, 1), 0, "does not fill"),
        ((8,), (1,), 1, "dim=1: the tensor has 1 dimensions"),
        ((8,), (1,), -2, "dim=-2"),
        ((), (), 0, "0 dimensions"),
        ((4, 1, 8), (1, 1, 4), 1, "does not say where its one page lies.*two pages"),
    ]:
        with pytest.raises(INVALID, match=words):
            page_layout(shape, strides, 1, dim)
    with pytest.raises(INVALID, match="no whole number of pages"):
        PageLayout(2, 8, 64).spans(2 * 8 * 64 + 2 * 32)


@pytest.mark.parametrize("case", LAYOUTS)
def test_pages_move_between_caches_of_different_sizes(
    engines: Callable[..., tent.Engine], seed: int, case: str
) -> None:
    shape, order, dim = LAYOUTS[case]
    larger = list(shape)
    larger[dim] += 4
    near, far = engines(name="near"), engines(name="far")
    ours = [Tensor(shape, order, seed + i) for i in range(3)]
    theirs = [Tensor(larger, order, seed + 10 + i) for i in range(3)]
    n = shape[dim]
    src = list(range(n))
    dst = random.Random(seed).sample(range(n + 4), n)
    with (
        tent.torch.PagedCache(near, ours, dim=dim) as cache,
        tent.torch.PagedCache(far, theirs, dim=dim, name="kv") as offered,
        near.open(far.address) as peer,
    ):
        assert (cache.n_pages, offered.n_pages) == (n, n + 4)
        before = [bytes(t.memory) for t in ours + theirs]
        want = [bytearray(t.memory) for t in theirs]
        for a, b, w in zip(ours, theirs, want):
            for i, j in zip(src, dst):
                for here, there in zip(a.page(dim % len(shape), i), b.page(dim % len(shape), j)):
                    w[there] = a.memory[here]
        with cache.at(peer, "kv") as remote:
            near.write_pages(cache.grid, src, remote, dst).result(10)
            assert [bytes(t.memory) for t in theirs] == [bytes(w) for w in want]
            assert [bytes(t.memory) for t in ours] == before[:3]
            for t in ours:
                t.memory[:] = bytes(t.nbytes)
            near.read_pages(cache.grid, src, remote, dst).result(10)
            assert [bytes(t.memory) for t in ours] == before[:3]
    assert [bytes(t.memory) for t in theirs] == [bytes(w) for w in want]


def test_nothing_stays_registered_of_a_cache_that_was_refused(engines: Callable[..., tent.Engine], seed: int) -> None:
    engine = engines(name="one")
    wrong: dict[str, tuple[list[Any], dict[str, Any], str]] = {
        "nothing": ([], {}, "without tensors"),
        "another shape": ([Tensor((8, 64)), Tensor((8, 32))], {}, r"tensor 1 of shape \(8, 32\).*tensor 0"),
        "another order": ([Tensor((8, 8)), Tensor((8, 8), (1, 0))], {}, "tensor 1"),
        "a name that is taken": ([Tensor((8, 64)), Tensor((8, 64))], {"name": "kv"}, "kv.1"),
    }
    with engine.allocate(4096, name="kv.1"):
        count = engine.metrics()["tent_regions"]
        for name, (tensors, options, words) in wrong.items():
            with pytest.raises(tent.TentError, match=words):
                tent.torch.PagedCache(engine, tensors, **options)
                pytest.fail(name)
            assert engine.metrics()["tent_regions"] == count, name
    cache = tent.torch.PagedCache(engine, [Tensor((8, 64), seed=seed)])
    with pytest.raises(INVALID, match="the cache has no name"), engine.open(engines(name="two").address) as peer:
        cache.at(peer)
    assert repr(cache) == "<PagedCache of 1 tensors with 8 pages>"
    cache.close()
    cache.close()
