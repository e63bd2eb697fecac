"""Ray's direct transport: tensors of one actor in another one, over tent in NIXL's place, and over NIXL itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from channel import why_missing


@pytest.mark.timeout(480)
@pytest.mark.parametrize(
    "prefix", [["-m", "tent", "run", "--as", "nixl", "--", sys.executable], []], ids=["tent", "nixl"]
)
def test_tensors_of_an_actor_come_whole(prefix: list[str]) -> None:
    if not prefix and (missing := why_missing("nixl._api")):
        pytest.skip(f"the real nixl cannot be imported here: {missing}")
    command = [sys.executable, *prefix, str(Path(__file__).with_name("ray_tensors.py"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    said = done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode == 0, said
    seen = json.loads(done.stdout.splitlines()[-1])
    assert ("tent/compat" in seen.pop("module")) == bool(prefix), said
    whole = [True] * 8
    assert seen == {
        "whole": whole, "from a pool": whole, "into buffers": True, "lost": "RayDirectTransportError", "successor": True
    }, said  # fmt: skip
