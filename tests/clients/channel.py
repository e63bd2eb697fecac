"""LMCache's own benchmark of its peer-to-peer channel: a server, and a client that reads from it and verifies."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ports import free_ports

TOOL = ("lmcache.tools.transfer_channel_benchmark",)
NATIVE = ("tent.integrations.lmcache", "tool", "transfer-channel-benchmark")
LIMIT = 200  # seconds for each of the two processes


@dataclass(frozen=True)
class Channel:
    """A channel of LMCache, and the module behind it."""

    kind: str  # of LMCache
    module: tuple[str, ...] = TOOL  # that has the tool
    options: tuple[str, ...] = ()
    stands_for: str = ""  # the module that tent stands for
    needs: str = ""  # the module that must be there

    def missing(self) -> str:
        """Why it cannot run here; "" if it can."""
        return why_missing(self.needs)

    def read(
        self,
        objects: int = 64,
        iterations: int = 3,
        server_settings: dict[str, Any] | None = None,
        client_settings: dict[str, Any] | None = None,
    ) -> str:
        """Reads objects of 1 MiB from a server, verifies the last time, and returns the output of the client. The
        settings are those of the engine of tent on each side."""
        data, control, own = free_ports(3)
        prefix = ["-m", "tent", "run", "--as", self.stands_for, "--", sys.executable] if self.stands_for else []
        common = [sys.executable, *prefix, "-m", *self.module, "--transfer-channel-type", self.kind, *self.options]
        common += ["--page-size", "64KB", "--object-size", "1MB", "--num-objects", str(objects)]
        common += ["--url", f"127.0.0.1:{data}", "--control-url", f"127.0.0.1:{control}"]
        server = [*common, "--role", "server", "--buffer-size", "512MB", "--server-timeout", str(LIMIT)]
        client = [*common, "--role", "client", "--listen-url", f"127.0.0.1:{own}", "--verify"]
        client += ["--iters", str(iterations), "--warmup", "1"]
        with _serving(server, _environment(server_settings)) as check:
            said = _run(client, _environment(client_settings), check)
        if f"verify OK: {objects} objects match expected pattern" not in said:
            raise AssertionError(f"the channel {self.kind} has not brought every byte:\n{said[-3000:]}")
        return said


def _environment(settings: dict[str, Any] | None) -> dict[str, str]:
    compat = {} if settings is None else {"TENT_COMPAT": json.dumps({"config": settings})}
    return {**os.environ, "DO_NOT_TRACK": "1", **compat}


@contextlib.contextmanager
def _serving(command: list[str], environment: dict[str, str]) -> Iterator[Callable[[], None]]:
    """A server, and a check that it runs still."""
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

        def check() -> None:
            if server.poll() is not None:
                log.seek(0)
                raise AssertionError(f"the server has ended with {server.returncode}:\n{log.read()[-3000:]}")

        try:
            yield check
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(20)


def _run(command: list[str], environment: dict[str, str], check: Callable[[], None]) -> str:
    """Runs a client, and returns its output. It would wait for a server that has ended."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as client:
        try:
            for _ in range(LIMIT):
                try:
                    return client.communicate(timeout=1)[0]
                except subprocess.TimeoutExpired:
                    check()
            raise AssertionError(f"the client has not ended within {LIMIT} s")
        finally:
            client.kill()


def rate(said: str) -> float:
    """The median rate that the client has printed, in GB/s."""
    found = re.search(r"median\s*:.*?([\d.]+) GB/s", said)
    if found is None:
        raise AssertionError(f"the client has printed no rate:\n{said[-3000:]}")
    return float(found[1])


def why_missing(module: str) -> str:
    """The last line of the error of importing a module, in a process of its own; "" if there is none."""
    if not module:
        return ""
    done = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True, timeout=90)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


UCX = ("--nixl-backend", "UCX")
CHANNELS = {
    "tent": Channel("tent", NATIVE),
    "tent-as-nixl": Channel("nixl", options=UCX, stands_for="nixl"),
    "tent-as-mooncake": Channel("mooncake_te", stands_for="mooncake"),
    "nixl": Channel("nixl", options=UCX, needs="nixl"),
    "mooncake": Channel("mooncake_te", needs="mooncake.engine"),
}
