"""Tent's agent in the place of NIXL's inside vLLM, and the checks before."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any

from ..compat.options import KEYS, Options
from ..errors import InvalidArgumentError
from .versions import unfit

BASE = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker"
LOADER = "vllm.distributed.nixl_utils"
NAMES = ("NixlWrapper", "nixl_agent_config")
VERSION_CHECK = "check_nixl_version"  # of the NIXL that is installed; vLLM has it since 0.33
WHERE = "kv_connector_extra_config"
LAYOUT = "VLLM_SSM_CONV_STATE_LAYOUT"
INSTEAD = 'take "NixlConnector" under `tent run --as nixl` instead'

_swapping = threading.Lock()


def options_of(extra: Mapping[str, Any]) -> dict[str, Any] | None:
    """Tent's keys of kv_connector_extra_config, checked; None without any, and then TENT_COMPAT counts. Keys of vLLM's
    own connector stand beside them, so one that merely looks like ours is refused."""
    for key in extra:
        if key not in KEYS and (near := difflib.get_close_matches(key, KEYS, 1, 0.75)):
            raise InvalidArgumentError(f"{WHERE}: {key!r} is unknown", hint=f"is {near[0]!r} meant?")
    chosen = {key: extra[key] for key in KEYS if key in extra}
    Options.of(chosen, WHERE)
    return chosen or None


def check_settings(configuration: Any) -> None:
    """Refuses settings that vLLM adjusts or refuses for connectors with its own names alone."""
    size = getattr(configuration.parallel_config, "decode_context_parallel_size", 1)
    if size > 1:
        raise InvalidArgumentError(
            f"decode_context_parallel_size is {size}: tent's connectors do not support it", hint=INSTEAD
        )
    if getattr(getattr(configuration, "aux_output_config", None), "enabled", False):
        raise InvalidArgumentError(
            "--enable-return-routed-experts is set: no connector carries its output from prefill to decode servers",
            hint="leave it out",
        )
    model = getattr(configuration, "model_config", None)
    mamba = getattr(model, "is_hybrid", False) or getattr(model, "is_attention_free", False)
    if mamba and os.environ.get(LAYOUT) != "DS":
        raise InvalidArgumentError(
            f"the model has Mamba layers, and {LAYOUT} is not DS: vLLM chooses that for NixlConnector by its name",
            hint=f"set {LAYOUT}=DS in the environment of the server",
        )


def base_worker(version: str) -> ModuleType:
    """vLLM's module of NIXL workers, imported without NIXL. A connector of vLLM's own in the same process still gets
    the genuine NIXL."""
    try:
        module = sys.modules.get(BASE) or _imported_without_nixl()
        for name in NAMES:
            getattr(module, name)
    except (ImportError, AttributeError) as error:
        raise unfit("vLLM", version, error, INSTEAD) from error
    return module


def _imported_without_nixl() -> ModuleType:
    loader = importlib.import_module(LOADER)
    absent = [name for name in NAMES if name not in vars(loader)]
    for name in absent:
        setattr(loader, name, partial(_genuine, loader, name))
    try:
        return importlib.import_module(BASE)
    finally:
        for name in absent:
            delattr(loader, name)


def _genuine(loader: ModuleType, name: str, *given: Any, **named: Any) -> Any:
    """Looks this name up in NIXL, at the time when it is first wanted, and calls it."""
    found = getattr(loader, name)
    if found is None:
        raise RuntimeError("NIXL is not available")
    return found(*given, **named)


@contextlib.contextmanager
def standing(module: ModuleType, options: Mapping[str, Any] | None) -> Iterator[None]:
    """Puts tent's agent in the place of NIXL's, for workers that are made inside; one thread at a time. They work
    beside any NIXL, also one that is too old for vLLM."""
    from ..compat import nixl

    instead = {
        "NixlWrapper": partial(nixl.nixl_agent, options=options),
        "nixl_agent_config": nixl.nixl_agent_config,
        VERSION_CHECK: lambda oldest: None,
    }
    with _swapping:
        before = {name: getattr(module, name) for name in instead if hasattr(module, name)}
        vars(module).update({name: instead[name] for name in before})
        try:
            yield
        finally:
            vars(module).update(before)
