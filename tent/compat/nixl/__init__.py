"""NIXL's Python module over tent: nixl_agent with upstream's names, forms, return values and error classes.

Every agent is an Engine of tent with its rails, failover and limits. A call of upstream that tent does not have
raises nixlNotSupportedError with its name. Metadata and notifications are tent's own: both sides must run tent.
"""

from __future__ import annotations

from . import bindings as nixlBind
from . import errors
from .agent import nixl_agent
from .backends import nixl_backend_handle
from .config import DEFAULT_COMM_PORT, NIXL_INIT_AGENT, nixl_agent_config, nixl_thread_sync_t
from .descriptors import nixlRegDList, nixlRemoteDList, nixlXferDList
from .errors import *  # noqa: F403
from .handles import nixl_prepped_dlist_handle, nixl_xfer_handle, nixlXferTelemetry

__all__ = [
    "DEFAULT_COMM_PORT",
    "NIXL_INIT_AGENT",
    "nixlBind",
    "nixlRegDList",
    "nixlRemoteDList",
    "nixlXferDList",
    "nixlXferTelemetry",
    "nixl_agent",
    "nixl_agent_config",
    "nixl_backend_handle",
    "nixl_prepped_dlist_handle",
    "nixl_thread_sync_t",
    "nixl_xfer_handle",
]
__all__ += errors.__all__
