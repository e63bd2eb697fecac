"""The system calls and the sleeps of threads that a transfer costs, counted. They stay within some four times of the
figures that were seen when the bounds were set: a path that is lost shows here, and on a busy machine, too. Allocations
are those of TestNothingIsAllocatedBetweenSubmitAndCompletion."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "counted.py"
FEW, MANY = 100, 500
MOVING = (
    *("sendmsg", "recvmsg", "sendto", "writev", "io_uring_enter", "preadv2", "pwritev2"),
    *("process_vm_readv", "process_vm_writev"),
)
# Those of the Go runtime's threads and of looks that find nothing: a busy machine has many more of them.
LOOKING = ("nanosleep", "sched_yield")

# System calls a transfer: those that move bytes, and all; sleeps of threads, of which Go's own have more the longer a
# transfer waits for a processor. Both processes count.
WORKS = [
    ("tcp", 4096, 1, 4, 50, 50),  # 2, 9, 0.9
    ("tcp", 4096, 64, 8, 100, 50),  # 3, 15, 3
    ("tcp", 1 << 20, 1, 14, 100, 50),  # 4.6, 18, 4
    ("shm", 4096, 1, 0.2, 4, 10),  # 0, 0.1, 0.2
    ("file", 65536, 1, 6, 60, 60),  # 2, 11, 6
]


def run(kind: str, size: int, ranges: int, times: int, *tracer: str) -> int:
    command = [*tracer, sys.executable, str(PROGRAM), kind, str(size), str(ranges), str(times)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def counted(summary: Path) -> dict[str, int]:
    """The calls of a summary of `strace -c` that were no errors, by name. Its lines: share, seconds, µs a call, calls,
    errors if there are any, name."""
    lines = [line.split() for line in summary.read_text().splitlines() if re.match(r"\s*\d+\.\d\d\s", line)]
    calls = {words[-1]: int(words[3]) - (int(words[4]) if len(words) == 6 else 0) for words in lines}
    return {name: n for name, n in calls.items() if name not in (*LOOKING, "total")}


@pytest.fixture(scope="session")
def tracer() -> str:
    path = shutil.which("strace")
    if path is None or subprocess.run([path, "-f", "true"], capture_output=True).returncode:
        pytest.skip("not run: strace is not here, or may not trace")
    return path


@pytest.mark.parametrize(("kind", "size", "ranges", "moving", "calls"), [work[:5] for work in WORKS])
def test_system_calls_of_a_transfer(
    tracer: str, tmp_path: Path, kind: str, size: int, ranges: int, moving: float, calls: float
) -> None:
    totals = []
    for times in (FEW, MANY):
        summary = tmp_path / str(times)
        run(kind, size, ranges, times, tracer, "-f", "-c", "-qq", "-o", str(summary))
        totals.append(counted(summary))
    few, many = totals
    each = {name: (n - few.get(name, 0)) / (MANY - FEW) for name, n in many.items()}
    assert sum(few.values()) > 500, "the program's own begin is among them"
    assert sum(each.get(name, 0.0) for name in MOVING) <= moving, each
    assert sum(each.values()) <= calls, each


@pytest.mark.parametrize(("kind", "size", "ranges", "sleeps"), [(*work[:3], work[5]) for work in WORKS])
def test_sleeps_of_a_transfer(kind: str, size: int, ranges: int, sleeps: float) -> None:
    assert run(kind, size, ranges, MANY) / MANY <= sleeps
