"""LMCache's own benchmark of its channel over tent's: two processes, no stand-in, every byte verified."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
from ports import free_ports
from test_lmcache import serving

COMMAND = [sys.executable, "-m", "tent.integrations.lmcache", "tool", "transfer-channel-benchmark"]


@pytest.mark.timeout(240)
def test_tents_channel_brings_every_byte(objects: int = 64) -> None:
    assert importlib.util.find_spec("lmcache"), "make test-clients has an environment with LMCache"
    data, control, own = free_ports(3)
    common = [*COMMAND, "--transfer-channel-type", "tent", "--page-size", "64KB", "--object-size", "1MB"]
    common += ["--num-objects", str(objects), "--url", f"127.0.0.1:{data}", "--control-url", f"127.0.0.1:{control}"]
    server = [*common, "--role", "server", "--buffer-size", "512MB", "--server-timeout", "200"]
    client = [*common, "--role", "client", "--listen-url", f"127.0.0.1:{own}", "--verify", "--iters", "3"]
    environment = {**os.environ, "DO_NOT_TRACK": "1"}
    with serving(server, environment):
        done = subprocess.run(client, capture_output=True, text=True, timeout=200, env=environment)
    said = done.stdout + done.stderr
    assert f"verify OK: {objects} objects match expected pattern" in said, said[-3000:]
    assert "channel type     : tent" in said and "stands for" not in said
