"""The entry points by which stacks find tent. They import nothing of the engine."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any

logger = logging.getLogger("tent.integrations")

MODULE = "tent.integrations.vllm"
CONNECTORS = ("TentConnector", "TentPushConnector")
_DYNAMO = "dynamo.vllm"

SGLANG_MODULE = "tent.integrations.sglang"
BACKEND = "tent"  # of SGLang's --disaggregation-transfer-backend
_KV_CLASS = "sglang.srt.disaggregation.utils.get_kv_class"


def register_vllm() -> None:
    """Makes tent's connectors known to vLLM by name; their module is imported once a configuration names one. vLLM
    calls this in each of its processes, and goes on without tent where it cannot be done."""
    try:
        factory = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.factory")
        register = factory.KVConnectorFactory.register_connector
    except (ImportError, AttributeError) as error:
        logger.warning("tent's connectors are not known to this vLLM: %s", error)
        return
    for name in CONNECTORS:
        with contextlib.suppress(ValueError):  # it is registered already
            register(name, MODULE, name)
    if _DYNAMO in sys.modules:
        _register_dynamo()


def _register_dynamo() -> None:
    """Makes TentConnector known to Dynamo's servers of vLLM. Their own table has, for each connector, the parameters by
    which a decode server fetches a KV cache: the same as for vLLM's NixlConnector."""
    try:
        known = importlib.import_module(_DYNAMO + ".kv_connector_protocols")
        known.KV_CONNECTOR_PROTOCOLS.setdefault(CONNECTORS[0], known.NixlConnectorProtocol)
    except (ImportError, AttributeError) as error:
        logger.warning("tent's connector is not known to this Dynamo: %s", error)


def register_sglang() -> None:
    """Makes "tent" known to SGLang as a transfer backend; its module is imported once a server is started with it.
    SGLang calls this in each of its processes, and goes on without tent where it cannot be done.

    SGLang lets a plug-in extend the choices of the option and hook the function that finds the classes. The option's
    value also becomes a member of an enum, for which it has no such door.
    """
    try:
        hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
        extend = importlib.import_module("sglang.srt.server_args").add_disagg_transfer_backend_choices
        kinds = importlib.import_module(_KV_CLASS.rpartition(".")[0]).TransferBackend
        around, hook = hooks.HookType.AROUND, hooks.HookRegistry.register
        kinds.NIXL  # noqa: B018
    except (ImportError, AttributeError) as error:
        logger.warning("tent is not known to this SGLang as a transfer backend: %s", error)
        return
    if BACKEND in {kind.value for kind in kinds}:
        return  # it is registered already
    _add_member(kinds, BACKEND.upper(), BACKEND)
    extend([BACKEND])
    hook(_KV_CLASS, _kv_class, around)


def _add_member(kinds: type[Enum], name: str, value: str) -> None:
    """Adds a member to an enum that finds its members by their values."""
    member = object.__new__(kinds)
    member._name_, member._value_ = name, value
    member.__objclass__ = kinds  # type: ignore[attr-defined]
    kinds._member_names_.append(name)
    kinds._member_map_[name] = member
    kinds._value2member_map_[value] = member
    type.__setattr__(kinds, name, member)


def _kv_class(genuine: Callable[..., Any], transfer_backend: Any, class_type: Any) -> Any:
    """SGLang's class for a backend. Those of tent are SGLang's own over NIXL, except the manager, which owns the
    agent."""
    if transfer_backend.value != BACKEND:
        return genuine(transfer_backend, class_type)
    if class_type.value == "manager":
        return importlib.import_module(SGLANG_MODULE).TentKVManager
    return genuine(type(transfer_backend).NIXL, class_type)
