"""`import mooncake` finds this where `tent run` or PYTHONPATH has put tent in Mooncake's place.

`mooncake.engine` is tent's. Other modules, `mooncake.store` for example, are those of the real package, if it is there,
and so are the two classes that this has in itself.
"""

import importlib
import pkgutil
from typing import Any

__path__ = pkgutil.extend_path(__path__, __name__)

_POOLS = ("BufferPool", "RegisteredBufferPool")


def __getattr__(name: str) -> Any:
    """The real package's own classes, once somebody wants one: they need its library of the store."""
    if name not in _POOLS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.buffer_pool"), name)
