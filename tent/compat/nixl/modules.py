"""The modules of NIXL's packages, for those that stand in their place."""

from __future__ import annotations

import logging
import sys
import types

from .. import standing
from . import bindings, utilities


def stand_for(package: str) -> None:
    """Puts NIXL's modules below a package of this name, their names into it as upstream does, and says so."""
    loggers = types.ModuleType(f"{package}.logging", "The loggers of nixl, which are tent's.")
    loggers.get_logger = lambda name=None: logging.getLogger("tent.compat.nixl")  # type: ignore[attr-defined]
    agents = sys.modules["tent.compat.nixl"]
    for name, module in {"_api": agents, "_bindings": bindings, "_utils": utilities, "logging": loggers}.items():
        sys.modules[f"{package}.{name}"] = module
        vars(sys.modules[package]).update({known: getattr(module, known) for known in getattr(module, "__all__", ())})
        setattr(sys.modules[package], name, module)
    standing.announce(package)
