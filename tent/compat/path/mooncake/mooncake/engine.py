"""`mooncake.engine` over tent."""

from typing import Any

from tent.compat import standing
from tent.compat.mooncake import *  # noqa: F403

standing.announce("mooncake.engine")


def __getattr__(name: str) -> Any:
    """SharedSegment moves nothing, and the real package's `mooncake.shared_segment` takes it from here."""
    if name == "SharedSegment":
        return standing.real(__name__, __file__).SharedSegment
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
