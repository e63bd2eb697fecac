"""Tent's agent in the place of NIXL's inside SGLang, and the checks before."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from ..compat import nixl
from ..errors import InvalidArgumentError

INSTEAD = 'take "--disaggregation-transfer-backend nixl" under `tent run --as nixl` instead'

_swapping = threading.Lock()


class HostAgent(nixl.nixl_agent):
    """The agent of a server on CPUs: SGLang calls its KV cache memory of a GPU there too."""

    def register_memory(self, reg_list: Any, mem_type: str | None = None, *given: Any, **named: Any) -> Any:
        """Registers ranges."""
        return super().register_memory(reg_list, _of_host(mem_type), *given, **named)

    def get_xfer_descs(self, descs: Any, mem_type: str | None = None) -> Any:
        """A list of ranges."""
        return super().get_xfer_descs(descs, _of_host(mem_type))

    def prep_xfer_dlist(self, agent_name: Any, xfer_list: Any, mem_type: str | None = None, *given: Any) -> Any:
        """A list that transfers are made of by index."""
        return super().prep_xfer_dlist(agent_name, xfer_list, _of_host(mem_type), *given)


def _of_host(mem_type: str | None) -> str | None:
    return "DRAM" if mem_type == "VRAM" else mem_type


def check(server_args: Any) -> None:
    """Refuses a setting for which SGLang names kinds of memory to its backend "nixl" alone."""
    if getattr(server_args, "enable_hisparse", False):
        raise InvalidArgumentError('enable_hisparse is set: the backend "tent" does not support it', hint=INSTEAD)


@contextlib.contextmanager
def standing(device: str) -> Iterator[None]:
    """Lets `from nixl._api import ...` find tent inside, on one thread at a time; `device` is SGLang's. NIXL need not
    be installed."""
    agent = HostAgent if device == "cpu" else nixl.nixl_agent
    names = {
        "nixl_agent": agent,
        "nixl_agent_config": nixl.nixl_agent_config,
        "nixl_thread_sync_t": nixl.nixl_thread_sync_t,
    }
    with _swapping:
        modules = {name: ModuleType(name) for name in ("nixl", "nixl._api")}
        vars(modules["nixl._api"]).update(names)
        before = {name: sys.modules.get(name) for name in modules}
        sys.modules.update(modules)
        try:
            yield
        finally:
            for name, module in before.items():
                if module is None:
                    del sys.modules[name]
                else:
                    sys.modules[name] = module
