"""The line on stderr that says that tent stands for another module."""

from __future__ import annotations

import os
import sys

from .._version import __version__

QUIET = "TENT_COMPAT_QUIET"


def announce(name: str) -> None:
    """Writes the line, unless the environment has TENT_COMPAT_QUIET=1."""
    if os.environ.get(QUIET) != "1":
        sys.stderr.write(f"tent {__version__} stands for {name} in process {os.getpid()}\n")
        sys.stderr.flush()
