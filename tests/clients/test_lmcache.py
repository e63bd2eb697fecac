"""LMCache's own benchmark of its peer-to-peer channel, two processes that verify each byte.

It runs with tent in the place of the engine, and with the engine itself, so that a difference is ours.

It needs LMCache, nixl and mooncake-transfer-engine-non-cuda; `make test-clients` has them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from ports import free_ports

TOOL = [sys.executable, "-m", "lmcache.tools.transfer_channel_benchmark"]
STANDS = [sys.executable, "-m", "tent", "run", "--as", "nixl,mooncake", "--"]
CHANNELS = {"nixl": ["--nixl-backend", "UCX"], "mooncake_te": []}
MODULES = {"nixl": "nixl", "mooncake_te": "mooncake"}


@contextlib.contextmanager
def serving(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )
    try:
        yield server
    finally:
        server.terminate()
        try:
            server.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.communicate()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("by", ["tent", "itself"])
@pytest.mark.parametrize("channel", CHANNELS)
def test_the_channel_brings_every_byte(channel: str, by: str, objects: int = 64) -> None:
    if by == "itself":
        probe = "import nixl" if channel == "nixl" else "import mooncake.engine"
        done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
        if done.returncode:
            pytest.skip(f"the real {MODULES[channel]} cannot be imported here: {done.stderr.strip().splitlines()[-1]}")
    assert importlib.util.find_spec("lmcache"), "make test-clients has an environment with LMCache"
    prefix = STANDS if by == "tent" else []
    data, control, own = free_ports(3)
    common = [*prefix, *TOOL, "--transfer-channel-type", channel, *CHANNELS[channel], "--page-size", "64KB"]
    common += ["--object-size", "1MB", "--num-objects", str(objects), "--url", f"127.0.0.1:{data}"]
    common += ["--control-url", f"127.0.0.1:{control}"]
    server = [*common, "--role", "server", "--buffer-size", "512MB", "--server-timeout", "200"]
    client = [*common, "--role", "client", "--listen-url", f"127.0.0.1:{own}", "--verify"]
    client += ["--iters", "3", "--warmup", "1"]
    environment = {**os.environ, "DO_NOT_TRACK": "1"}
    with serving(server, environment):
        done = subprocess.run(client, capture_output=True, text=True, timeout=200, env=environment)
    said = done.stdout + done.stderr
    assert f"verify OK: {objects} objects match expected pattern" in said, said[-3000:]
    assert ("stands for" in said) == (by == "tent")
    rate = re.search(r"median\s*:.*?([\d.]+) GB/s", said)
    assert rate is not None and float(rate[1]) > 0
