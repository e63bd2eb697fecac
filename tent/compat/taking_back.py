"""Memory that is taken back for another engine's interface: one range that is late keeps no other one open."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import TentError

if TYPE_CHECKING:
    from ..region import Region


def close_all(regions: Iterable[Region]) -> Exception | None:
    """Closes every region, and returns the first error: that region's memory is not the caller's yet."""
    first: Exception | None = None
    for region in regions:
        try:
            region.close()
        except (TentError, TimeoutError) as error:
            first = first or error
    return first
