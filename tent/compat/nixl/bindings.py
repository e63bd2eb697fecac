"""The names of upstream's compiled module that Python code imports from `nixl._bindings`."""

from __future__ import annotations

from typing import NoReturn

from . import errors
from .config import DEFAULT_COMM_PORT, NIXL_INIT_AGENT, nixl_thread_sync_t
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
NIXL_THREAD_SYNC_NONE = nixl_thread_sync_t.NIXL_THREAD_SYNC_NONE
NIXL_THREAD_SYNC_STRICT = nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
NIXL_THREAD_SYNC_RW = nixl_thread_sync_t.NIXL_THREAD_SYNC_RW
NIXL_THREAD_SYNC_DEFAULT = nixl_thread_sync_t.NIXL_THREAD_SYNC_DEFAULT


class nixlAgent:
    """Not supported: upstream's C++ agent, below nixl_agent, does not exist here."""

    def __new__(cls, *given: object) -> NoReturn:
        raise errors.nixlNotSupportedError(f"{cls.__name__} is not supported: take nixl_agent and nixl_agent_config")


class nixlAgentConfig(nixlAgent):
    """Not supported, as nixlAgent."""


__all__ = [
    "BLK_SEG",
    "DEFAULT_COMM_PORT",
    "DRAM_SEG",
    "FILE_SEG",
    "NIXL_INIT_AGENT",
    "NIXL_IN_PROG",
    "NIXL_READ",
    "NIXL_SUCCESS",
    "NIXL_THREAD_SYNC_DEFAULT",
    "NIXL_THREAD_SYNC_NONE",
    "NIXL_THREAD_SYNC_RW",
    "NIXL_THREAD_SYNC_STRICT",
    "NIXL_WRITE",
    "OBJ_SEG",
    "VRAM_SEG",
    "nixlAgent",
    "nixlAgentConfig",
    "nixlRegDList",
    "nixlRemoteDList",
    "nixlXferDList",
    "nixlXferTelemetry",
    "nixl_thread_sync_t",
]
__all__ += errors.__all__
