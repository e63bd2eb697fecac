"""vLLM's servers in processes of their own, and the little that a proxy between prefill and decode does."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ports import free_ports

TOKENS = 24  # of an answer
WITH_PARENT = Path(__file__).resolve().with_name("with_parent.py")
READY_LIMIT = 600.0  # seconds until a server answers, on a machine that others use too
QUIET = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "VLLM_HOST_IP": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "PYTHONUNBUFFERED": "1",
}  # fmt: skip


@dataclass
class Server:
    """A server: started by start(), used after ready(), gone after kill()."""

    name: str
    model: Path
    logs: Path
    transfer: dict[str, Any] | None = None  # of --kv-transfer-config
    prefix: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    def load(self, name: str, text: str) -> None:
        """Gives it a plug-in of vLLM, with a load() that each of its processes runs."""
        place = self.logs / name
        if not place.exists():
            info = place / f"{name}-1.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
            (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {name}:load\n")
            (place / f"{name}.py").write_text(text)
        others = self.environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        self.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(place), others]))

    def start(self) -> Server:
        """Starts the process. Its ports are new each time: nothing waits for those of one that was killed."""
        self.port, side, self.bootstrap = free_ports(3)
        self.log = self.logs / f"{self.name}-{self.port}.log"
        command = [
            sys.executable, str(WITH_PARENT), *self.prefix,
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model),
            "--served-model-name", "little", "--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32",
            "--enforce-eager", "--no-enable-prefix-caching", "--max-model-len", "4096", "--max-num-seqs", "8",
            *self.arguments,
        ]  # fmt: skip
        if self.transfer is not None:
            command += ["--kv-transfer-config", json.dumps(self.transfer)]
        environment = {
            **os.environ, **QUIET, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side),
            "VLLM_MOONCAKE_BOOTSTRAP_PORT": str(self.bootstrap), **self.environment,
        }  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        return self

    def ready(self, limit: float = READY_LIMIT) -> Server:
        """Waits until it answers."""
        assert self.process is not None
        until = time.monotonic() + limit
        while True:
            with contextlib.suppress(OSError):
                self.get("/health", 5)
                return self
            if self.process.poll() is not None:
                raise AssertionError(f"{self.name} has ended with {self.process.returncode}:\n{self.tail()}")
            if time.monotonic() > until:
                raise AssertionError(f"{self.name} does not answer after {limit:g} s:\n{self.tail()}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.25)

    def alive(self) -> None:
        """Starts it again if it has ended, and waits until it answers."""
        if self.process is None or self.process.poll() is not None:
            self.kill()
            self.start()
        self.ready()

    def kill(self) -> None:
        """Ends it and the processes that it has spawned, at once. Again: no effect."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(120)  # a server over the real NIXL took more than 30 s to give its memory back, once
            self.process = None

    def get(self, path: str, limit: float = 30) -> str:
        """The text at a path."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=limit) as answer:
            return str(answer.read().decode())

    def complete(
        self, prompt: list[int], tokens: int = TOKENS, transfer: dict[str, Any] | None = None, limit: float = 300
    ) -> dict[str, Any]:
        """A greedy completion; OSError if the server refuses or is gone."""
        body: dict[str, Any] = {
            "model": "little", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True,
        }  # fmt: skip
        headers = {"Content-Type": "application/json"}
        if transfer is not None:
            body["kv_transfer_params"] = transfer
            headers |= pairing(transfer)
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=limit) as answer:
            return dict(json.load(answer))

    def tokens(self, prompt: list[int], tokens: int = TOKENS, transfer: dict[str, Any] | None = None) -> list[int]:
        """The tokens of a greedy completion."""
        (choice,) = self.complete(prompt, tokens, transfer)["choices"]
        return list(choice["token_ids"])

    def metric(self, name: str) -> float:
        """A metric, summed over its labels; 0 if it is not there."""
        lines = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? ([-+.\deE]+)$", self.get("/metrics"), re.M)
        return sum(map(float, lines))

    def tail(self, n: int = 60) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-n:])


@contextlib.contextmanager
def running(*servers: Server) -> Iterator[None]:
    """Starts servers side by side and waits for all; every one is dead at the end."""
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.ready()
        yield
    finally:
        for server in servers:
            server.kill()


def pairing(transfer: dict[str, Any]) -> dict[str, str]:
    """The header by which push connectors find the two requests of a prompt: both have one X-Request-Id, which the
    prefill server's own identifier has in its middle."""
    if transfer.get("transfer_mode") != "push":
        return {}
    found = re.fullmatch(r"cmpl-(.+)-\d+-[0-9a-f]+", transfer["remote_request_id"])
    assert found is not None, transfer
    return {"X-Request-Id": found[1]}


def by_nixl(prefill: Server, prompt: list[int]) -> dict[str, Any]:
    """Prefills, and returns the parameters by which the decode server fetches the KV cache."""
    wanted = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
    answer = prefill.complete(prompt, 1, {"do_remote_decode": True, "do_remote_prefill": False, **wanted})
    return dict(answer["kv_transfer_params"])


def by_mooncake(prefill: Server, prompt: list[int]) -> dict[str, Any]:
    """The same for MooncakeConnector. Its servers share the name of a transfer."""
    transfer = f"transfer-{uuid.uuid4().hex}"
    ask = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer}
    prefill.complete(prompt, 1, ask)
    address = f"http://127.0.0.1:{prefill.bootstrap}"
    with urllib.request.urlopen(f"{address}/query", timeout=30) as answer:
        engines = json.load(answer)
    (engine,) = {entry["engine_id"] for entry in engines.values()}
    return {
        "do_remote_decode": False, "do_remote_prefill": True, "remote_engine_id": engine,
        "remote_bootstrap_addr": address, "transfer_id": transfer,
    }  # fmt: skip
