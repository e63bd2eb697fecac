"""make bench-all: every table of docs/performance anew, one benchmark after the other, and the rows that became worse.

bench_all.py [--only NAME ...]

A benchmark that needs what this machine lacks (root, fio, other engines) fails by its name; the others go on. The
output is in build/bench-all/NAME.log. A row became worse if its 95 % interval lies wholly beyond that of the table
that was there before, so two tables of different machines say little. Where one has no interval, as counts have none,
it became worse if it reached its target then and does not now. The numbers of rows that were compared in either way,
and of those that were not, are said for each table.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import docs_tables
import table
from interpreters import ROOT

FOLDER = docs_tables.FOLDER
LOGS = ROOT / "build" / "bench-all"
# By the name of its table: the target of make, the minutes that it takes here, and its arguments.
BENCHMARKS = {
    "tcp": ("bench", 1, "--only tcp --json {}"),
    "host": ("bench", 1, "--only host --json {}"),
    "peers": ("bench-peers", 1, "--json {}"),
    "security": ("bench-security", 1, "--json {}"),
    "handshakes": ("bench-handshakes", 9, "-json {}"),
    "file": ("bench-file", 2, "--json {}"),
    "restore": ("bench-restore", 4, "--json {}"),
    "failover": ("bench-failover", 37, "-json {}"),
    "qos": ("bench-qos", 13, "-rounds 3 -json {}"),
    "rdma": ("bench-rdma", 10, "-json {}"),
    "scale": ("bench-scale", 6, "-json {} -plot docs/performance/scale.svg"),
    "staging": ("bench-staging", 1, "-json {} -plot docs/performance/staging.svg"),
    "clients": ("bench-clients", 25, "--only vllm --json {}"),
    "posts": ("bench-clients", 15, "--only many --json {}"),
    "mooncake": ("bench-clients", 5, "--only vllm --ways tent-as-mooncake,mooncake --json {}"),
    "lmcache": ("bench-clients", 2, "--only lmcache --json {}"),
}
ELSEWHERE = {"gpu": "check-gpu"}  # tables of other machines, by their targets: they stay as they are


def run(name: str) -> int:
    """Runs one benchmark, with a line a second that says how long it has taken. Returns its exit status."""
    target, minutes, arguments = BENCHMARKS[name]
    words = arguments.format(f"docs/performance/{name}.json")
    LOGS.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with (LOGS / f"{name}.log").open("wb") as log:
        command = ["make", "--no-print-directory", target, f"ARGS={words}"]
        with subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True) as child:
            try:
                while child.poll() is None:
                    tell(f"{name}: {time.monotonic() - begun:.0f} s of some {minutes * 60}", end="\r")
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(1)
            finally:  # a run that is stopped stops its programs: they would measure on, and disturb the next
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGTERM)
    outcome = "done" if child.returncode == 0 else f"failed, see {LOGS / name}.log"
    tell(f"{name}: {outcome} in {time.monotonic() - begun:.0f} s")
    return child.returncode


def tell(text: str, end: str = "\n") -> None:
    """Says a line; one that is written over only where somebody looks at a terminal."""
    if end == "\n" or sys.stderr.isatty():
        print(f"{text:<60}", end=end, file=sys.stderr, flush=True)


def previous(path: Path) -> table.Table | None:
    return table.read(path) if path.exists() else None


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs every benchmark and renews docs/performance.")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS), metavar="NAME")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    failed, worse, compared = [], [], []
    for name in args.only:
        path = FOLDER / f"{name}.json"
        then = previous(path)
        if run(name):
            failed.append(name)
        elif then is not None:
            now = table.read(path)
            worse += [f"{name}: {line}" for line in table.slower(then, now)]
            compared.append(f"{name}: {table.compared(then, now)}")
    docs_tables.main([])
    print("\n".join(["compared with the run before:", *compared] if compared else ["nothing to compare with"]))
    print("\n".join(["worse than before:", *worse] if worse else ["no row became worse"]))
    if failed:
        print(f"failed: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
