"""Grid: pages of one or many equal regions, so that a whole page table moves by one call."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from . import _native
from ._text import shown
from .enums import LOCAL_SEGMENT_ID
from .errors import InvalidArgumentError
from .quantities import bytes_of, integer_of, list_of
from .region import Region, RegionSlice

if TYPE_CHECKING:
    from .handle import Handle

_CACHED = 8  # page sizes that a region remembers its grid for


class Grid:
    """Pages over equal regions, from Engine.pages() or Segment.pages(): page i of each region moves to its counterpart.

    Reusable from any thread until close(); dropping it closes it.

    Example:
        pages = engine.pages(region, 4096)
        assert pages.n_pages == region.size // 4096
        engine.write_pages(pages, [0], pages.as_remote(), [1]).result(timeout=10)  # within own memory
        pages.close()
    """

    __slots__ = {
        "__weakref__": "",
        "_closed": "",
        "_described": "",
        "_engine": "",
        "_id": "",
        "_keep": "",
        "_read_only": "",
        "_shape": "",
        "_twin": "",
        "n_pages": "Pages of each region.",
        "n_regions": "Regions.",
        "page_bytes": "Bytes of a row of a page.",
        "remote": "Whether its regions are those of a peer.",
    }

    def __init__(self, engine: Handle, segment: int, regions: list[dict[str, int]], keep: object, **shape: int) -> None:
        """For tent only; segment -1 is own memory, and its regions give both their address and their id."""
        self._closed = True
        self._engine = engine
        self._keep = keep
        self._read_only = False
        self._described = regions
        self._shape = shape
        self._twin: Grid | None = None
        self.remote = segment >= 0
        self.n_regions = len(regions)
        self.page_bytes = shape["page_bytes"]
        self._id = int(
            engine._call(engine._library.pybind_Grid, json.dumps({"segment": segment, "regions": regions, **shape}))
        )
        self._closed = False
        self.n_pages = engine._call(engine._library.pybind_GridPages, self._id)

    def __len__(self) -> int:
        return self.n_pages

    def as_remote(self) -> Grid:
        """This grid as the remote operand: own memory is then segment 0."""
        if self.remote:
            return self
        if self._twin is None:
            self._twin = Grid(self._engine, LOCAL_SEGMENT_ID, self._described, self._keep, **self._shape)
        return self._twin

    def close(self) -> None:
        """Forgets it; transfers that it began go on. Again: no effect."""
        if self._closed or not self._engine._usable():
            return
        self._closed = True
        if self._twin is not None:
            self._twin.close()
        self._engine._call(self._engine._library.pybind_CloseGrid, self._id)

    def __enter__(self) -> Grid:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        address = getattr(self._keep, "address", "")  # of the segment
        side = f"remote of {address}," if address else "remote" if self.remote else "local"
        pages = f"{self.n_pages} pages of {self.page_bytes} bytes in {self.n_regions} regions"
        return f"<Grid {side} {pages}{self._state()}>"

    def _state(self) -> str:
        return " closed" if self._closed or self._engine.closed else ""

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied; it belongs to its engine")

    @_native.finalizer
    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()


def shape(
    page_bytes: Any, stride: Any = None, offset: Any = 0, rows: Any = 1, row_stride: Any = None
) -> dict[str, int]:
    """The numbers of a grid as the engine takes them; 0 stands for its default."""
    numbers = {
        "page_bytes": page_bytes,
        "stride": 0 if stride is None else stride,
        "offset": offset,
        "rows": rows,
        "row_stride": 0 if row_stride is None else row_stride,
    }
    for name, value in numbers.items():
        if name != "rows":
            numbers[name] = bytes_of(value, name, least=int(name == "page_bytes"))
    if (n := integer_of(rows)) is None or not 0 < n < 1 << 63:
        raise InvalidArgumentError(f"rows is {shown(rows)}: it must be an integer, at least 1")
    return {**numbers, "rows": n}


def own(
    engine: Handle,
    regions: Region | RegionSlice | Iterable[Region | RegionSlice],
    page_bytes: int | str,
    stride: int | str | None = None,
    offset: int | str = 0,
    rows: int = 1,
    row_stride: int | str | None = None,
) -> Grid:
    """A grid over own memory; see Engine.pages()."""
    single = isinstance(regions, (Region, RegionSlice))
    takes = "regions of this engine, or slices of them"
    chosen: list[Any] = [regions] if single else list_of(regions, "regions", takes)
    described, memories = [], []
    for part in chosen:
        region, start = (part.region, part.offset) if isinstance(part, RegionSlice) else (part, 0)
        if not isinstance(region, Region) or region._engine is not engine:
            raise InvalidArgumentError(f"{shown(part)} is not a region of this engine")
        region._check_open()
        described.append({"address": part.address, "id": region._id, "offset": start, "size": part.size})
        memories.append(region._memory)
    made = Grid(engine, -1, described, memories, **shape(page_bytes, stride, offset, rows, row_stride))
    made._read_only = any(memory.read_only for memory in memories)
    return made


def of_buffer(engine: Handle, address: int, size: int, owner: object, page_bytes: int | str) -> Grid:
    """A grid over a buffer that lies in some region of the engine, which looks for it at each call."""
    return Grid(engine, -1, [{"address": address, "id": 0, "offset": 0, "size": size}], owner, **shape(page_bytes))


def no_page_bytes() -> InvalidArgumentError:
    """The error of pages without a size."""
    return InvalidArgumentError("page_bytes is missing", hint="give page_bytes=, or grids made by pages()")


def cached(owner: Any, page_bytes: int | str | None, make: Any) -> Grid:
    """The grid of a single region for a page size. Regions remember a few; beyond that it lives for one call."""
    if page_bytes is None:
        raise no_page_bytes()
    page_bytes = bytes_of(page_bytes, "page_bytes", least=1)
    grids: dict[int, Grid] = owner._grids
    grid = grids.get(page_bytes)
    if grid is None:
        grid = make([owner], page_bytes)
        if len(grids) < _CACHED:
            grid = grids.setdefault(page_bytes, grid)
    return grid
