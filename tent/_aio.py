"""tent.aio for modules that leave its import, and asyncio's, to the first await."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _native

if TYPE_CHECKING:
    from .aio import in_thread as in_thread
    from .aio import next_item as next_item
    from .aio import result as result
    from .aio import result_within as result_within


def __getattr__(name: str) -> Any:
    """A function of tent.aio, at its first use (PEP 562). In a forked child an import that another thread had begun
    never ends, so nothing is imported there."""
    _native.check_process()
    from . import aio

    value = globals()[name] = getattr(aio, name)
    return value
