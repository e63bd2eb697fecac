"""LMCache's own benchmark of its peer-to-peer channel, in two processes that verify each byte, and its storage by NIXL.

The benchmark runs over tent's channel, with tent in the place of the engines, and over the engines, so that a
difference is ours.
It needs LMCache, nixl and mooncake-transfer-engine-non-cuda; `make test-clients` has them.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from channel import CHANNELS, rate, why_missing
from counters import Counters
from ports import free_ports

TWO_RAILS = {"shm": {"enable": False}, "tcp": {"addresses": ["127.0.0.1", "127.0.0.2"]}}


@pytest.mark.timeout(480)
@pytest.mark.parametrize("name", CHANNELS)
def test_the_channel_brings_every_byte(name: str) -> None:
    assert importlib.util.find_spec("lmcache"), "make test-clients has an environment with LMCache"
    channel = CHANNELS[name]
    if missing := channel.missing():
        pytest.skip(f"the real {channel.needs} cannot be imported here: {missing}")
    said = channel.read()
    assert rate(said) > 0
    assert ("stands for" in said) == bool(channel.stands_for)
    assert ("channel type     : tent" in said) == (channel.kind == "tent")


@pytest.mark.timeout(480)
@pytest.mark.parametrize("name", [name for name, channel in CHANNELS.items() if not channel.needs])
def test_a_rail_that_is_cut_costs_no_read(name: str) -> None:
    """Two rails, one of which loses everything from the middle of a read on: every byte comes, some by the other."""
    (port,) = free_ports(1)
    cut = {
        "transports": TWO_RAILS,
        "allow_faults": True,
        "faults": "rail=1 op=READ blackhole after_bytes=4MiB",
        "metrics": {"listen": f"127.0.0.1:{port}"},
    }
    with Counters(port) as seen:
        CHANNELS[name].read(iterations=9, server_settings={"transports": TWO_RAILS}, client_settings=cut)
    assert seen.most["tent_faults_injected_total"] > 0, "the rail was not cut"
    assert seen.most["tent_reroutes_total"] > 0
    assert seen.most["tent_read_failures_total"] == 0


@pytest.mark.timeout(240)
@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("stands_for", [["-m", "tent", "run", "--as", "nixl", "--", sys.executable], []])
def test_pages_come_back_from_the_files_of_its_storage(mode: str, stands_for: list[str]) -> None:
    """Also over NIXL itself, so that a difference is ours."""
    if not stands_for and (missing := why_missing("nixl._api")):
        pytest.skip(f"the real nixl cannot be imported here: {missing}")
    command = [sys.executable, *stands_for, str(Path(__file__).with_name("storage.py")), mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.stdout.splitlines()[-1:] == ["24 of 24 pages"], done.stdout[-3000:] + done.stderr[-3000:]
    assert ("stands for nixl" in done.stderr) == bool(stands_for)
