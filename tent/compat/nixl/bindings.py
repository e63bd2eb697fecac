"""The names of upstream's compiled module that Python code imports from `nixl._bindings`."""

from __future__ import annotations

from . import errors
from .config import DEFAULT_COMM_PORT, NIXL_INIT_AGENT
from .descriptors import (
    BLK_SEG,
    DRAM_SEG,
    FILE_SEG,
    OBJ_SEG,
    VRAM_SEG,
    nixlRegDList,
    nixlRemoteDList,
    nixlXferDList,
)
from .errors import *  # noqa: F403
from .handles import nixlXferTelemetry

NIXL_IN_PROG, NIXL_SUCCESS = 1, 0
NIXL_READ, NIXL_WRITE = "READ", "WRITE"

__all__ = [
    "BLK_SEG",
    "DEFAULT_COMM_PORT",
    "DRAM_SEG",
    "FILE_SEG",
    "NIXL_INIT_AGENT",
    "NIXL_IN_PROG",
    "NIXL_READ",
    "NIXL_SUCCESS",
    "NIXL_WRITE",
    "OBJ_SEG",
    "VRAM_SEG",
    "nixlRegDList",
    "nixlRemoteDList",
    "nixlXferDList",
    "nixlXferTelemetry",
]
__all__ += errors.__all__
