"""Ray's direct transport: tensors of one actor in another one.

They move over tent by its own name and in NIXL's place, and over NIXL itself, so that a difference is ours.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from channel import why_missing

WAYS = {"tent": ("tent", []), "tent-as-nixl": ("nixl", ["-m", "tent", "run", "--as", "nixl", "--", sys.executable])}


@pytest.mark.timeout(480)
@pytest.mark.parametrize("way", [*WAYS, "nixl"])
def test_tensors_of_an_actor_come_whole(way: str) -> None:
    if way == "nixl" and (missing := why_missing("nixl._api")):
        pytest.skip(f"the real nixl cannot be imported here: {missing}")
    transport, prefix = WAYS.get(way, ("nixl", []))
    command = [sys.executable, *prefix, str(Path(__file__).with_name("ray_tensors.py")), transport]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    said = done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode == 0, said
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen.pop("module").startswith("tent.") == (way in WAYS), said
    whole = [True] * 8
    assert seen == {
        "whole": whole, "from a pool": whole, "into buffers": True, "lost": "RayDirectTransportError", "successor": True
    }, said  # fmt: skip
