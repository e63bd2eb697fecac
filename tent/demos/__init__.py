"""Demonstrations, each a program: `python -m tent.demos.kvcache`, `.failover`, `.qos`. They verify every byte."""

from __future__ import annotations

import importlib
from typing import Any


def optional(module: str) -> Any:
    """Returns a module of tent[demo], None where that is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None
