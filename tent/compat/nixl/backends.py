"""The names of NIXL's backends that tent stands for. They choose nothing: the engine takes the best transport."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping

from .errors import nixlNotFoundError

logger = logging.getLogger("tent.compat.nixl")

NETWORK = ("UCX", "LIBFABRIC", "UCCL", "Mooncake")
STORAGE = ("POSIX", "GDS", "GDS_MT")
PLUGINS = (*NETWORK, *STORAGE)

# The kinds of memory that each backend has, by upstream's names.
_MEMORY = {
    name: ("DRAM_SEG", "VRAM_SEG") if name in NETWORK else ("DRAM_SEG", "VRAM_SEG", "FILE_SEG") for name in PLUGINS
}

nixl_backend_handle = int

_numbers = itertools.count(1)


def memory_of(name: str) -> list[str]:
    """The kinds of memory that a backend has; of any other name none, and a line in the log, as upstream."""
    if name not in _MEMORY:
        logger.warning("there is no backend %r: %s", name, ", ".join(PLUGINS))
    return list(_MEMORY.get(name, ()))


def known(name: str) -> str:
    """Returns the name of a backend, and refuses others."""
    if name not in _MEMORY:
        raise nixlNotFoundError(f"tent stands for no backend {name!r}: {', '.join(PLUGINS)}")
    return name


class Backends(dict[str, nixl_backend_handle]):
    """The backends that an agent has created, with a number for each."""

    def __init__(self) -> None:
        super().__init__()
        self._params: dict[str, dict[str, str]] = {}

    def create(self, name: str, params: Mapping[str, str] | None = None) -> None:
        """Makes a backend's name usable. Again: no effect."""
        if known(name) not in self:
            self[name] = next(_numbers)
            self._params[name] = dict(params or {})

    def params_of(self, name: str) -> dict[str, str]:
        """The parameters of a backend that was created; of any other one none."""
        return dict(self._params.get(name, {}))

    def memory_of(self, name: str) -> list[str]:
        """The kinds of memory that a backend has; of one that was not created none, and a line in the log."""
        if name in self:
            return memory_of(name)
        logger.warning("the backend %r was not created: %s", name, ", ".join(self) or "none was")
        return []

    def bypass_the_cache(self) -> bool:
        """Whether one was created that moves files past the page cache, as GPUDirect Storage does."""
        return any(name in self for name in ("GDS", "GDS_MT"))

    def check(self, *names: str) -> None:
        """Refuses backends that were not created."""
        for name in names:
            if name not in self:
                raise nixlNotFoundError(f"the backend {name!r} was not created: {', '.join(self) or 'none was'}")

    def chosen(self, names: Iterable[str], file: bool) -> str:
        """The name by which a transfer goes: the first one that fits, of `names` or of all."""
        listed = list(names)
        self.check(*listed)
        fitting = [name for name in listed or self if (name in STORAGE) == file]
        return fitting[0] if fitting else "POSIX" if file else "UCX"
