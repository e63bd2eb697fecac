"""LMCache's own benchmark of its peer-to-peer channel, in two processes that verify each byte.

It runs over tent's channel, with tent in the place of the engines, and over the engines, so that a difference is ours.
It needs LMCache, nixl and mooncake-transfer-engine-non-cuda; `make test-clients` has them.
"""

from __future__ import annotations

import importlib.util

import pytest
from channel import CHANNELS, rate


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
