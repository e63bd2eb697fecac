"""The names of upstream's compiled module that Python code imports from `nixl._bindings`."""

from __future__ import annotations

from enum import IntEnum
from typing import NoReturn

from . import errors
from .backends import PLUGINS
from .config import DEFAULT_COMM_PORT, NIXL_INIT_AGENT, nixl_thread_sync_t
from .descriptors import (
    BLK_SEG,
    DRAM_SEG,
    FILE_SEG,
    OBJ_SEG,
    VRAM_SEG,
    nixl_mem_t,
    nixlRegDList,
    nixlRemoteDList,
    nixlXferDList,
)
from .errors import *  # noqa: F403
from .handles import nixlXferTelemetry


class nixl_status_t(IntEnum):
    """Upstream's statuses. Calls of nixl_agent raise the error class of one, and never return it."""

    NIXL_IN_PROG = 1
    NIXL_SUCCESS = 0
    NIXL_ERR_NOT_POSTED = -1
    NIXL_ERR_INVALID_PARAM = -2
    NIXL_ERR_BACKEND = -3
    NIXL_ERR_NOT_FOUND = -4
    NIXL_ERR_MISMATCH = -5
    NIXL_ERR_NOT_ALLOWED = -6
    NIXL_ERR_REPOST_ACTIVE = -7
    NIXL_ERR_UNKNOWN = -8
    NIXL_ERR_NOT_SUPPORTED = -9


globals().update(nixl_status_t.__members__)
NIXL_READ, NIXL_WRITE = "READ", "WRITE"
NIXL_COST_ANALYTICAL_BACKEND = 0  # nothing is estimated
HAVE_UCX_GPU_DEVICE_API = False  # prep_mem_view() is not supported
NIXL_THREAD_SYNC_NONE = nixl_thread_sync_t.NIXL_THREAD_SYNC_NONE
NIXL_THREAD_SYNC_STRICT = nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
NIXL_THREAD_SYNC_RW = nixl_thread_sync_t.NIXL_THREAD_SYNC_RW
NIXL_THREAD_SYNC_DEFAULT = nixl_thread_sync_t.NIXL_THREAD_SYNC_DEFAULT


class nixlAgentConfig:
    """The settings of upstream's C++ agent, for programs that set them. They have no meaning here."""

    useProgThread = False
    useListenThread = False
    listenPort = DEFAULT_COMM_PORT
    syncMode = NIXL_THREAD_SYNC_DEFAULT
    pthrDelay = 0
    lthrDelay = 100_000
    captureTelemetry = False


class nixlAgent:
    """Stands for upstream's C++ agent where a program makes one for its nixl_agent, as SGLang's HiCache does to choose
    the way of locking. Such a program asks it for the plug-ins alone; the calls go to nixl_agent, which needs none."""

    def __init__(self, name: str, config: nixlAgentConfig) -> None:
        self.name = name

    def getAvailPlugins(self) -> list[str]:
        """As nixl_agent.get_plugin_list()."""
        return list(PLUGINS)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"nixlAgent.{name} is not supported: take nixl_agent")


__all__ = [
    "BLK_SEG",
    "DEFAULT_COMM_PORT",
    "DRAM_SEG",
    "FILE_SEG",
    "HAVE_UCX_GPU_DEVICE_API",
    "NIXL_COST_ANALYTICAL_BACKEND",
    "NIXL_INIT_AGENT",
    "NIXL_READ",
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
    "nixl_mem_t",
    "nixl_status_t",
    "nixl_thread_sync_t",
]
__all__ += list(nixl_status_t.__members__)
__all__ += errors.__all__
