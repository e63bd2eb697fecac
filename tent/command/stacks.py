"""`tent run` and `tent compat`: tent in the place of the modules that a stack imports."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import tent
from tent import compat

from .. import settings
from .._settings import Given
from .._transports import HINTS

VARIABLE = "TENT_CONF"


def show(options: argparse.Namespace) -> int:
    """Prints the entries of PYTHONPATH under which Python finds tent in the place of NIXL and Mooncake."""
    print(compat.path(options.names or compat.NAMES))
    return 0


def run(options: argparse.Namespace) -> int:
    """Starts a command in which tent stands for NIXL and Mooncake, in the processes that it spawns too."""
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise tent.InvalidArgumentError("there is no command to run", hint="tent run --as nixl -- vllm serve MODEL")
    program = shutil.which(command[0])
    if program is None:
        raise tent.InvalidArgumentError(f"there is no program {command[0]!r} on PATH")
    environment = dict(os.environ)
    entries = [compat.path(options.names), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in entries if entry)
    merged = _settings(options, environment.get(VARIABLE, ""))
    if merged:
        environment[VARIABLE] = json.dumps(merged)
    sys.stdout.flush()
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python alone: the program would inherit it
        signal.signal(ignored, signal.SIG_DFL)
    os.execve(program, command, environment)


def _settings(options: argparse.Namespace, known: str) -> dict[str, Any]:
    """The settings of the command's engines: those of the environment, then --config, then --security-key. The later
    one counts for a setting that several have; all others stay."""
    merged: dict[str, Any] = {}
    for text, where in ((known, VARIABLE), (options.config or "", "--config")):
        _merge(merged, _parsed(text.strip(), where), where)
    if options.security_key:
        key = Path(options.security_key).resolve()
        if not key.is_file():
            raise tent.InvalidArgumentError(f"--security-key: there is no file {key}")
        _merge(merged, {"security/cluster_key": str(key)}, "--security-key")
    return merged


def _merge(merged: dict[str, Any], more: dict[str, Any], where: str) -> None:
    """Adds settings as the engine does. Their keys are paths or nested objects; the result is nested. A null says
    nothing, nor does a branch without keys, and a transport has one branch whichever of its names is used."""
    seen = set()
    for path, value in _leaves(more):
        if path in _whole() or value not in (None, {}):
            if path in seen:
                raise tent.InvalidArgumentError(
                    f"{where}: {path} is given twice, as a path and as an object, or under two names"
                )
            if value is not None:
                seen.add(path)
        *branches, name = path.split("/")
        at = merged
        for branch in branches:
            if at.get(branch) is None:
                at[branch] = {}
            at = at[branch]
            if not isinstance(at, dict):
                raise tent.InvalidArgumentError(f"{where}: {path!r} lies below {branch!r}, which is a value already")
        if value is None or (value == {} and path not in _whole() and isinstance(at.get(name), dict)):
            at.setdefault(name, value)
        else:
            at[name] = value


def _leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values by their paths, in the engine's names and order."""
    for key, value in sorted(tree.items()):
        path = _canonical(prefix + key)
        if isinstance(value, dict) and value and path not in _whole():
            yield from _leaves(value, path + "/")
        else:
            yield path, value


@cache
def _whole() -> frozenset[str]:
    """The keys of values that the engine takes as a whole, objects too."""
    keys = frozenset(Given.__annotations__)
    return keys - {"/".join(key.split("/")[:n]) for key in keys for n in range(1, key.count("/") + 1)}


def _canonical(path: str) -> str:
    """The path with the name that the engine has for a transport."""
    top, _, rest = path.partition("/")
    name, slash, below = rest.partition("/")
    if top != "transports" or name not in HINTS:
        return path
    same = (other for other, number in HINTS.items() if number == HINTS[name])
    return f"transports/{next((n for n in same if f'transports/{n}/enable' in _whole()), name)}{slash}{below}"


def _parsed(text: str, where: str) -> dict[str, Any]:
    if not text:
        return {}
    if text.startswith("{"):
        return settings.parsed(text, where)
    try:
        return settings.parsed(settings.read(text), f"{where} {text}")
    except OSError as error:
        raise tent.InvalidArgumentError(f"{where}: {error}") from None
