"""Builds a benchmark written in Go and runs it with the arguments that follow: gorun.py failover -runs 20."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import build_gotent
import interpreters


def main() -> int:
    if len(sys.argv) < 2:
        sys.exit("usage: gorun.py NAME [ARGUMENTS], where NAME is a folder beside this file")
    name, *arguments = sys.argv[1:]
    go = interpreters.go_command()
    program = ROOT / "build" / "bench" / name
    command = [go, "build", "-o", str(program), f"./tests/bench/{name}"]
    subprocess.run(command, cwd=ROOT, env=build_gotent.go_env(go), check=True)
    return subprocess.run([str(program), *arguments]).returncode


if __name__ == "__main__":
    sys.exit(main())
