"""A rail that breaks again and again under transfers is noticed by nobody but the metrics."""

from __future__ import annotations

import ipaddress
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest

import tent
from tent.testing import Memory


@pytest.mark.skipif(shutil.which("ss") is None, reason="ss (iproute2) is what breaks the connections")
def test_a_rail_that_is_broken_again_and_again_costs_no_transfer(
    engines: Callable[..., tent.Engine], keep: Any, seed: int
) -> None:
    # ss ends all connections of an address, of any process: this one is the process's own.
    own = str(ipaddress.IPv4Address("127.1.0.0") + os.getpid())
    settings = {"tcp": {"addresses": ["127.0.0.1", own]}, "shm": {"enable": False}}
    near, far = engines(transports=settings), engines(transports=settings)
    mine, theirs = Memory(32 << 20, seed), Memory(32 << 20, seed + 1)
    local = keep(near.register(mine.view))
    keep(far.register(theirs.view, name="kv"))
    peer = near.open(far.address)
    ended = threading.Event()

    def breaks() -> None:  # an interval, so that transfers meet whole and broken rails alike
        while not ended.wait(0.02):
            subprocess.run(["ss", "-K", "src", own], capture_output=True, timeout=10)

    breaker = threading.Thread(target=breaks)
    breaker.start()
    try:
        for _ in range(30):
            assert near.write(local[:], peer["kv"][:]).result(30) == 32 << 20
    finally:
        ended.set()
        breaker.join()
    if near.metrics()["tent_rail_errors_total"] == 0:
        pytest.skip("ss may not end connections here (it needs root and a kernel that lets it)")
    theirs.expect(0, mine.expected)
    theirs.check()
    mine.check()
