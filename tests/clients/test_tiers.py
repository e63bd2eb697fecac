"""vLLM's other users of NIXL, its own classes: the tier of offloading that writes to peers, and the encoders' cache.

They run over tent, and over NIXL itself, so that a difference is ours.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from channel import why_missing

STANDS_FOR = ["-m", "tent", "run", "--as", "nixl", "--", sys.executable]


def run(word: str, stands_for: list[str]) -> dict[str, Any]:
    if not stands_for and (missing := why_missing("nixl._api")):
        pytest.skip(f"the real nixl cannot be imported here: {missing}")
    command = [sys.executable, *stands_for, str(Path(__file__).with_name("tier.py")), word]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    said = done.stdout[-3000:] + done.stderr[-3000:]
    assert ("stands for nixl" in done.stderr) == bool(stands_for), said
    if stands_for:  # NIXL 1.5.1 itself ends by SIGSEGV behind all of this
        assert done.returncode == 0 and "Exception ignored" not in done.stderr, said
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert answers, said
    return answers[-1]


@pytest.mark.timeout(480)
@pytest.mark.parametrize("stands_for", [STANDS_FOR, []], ids=["tent-as-nixl", "nixl"])
def test_blocks_are_offloaded_to_a_peer_and_to_its_successor(stands_for: list[str]) -> None:
    seen = run("p2p", stands_for)
    assert (seen["first"], seen["landed"]) == ("", {"7": 1, "9": 2, "200": 3})
    assert seen["lost"] in ("NIXL_ERR_REMOTE_DISCONNECT", "nixlRemoteDisconnectError")
    assert (seen["second"], seen["landed again"]) == ("", {"0": 5, "255": 6})


@pytest.mark.timeout(480)
@pytest.mark.parametrize("stands_for", [STANDS_FOR, []], ids=["tent-as-nixl", "nixl"])
def test_outputs_of_encoders_are_read_and_the_owner_hears_of_it(stands_for: list[str]) -> None:
    seen = run("encoder", stands_for)
    assert (seen["state"], seen["landed"]) == ("DONE", {"0": 10, "1": 20, "255": 30})
    assert seen["messages"] == "{'prefill': [b'done 1']}"
