"""vLLM's other users of NIXL and Mooncake, its own classes: a tier of offloading, and two caches of encoders' outputs.

They run over tent, and over NIXL and Mooncake themselves, so that a difference is ours.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from channel import why_missing


def run(word: str, tents: bool, module: str) -> dict[str, Any]:
    if not tents and (missing := why_missing(module)):
        pytest.skip(f"the real {module} cannot be imported here: {missing}")
    name = module.partition(".")[0]
    prefix = ["-m", "tent", "run", "--as", name, "--", sys.executable] if tents else []
    command = [sys.executable, *prefix, str(Path(__file__).with_name("tier.py")), word]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    said = done.stdout[-3000:] + done.stderr[-3000:]
    assert (f"stands for {name}" in done.stderr) == tents, said
    if tents:  # NIXL 1.5.1 itself ends by SIGSEGV behind all of this
        assert done.returncode == 0 and "Exception ignored" not in done.stderr, said
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert answers, said
    return answers[-1]


@pytest.mark.timeout(480)
@pytest.mark.parametrize("tents", [True, False], ids=["tent-as-nixl", "nixl"])
def test_blocks_are_offloaded_to_a_peer_and_to_its_successor(tents: bool) -> None:
    seen = run("p2p", tents, "nixl._api")
    assert (seen["first"], seen["landed"]) == ("", {"7": 1, "9": 2, "200": 3})
    assert re.search("(?i)remote_?disconnect|consecutive transfer failures", seen["lost"]), seen["lost"]
    assert (seen["second"], seen["landed again"]) == ("", {"0": 5, "255": 6})


@pytest.mark.timeout(480)
@pytest.mark.parametrize("tents", [True, False], ids=["tent-as-nixl", "nixl"])
def test_outputs_of_encoders_are_read_and_the_owner_hears_of_it(tents: bool) -> None:
    seen = run("encoder", tents, "nixl._api")
    assert (seen["state"], seen["landed"]) == ("DONE", {"0": 10, "1": 20, "255": 30})
    assert seen["messages"] == "{'prefill': [b'done 1']}"


@pytest.mark.timeout(480)
@pytest.mark.parametrize("tents", [True, False], ids=["tent-as-mooncake", "mooncake"])
def test_outputs_of_encoders_are_written_from_rows_that_are_registered_for_it(tents: bool) -> None:
    seen = run("embedding", tents, "mooncake.engine")
    assert seen == {"landed": {"10": 1, "20": 2, "30": 3, "40": 2, "255": 3, "0": 4}, "lost": "RuntimeError"}
