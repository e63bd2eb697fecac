"""`tent run` and `tent compat`: tent in the place of the modules that a stack imports."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import tent
from tent import compat

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
    settings = _settings(options, environment.get(VARIABLE, ""))
    if settings:
        environment[VARIABLE] = json.dumps(settings)
    sys.stdout.flush()
    os.execve(program, command, environment)


def _settings(options: argparse.Namespace, known: str) -> dict[str, Any]:
    """The settings of the command's engines: those of the environment, then --config, then --security-key. The later
    one counts for a setting that several have; all others stay."""
    settings: dict[str, Any] = {}
    for text, where in ((known, VARIABLE), (options.config or "", "--config")):
        _merge(settings, _parsed(text.strip(), where), where)
    if options.security_key:
        key = Path(options.security_key).resolve()
        if not key.is_file():
            raise tent.InvalidArgumentError(f"--security-key: there is no file {key}")
        _merge(settings, {"security/cluster_key": str(key)}, "--security-key")
    return settings


def _merge(settings: dict[str, Any], more: dict[str, Any], where: str) -> None:
    """Adds settings, whose keys are paths or nested objects; the result is nested."""
    for path, value in more.items():
        *branches, name = path.split("/")
        at = settings
        for branch in branches:
            at = at.setdefault(branch, {})
            if not isinstance(at, dict):
                raise tent.InvalidArgumentError(f"{where}: {path!r} lies below {branch!r}, which is a value already")
        if isinstance(value, dict) and isinstance(at.get(name, {}), dict):
            _merge(at.setdefault(name, {}), value, where)
        else:
            at[name] = value


def _parsed(text: str, where: str) -> dict[str, Any]:
    if not text:
        return {}
    if not text.startswith("{"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except OSError as error:
            raise tent.InvalidArgumentError(f"{where}: {error}") from None
    try:
        return dict(json.loads(text))
    except (TypeError, ValueError) as error:
        raise tent.InvalidArgumentError(f"{where} has no JSON object: {error}") from None
