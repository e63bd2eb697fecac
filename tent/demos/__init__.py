"""Demonstrations, each a program: `python -m tent.demos.kvcache`, `.failover`, `.qos`. They verify every byte."""

from __future__ import annotations

import os
import tempfile


def picture_path(wanted: str, name: str) -> str:
    """Where a picture goes: as wanted, else under its name in a new folder of the system's temporary files."""
    return wanted or os.path.join(tempfile.mkdtemp(prefix="tent-"), name)
