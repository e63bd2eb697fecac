"""Paged KV caches of torch tensors: registered once, moved page by page.

    cache = tent.torch.PagedCache(engine, kv_caches, dim=1)      # one tensor a layer: [K and V, pages, tokens, ...]
    engine.write_pages(cache.grid, src, cache.at(peer), dst, stream=torch.cuda.current_stream())

tent.torch does not import torch: it asks tensors for their shape, strides and address.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .engine import Engine
from .errors import InvalidArgumentError
from .grid import Grid
from .region import Region
from .segment import Segment

__all__ = ["PageLayout", "PagedCache", "page_layout"]


class PageLayout(NamedTuple):
    """How a tensor without gaps is made of pages: planes one behind the other, and the pages of each side by side."""

    planes: int
    n_pages: int
    page_bytes: int

    def spans(self, size: int) -> list[tuple[int, int]]:
        """Start and end of each plane in a tensor of `size` bytes, which may have more or fewer pages than this one."""
        plane, rest = divmod(size, self.planes)
        if rest or plane % self.page_bytes:
            raise InvalidArgumentError(
                f"{size} bytes are no whole number of pages of {self.page_bytes} bytes in {self.planes} planes",
                hint="both sides need the same shape, but for the number of pages",
            )
        return [(k * plane, (k + 1) * plane) for k in range(self.planes)]


def page_layout(shape: Sequence[int], strides: Sequence[int], item_bytes: int, dim: int) -> PageLayout:
    """The form of a tensor whose dimension `dim` counts pages; `strides` are in elements, as torch has them.

    Dimensions with smaller strides than `dim` are inside a page. Those with larger ones, such as K and V in front of
    the pages, make planes. The stride of a single page may mean nothing, as behind DLPack, which makes it 1: the
    dimensions behind `dim` are inside then. Raises InvalidArgumentError for gaps, overlaps, a `dim` that is not there,
    and a single page of which neither is known.
    """
    if not -len(shape) <= dim < len(shape):
        raise InvalidArgumentError(f"dim={dim}: the tensor has {len(shape)} dimensions", hint="dim counts pages")
    dim %= len(shape)
    form = f"a tensor of shape {tuple(shape)} with strides {tuple(strides)}"
    filled, ends = 1, []  # where one dimension ends, in elements, and the next one may begin
    longer = sorted((i for i in range(len(shape)) if shape[i] > 1), key=lambda i: strides[i])
    for i in longer:
        if strides[i] != filled:
            raise InvalidArgumentError(
                f"{form} does not fill its memory", hint="give whole tensors, or .contiguous() copies"
            )
        filled *= shape[i]
        ends.append(filled)
    inside = [i for i in longer if strides[i] < strides[dim]]
    if shape[dim] == 1 and strides[dim] not in ends:
        inside = [i for i in longer if i > dim]
        if inside != longer[: len(inside)]:
            raise InvalidArgumentError(
                f"{form} does not say where its one page lies", hint="give tensors of two pages or more"
            )
    page = math.prod(shape[i] for i in inside)
    planes = math.prod(shape[i] for i in longer if i != dim) // page
    return PageLayout(planes, shape[dim], page * item_bytes)


class PagedCache:
    """A KV cache of one tensor a layer, registered and laid out as pages; close() ends the registrations.

    `dim` is the dimension that counts pages: 1 in [K and V, pages, ...], 0 in [pages, K and V, ...]. Any dense order of
    the other dimensions is taken. All tensors have one shape. With a `name`, layer i is the region "name.i" for peers.
    `grid` is the local operand of write_pages() and read_pages(), `at(peer)` the remote one: page i there belongs to
    page i here in each layer, K and V alike, and the numbers of pages may differ.

    Raises InvalidArgumentError for tensors that differ, have gaps or no such dimension, and all of Engine.register().
    Nothing stays registered then.
    """

    __slots__ = {
        "_engine": "",
        "_layout": "",
        "_name": "",
        "grid": "The pages of this side, for write_pages() and read_pages().",
        "regions": "A Region for each tensor, in their order.",
    }

    def __init__(self, engine: Engine, tensors: Iterable[Any], *, dim: int = 0, name: str | None = None) -> None:
        layers = list(tensors)
        if not layers:
            raise InvalidArgumentError("a cache without tensors", hint="give one tensor for each layer")
        layouts = [page_layout(tuple(t.shape), tuple(t.stride()), t.element_size(), dim) for t in layers]
        for i, layout in enumerate(layouts):
            if layout != layouts[0]:
                shapes = [f"shape {tuple(t.shape)} and strides {tuple(t.stride())}" for t in (layers[i], layers[0])]
                raise InvalidArgumentError(
                    f"tensor {i} of {shapes[0]} has other pages than tensor 0 of {shapes[1]}",
                    hint="make a cache for each kind of layer",
                )
        self._engine = engine
        self._layout = layouts[0]
        self._name = name
        self.regions: list[Region] = []
        try:
            for i, tensor in enumerate(layers):
                self.regions.append(engine.register(tensor, name=None if name is None else f"{name}.{i}"))
            self.grid: Grid = engine.pages(
                [region[a:b] for region in self.regions for a, b in self._layout.spans(region.size)],
                self._layout.page_bytes,
            )
        except BaseException:
            for region in self.regions:
                region.close()
            raise

    @property
    def n_pages(self) -> int:
        """Pages of each tensor, the number of the dimension `dim`."""
        return self._layout.n_pages

    @property
    def page_bytes(self) -> int:
        """Bytes of a page that lie side by side; a page of the cache has as many in each plane of each layer."""
        return self._layout.page_bytes

    def at(self, peer: Segment, name: str | None = None) -> Grid:
        """The pages of a peer's cache that was made with the same shape and name, or another `name`.

        Raises AddressNotRegisteredError where the peer has no such region, and InvalidArgumentError where its size does
        not fit.
        """
        theirs = name or self._name
        if theirs is None:
            raise InvalidArgumentError("the cache has no name", hint='give the peer\'s: cache.at(peer, "kv")')
        regions = [peer[f"{theirs}.{i}"] for i in range(len(self.regions))]
        spans = [region[a:b] for region in regions for a, b in self._layout.spans(region.size)]
        return peer.pages(spans, self._layout.page_bytes)

    def close(self) -> None:
        """Closes grid and regions, as Region.close() does. Again: no effect."""
        self.grid.close()
        for region in self.regions:
            region.close()

    def __enter__(self) -> PagedCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        named = f" {self._name!r}" if self._name else ""
        return f"<PagedCache{named} of {len(self.regions)} tensors with {self.n_pages} pages>"
