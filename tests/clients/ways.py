"""The ways by which vLLM's servers exchange KV caches: over tent, and over the real engines beside it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import little
import servers
from channel import why_missing
from servers import Server

RECOMPUTE = "recompute"


@dataclass(frozen=True)
class Way:
    """How servers are started, and how a request is handed over."""

    connector: str
    hand_over: Callable[[Server, list[int]], dict[str, Any]]
    stands_for: str = ""  # the module that tent stands for
    needs: str = ""  # the module that must be there
    options: dict[str, Any] = field(default_factory=dict)
    device: bool = False  # the connector asks torch for an accelerator
    pushes: bool = False  # the prefill server writes, and the decode server waits

    @property
    def over_tent(self) -> bool:
        """Whether tent moves the bytes."""
        return self.connector == "TentConnector" or bool(self.stands_for)

    @property
    def counts(self) -> bool:
        """Whether vLLM has metrics of its transfers."""
        return self.hand_over is servers.by_nixl

    def server(self, name: str, role: str, model: Path, logs: Path, policy: str = "fail", **options: Any) -> Server:
        """A server that is not started yet. `policy` is its answer to a KV cache that has not come."""
        transfer = {
            "kv_connector": self.connector, "kv_role": role, "kv_buffer_device": "cpu",
            "kv_load_failure_policy": policy, "kv_connector_extra_config": {**self.options, **options},
        }  # fmt: skip
        prefix = [sys.executable, "-m", "tent", "run", "--as", self.stands_for, "--"] if self.stands_for else []
        server = Server(name, model, logs, transfer, prefix)
        if self.device:
            server.load("little_device", DEVICE)
        if self.pushes:
            server.load("little_rest", REST)
        return server

    def missing(self) -> str:
        """Why it cannot run here; "" if it can."""
        return why_missing(self.needs)


MOVED = "vllm:nixl_xfer_time_seconds_count"
TRIES = 20


def meet(way: Way, prefill: Server, decode: Server) -> None:
    """Sends a request until a KV cache has moved. vLLM gives a handshake a few seconds, which a busy machine needs for
    the first."""
    prompt = little.prompt(200, 0)
    mover = prefill if way.pushes else decode
    for _ in range(TRIES):
        try:
            decode.tokens(prompt, transfer=way.hand_over(prefill, prompt))
        except OSError:
            continue
        if not way.counts or mover.metric(MOVED) > 0:
            return
    raise AssertionError(f"no KV cache has moved in {TRIES} requests:\n{decode.tail()}")


# MooncakeConnector asks for an accelerator, also where its memory is that of the host.
DEVICE = """
def load():
    import torch
    torch.accelerator.current_device_index = lambda: 0
"""

# A server that waits for a push looks for it without a pause, and vLLM's processes wait for each other by
# sched_yield(). On Linux 6.18 with two processors, threads that can run got none for as long as that went on, which is
# the whole lease: neither NIXL's handshake nor tent's came to its end.
REST = """
def load():
    import os, time
    os.sched_yield = lambda: time.sleep(1e-4)
"""


MOONCAKE = {"mooncake_protocol": "tcp"}
WAYS = {
    "tent": Way("TentConnector", servers.by_nixl),
    "tent-as-nixl": Way("NixlConnector", servers.by_nixl, stands_for="nixl"),
    "tent-as-mooncake": Way(
        "MooncakeConnector", servers.by_mooncake, stands_for="mooncake", options=MOONCAKE, device=True
    ),
    "nixl": Way("NixlConnector", servers.by_nixl, needs="nixl"),
    "mooncake": Way("MooncakeConnector", servers.by_mooncake, needs="mooncake.engine", options=MOONCAKE, device=True),
}

PUSHES = {
    "tent": Way("TentPushConnector", servers.by_nixl, pushes=True),
    "tent-as-nixl": Way("NixlPushConnector", servers.by_nixl, stands_for="nixl", pushes=True),
    "nixl": Way("NixlPushConnector", servers.by_nixl, needs="nixl", pushes=True),
}
