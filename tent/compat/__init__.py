"""Stand-ins for the Python modules of other engines, so that a stack which calls those moves its bytes by tent.

`tent.compat.nixl` has NIXL's agent and `tent.compat.mooncake` Mooncake's TransferEngine, with their names, forms,
return values and error classes. Each is a plain module over tent's public API. `python -m tent run --as nixl,mooncake
-- COMMAND` starts a stack with them in the place of the real ones, without a change of its code.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ..errors import InvalidArgumentError

NAMES = ("nixl", "mooncake")

_FOLDER = Path(__file__).resolve().parent / "path"


def path(names: Iterable[str] = NAMES) -> str:
    """The entries of PYTHONPATH under which Python finds tent in the place of these modules. The Python that gets them
    needs tent installed.

    Example:
        from tent import compat

        print(compat.path(["nixl"]))
    """
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        if name not in NAMES:
            raise InvalidArgumentError(f"{name!r} is none of the modules that tent stands for: {', '.join(NAMES)}")
    if not chosen:
        raise InvalidArgumentError(f"no module is named; tent stands for {', '.join(NAMES)}")
    return os.pathsep.join(str(_FOLDER / name) for name in chosen)
