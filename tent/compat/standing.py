"""tent in the place of another module: the line on stderr that says so, and the module behind it."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from types import ModuleType

from .._version import __version__

QUIET = "TENT_COMPAT_QUIET"


def announce(name: str) -> None:
    """Writes the line, unless the environment has TENT_COMPAT_QUIET=1."""
    if os.environ.get(QUIET) != "1":
        sys.stderr.write(f"tent {__version__} stands for {name} in process {os.getpid()}\n")
        sys.stderr.flush()


def real(name: str, stand_in: str) -> ModuleType:
    """The module of the real package, which has tent's (the file `stand_in`) before it on the package's path."""
    package = sys.modules[name.rpartition(".")[0]]
    folders = [folder for folder in package.__path__ if folder != os.path.dirname(stand_in)]
    spec = PathFinder.find_spec(name, folders)
    if spec is None or spec.loader is None:
        raise AttributeError(f"there is no {name} but tent's")
    here = sys.modules[name]
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.modules[name] = here  # an extension module puts itself there
    return module
