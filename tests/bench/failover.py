"""make bench-failover: builds and runs tests/bench/failover, with whatever arguments follow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import build_gotent  # noqa: E402
import interpreters  # noqa: E402


def main() -> int:
    go = interpreters.go_command()
    program = ROOT / "build" / "bench" / "failover"
    command = [go, "build", "-o", str(program), "./tests/bench/failover"]
    subprocess.run(command, cwd=ROOT, env=build_gotent.go_env(go), check=True)
    return subprocess.run([str(program), *sys.argv[1:]]).returncode


if __name__ == "__main__":
    sys.exit(main())
