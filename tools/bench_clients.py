"""make bench-clients, bench-restore: the environment of `make test-clients`, a fresh wheel beside it, and a benchmark.

bench_clients.py clients|restore [arguments of tests/bench/clients.py, restore.py]
"""

from __future__ import annotations

import os
import subprocess
import sys

import interpreters
import wheels
from stages import TEST_TOOLS

ROOT = interpreters.ROOT


def main() -> int:
    python = interpreters.clients_python(TEST_TOOLS)
    wheel = wheels.build(interpreters.tools_python(), ROOT / "build" / "clients-wheel")
    site = interpreters.beside(python, wheel, "clients-site")
    command = [str(python), str(ROOT / "tests" / "bench" / f"{sys.argv[1]}.py"), *sys.argv[2:]]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": str(site)}).returncode


if __name__ == "__main__":
    sys.exit(main())
