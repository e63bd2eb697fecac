"""Moves ranges to and from another process again and again: `counted.py tcp|shm|file BYTES RANGES TIMES`. It prints how
often threads of both processes went to sleep meanwhile. `counted.py peer tcp|shm BYTES` is the other process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import tent


def settings(kind: str) -> dict[str, object]:
    return {"transports": {"shm": {"enable": kind != "tcp"}}, "log_level": "error"}


def sleeps(*processes: int) -> int:
    """Those of the threads that are there now."""
    total = 0
    for status in (path for pid in processes for path in Path(f"/proc/{pid}/task").glob("*/status")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that ends meanwhile
            words = status.read_text().split()
            total += int(words[words.index("voluntary_ctxt_switches:") + 1])
    return total


def move(engine: tent.Engine, there: tent.Segment, size: int, ranges: int, times: int) -> None:
    region, at = engine.allocate(size * ranges), [i * size for i in range(ranges)]
    for i in range(times):
        call = engine.read_ranges if i % 2 else engine.write_ranges
        assert call(region, at, there, at, [size] * ranges).result(60) == size * ranges


def peer(kind: str, size: int) -> None:
    with tent.Engine(settings(kind)) as engine, engine.allocate(size, name="kv"):
        print(f"{engine.address}/kv", flush=True)
        sys.stdin.read()


def beside_a_peer(engine: tent.Engine, kind: str, size: int, ranges: int, times: int) -> int:
    command = [sys.executable, __file__, "peer", kind, str(size * ranges)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        with engine.open(child.stdout.readline().strip()) as there:
            before = sleeps(os.getpid(), child.pid)
            move(engine, there, size, ranges, times)
            slept = sleeps(os.getpid(), child.pid) - before
        child.stdin.close()
    return slept


def in_a_file(engine: tent.Engine, size: int, ranges: int, times: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        with engine.open(f"file://{folder}/kv", create=True, size=size * ranges) as there:
            before = sleeps(os.getpid())
            move(engine, there, size, ranges, times)
            return sleeps(os.getpid()) - before


def main() -> None:
    if sys.argv[1] == "peer":
        return peer(sys.argv[2], int(sys.argv[3]))
    kind, (size, ranges, times) = sys.argv[1], map(int, sys.argv[2:])
    with tent.Engine(settings(kind)) as engine:
        slept = in_a_file(engine, size, ranges, times) if kind == "file" else beside_a_peer(
            engine, kind, size, ranges, times
        )
    return print(slept)


main()
