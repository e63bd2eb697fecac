"""`import nixl` finds this where `tent run` or PYTHONPATH has put tent in NIXL's place."""

import logging as _logging
import sys
import types

from tent.compat import standing
from tent.compat.nixl import *  # noqa: F403
from tent.compat.nixl import bindings as _bindings
from tent.compat.nixl import utilities as _utils

_api = sys.modules["tent.compat.nixl"]

logging = types.ModuleType("nixl.logging", "The loggers of nixl, which are tent's.")
logging.get_logger = lambda name=None: _logging.getLogger("tent.compat.nixl")  # type: ignore[attr-defined]

for _name, _module in {"_api": _api, "_bindings": _bindings, "_utils": _utils, "logging": logging}.items():
    sys.modules[f"{__name__}.{_name}"] = _module

standing.announce("nixl")
