"""NVIDIA's Dynamo: its own users of NIXL, and its table of vLLM's connectors.

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

KNOWN = """
import dynamo.vllm
from tent.integrations import registration
from dynamo.vllm.kv_connector_protocols import make_kv_connector_protocol as protocol
from types import SimpleNamespace as Of

def of(name):
    return protocol(Of(kv_transfer_config=Of(kv_connector=name))).prefill_request_kv_transfer_params()

registration.register_vllm()
assert of("TentConnector") == of("NixlConnector")
"""


def run(word: str, tents: bool) -> dict[str, Any]:
    if not tents and (missing := why_missing("nixl._api")):
        pytest.skip(f"the real nixl cannot be imported here: {missing}")
    prefix = ["-m", "tent", "run", "--as", "nixl", "--", sys.executable] if tents else []
    command = [sys.executable, *prefix, str(Path(__file__).with_name("dynamo_sides.py")), word]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1000)
    said = done.stdout[-3000:] + done.stderr[-3000:]
    assert ("stands for nixl" in done.stderr) == tents, said
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert answers, said
    end = answers[-1].pop("end")
    if tents:  # NIXL 1.5.1 itself ends by SIGSEGV behind all of this
        assert (done.returncode, end) == (0, 0), said
    return dict(answers[-1])


@pytest.mark.timeout(1100)
@pytest.mark.parametrize("tents", [True, False], ids=["tent-as-nixl", "nixl"])
def test_descriptors_are_read_and_written_and_a_lost_owner_has_a_successor(tents: bool) -> None:
    seen, whole = run("connect", tents), [True] * 12
    assert seen.pop("lost") in {"nixlRemoteDisconnectError"} | (set() if tents else {"nixlBackendError"})
    assert seen == {"whole": whole, "successor": whole}


@pytest.mark.timeout(1100)
@pytest.mark.parametrize("tents", [True, False], ids=["tent-as-nixl", "nixl"])
@pytest.mark.parametrize("word", ["read", "write"])
def test_outputs_of_encoders_come_whole(word: str, tents: bool) -> None:
    assert run(word, tents) == {"whole": [True] * 8}


def test_its_servers_of_vllm_know_the_connector() -> None:
    done = subprocess.run([sys.executable, "-c", KNOWN], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
