"""Moves ranges to and from another process again and again: `counted.py tcp|shm|own|file|cached BYTES RANGES TIMES`. It
prints how often threads of both processes went to sleep meanwhile. "own" is memory that the peer registers itself, and
"cached" READs a file that the page cache has. `counted.py peer tcp|shm|own BYTES` is the other process."""

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


def move(engine: tent.Engine, there: tent.Segment, size: int, ranges: int, times: int, reads: bool = False) -> None:
    region, at = engine.allocate(size * ranges), [i * size for i in range(ranges)]
    for i in range(times):
        call = engine.read_ranges if reads or i % 2 else engine.write_ranges
        assert call(region, at, there, at, [size] * ranges).result(60) == size * ranges


def peer(kind: str, size: int) -> None:
    with tent.Engine(settings(kind)) as engine, contextlib.ExitStack() as stack:
        if kind == "own":
            stack.enter_context(engine.register(bytearray(size), name="kv"))
        else:
            stack.enter_context(engine.allocate(size, name="kv"))
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


def in_a_file(engine: tent.Engine, kind: str, size: int, ranges: int, times: int) -> int:
    cached = kind == "cached"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kv"
        path.write_bytes(bytes(size * ranges))  # which leaves them in the page cache
        with engine.open(path, readonly=cached) as there:
            before = sleeps(os.getpid())
            move(engine, there, size, ranges, times, reads=cached)
            return sleeps(os.getpid()) - before


def main() -> None:
    if sys.argv[1] == "peer":
        return peer(sys.argv[2], int(sys.argv[3]))
    kind, (size, ranges, times) = sys.argv[1], map(int, sys.argv[2:])
    with tent.Engine(settings(kind)) as engine:
        work = in_a_file if kind in ("file", "cached") else beside_a_peer
        return print(work(engine, kind, size, ranges, times))


main()
