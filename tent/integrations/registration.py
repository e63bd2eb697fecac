"""The entry points by which stacks find tent. They import nothing of the engine."""

from __future__ import annotations

import contextlib
import importlib
import logging

logger = logging.getLogger("tent.integrations")

MODULE = "tent.integrations.vllm"
CONNECTORS = ("TentConnector", "TentPushConnector")


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
