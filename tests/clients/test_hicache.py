"""SGLang's HiCache with its storage `nixl`, a file a page: its own class, over tent and over NIXL itself."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from channel import why_missing

WHOLE = {
    "names paths": True, "at first": 0, "set": [True] * 4, "exist": 4, "get": [True] * 4, "right": True,
    "get absent": [False] * 2, "untouched": True, "set again": [True] * 2, "get both": [True] * 4, "both right": True,
    "cleared": 0,
}  # fmt: skip


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("tents", [True, False], ids=["tent-as-nixl", "nixl"])
def test_pages_come_back_as_they_were_set(tmp_path: Path, tents: bool) -> None:
    for module in ("sglang", *(() if tents else ("nixl._api",))):
        if missing := why_missing(module):
            pytest.skip(f"{module} cannot be imported here: {missing}")
    prefix = ["-m", "tent", "run", "--as", "nixl", "--", sys.executable] if tents else []
    command = [sys.executable, *prefix, str(Path(__file__).with_name("hicache_side.py")), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    said = done.stdout[-3000:] + done.stderr[-3000:]
    assert ("stands for nixl" in done.stderr) == tents, said
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    ways = itertools.product((True, False), (True, False))
    assert answers == [{**WHOLE, "zero-copy": zero_copy, "direct": direct} for zero_copy, direct in ways], said
