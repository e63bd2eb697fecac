"""The names of the real nixl and mooncake are tent's: a method that they gain, or an argument, is found here."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from channel import why_missing

from tent import compat
from tent.compat import mooncake, nixl

# The real modules describe themselves in a process of their own, which some of them do not end well.
NIXL = """
import inspect, json, os
from nixl._api import nixl_agent, nixl_agent_config

listed = {f"{kind.__name__}.{name}": list(inspect.signature(call).parameters)
          for kind in (nixl_agent, nixl_agent_config) for name, call in vars(kind).items()
          if inspect.isfunction(call) and (name == "__init__" or not name.startswith("_"))}
print(json.dumps(listed), flush=True)
os._exit(0)
"""
MOONCAKE = """
import json, os, re
from mooncake import engine

def arguments(call):
    (inside,) = re.match(r"\\w+\\((.*)\\) ->", call.__doc__.strip()).groups()
    return [word.partition(":")[0].strip() for word in re.split(r", (?=\\w+:)", inside)]

listed = {name: arguments(call) for name, call in vars(engine.TransferEngine).items()
          if not name.startswith("_") and name != "TransferOpcode"}
print(json.dumps(listed), flush=True)
os._exit(0)
"""


def described(module: str, program: str) -> dict[str, list[str]]:
    if missing := why_missing(module):
        pytest.skip(f"the real {module} cannot be imported here: {missing}")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    listed: dict[str, list[str]] = json.loads(done.stdout)
    assert len(listed) > 20
    return listed


def parameters(call: Any) -> list[str]:
    return list(inspect.signature(call).parameters)


def test_nixls_agent_has_every_method_and_argument() -> None:
    for path, names in described("nixl", NIXL).items():
        kind, _, name = path.partition(".")
        ours = parameters(getattr(getattr(nixl, kind), name))
        assert ours[: len(names)] == names, path


def test_mooncakes_engine_has_every_method_and_argument() -> None:
    """Upstream's names count where it has names: "arg0" may be given by its place alone."""
    for name, names in described("mooncake.engine", MOONCAKE).items():
        ours = parameters(getattr(mooncake.TransferEngine, name))
        if ours == ["self", "arguments", "keywords"] or name == "get_engine_ptr":
            continue  # it raises
        assert len(ours) >= len(names), name
        assert all(theirs.startswith("arg") or theirs == own for theirs, own in zip(names, ours)), (name, names, ours)


def test_calls_of_nixl_have_their_outcomes() -> None:
    """Results, messages and classes of errors, of calls that are right and wrong."""
    if missing := why_missing("nixl"):
        pytest.skip(f"the real nixl cannot be imported here: {missing}")
    program = Path(__file__).with_name("calls_of_nixl.py")

    def outcomes(**variables: str) -> list[Any]:
        done = subprocess.run(
            [sys.executable, program], capture_output=True, text=True, timeout=120, env=os.environ | variables
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]

    real = outcomes()
    assert len(real) > 50
    before = os.environ.get("PYTHONPATH", "")
    assert outcomes(PYTHONPATH=os.pathsep.join([compat.path(["nixl"]), before])) == real
