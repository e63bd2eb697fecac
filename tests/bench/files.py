"""make bench-file: tent on files beside fio and a plain C program, with equal sizes and depths, round by round in turn.

    files.py [--rounds 5] [--folder DIR] [--megabytes 1024] [--rows TEXT] [--json FILE]

The file lies in --folder, a disk; the rows about cached bytes are also run on /dev/shm. The faster of fio and
cfile.c by its median is beside tent. Ratios are medians of pairs of a round. A pool of threads in Go that calls
pread and pwrite stands beside them, for information.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import bootstrap
import build_gotent
import interpreters
from contestant import Contestant, Measured
from rows import KIB, MIB
from run import compiled, show
from table import Entry, rounded, today

Settings = Mapping[str, object]
# Settings of tent's engines: fio's depth, and nothing but the page cache.
DEPTH_8: Settings = {"transports": {"io_uring": {"window_bytes": 8 * MIB}}}
DEPTH_32: Settings = {"transports": {"io_uring": {"depth": 32}}}
CACHED: Settings = {"transports": {"io_uring": {"enable": False}}}
CACHE_ENGINES = ("psync", "pvsync2", "io_uring", "mmap")


@dataclass(frozen=True)
class Shape:
    """One row: the work of tent, that of fio, and the least ratio of the rates (None: reported only)."""

    name: str
    contestant: str  # "go" or "python"
    settings: Settings
    verb: str
    size: int
    count: int
    iterations: int
    threads: int
    fio: tuple[str, ...]  # flags; the engines are tried in turn and the best of a round counts
    engines: tuple[str, ...] = ("io_uring",)
    least: float | None = 0.98
    cpu_most: float | None = None
    plain: tuple[str, int] | None = None  # the verb of cfile.c that does the same, and its depth

    @property
    def total(self) -> int:
        alone = self.threads if self.verb in ("each", "pread", "pwrite") else 1
        return self.size * self.count * self.iterations * alone


def shapes() -> list[Shape]:
    rows = []
    for verb in ("read", "write"):
        flags = (f"--rw={verb}", "--bs=1M", "--direct=1", "--iodepth=8")
        rows.append(
            Shape(
                f"sequential {verb.upper()} 1 MiB, O_DIRECT, depth 8",
                "go",
                DEPTH_8,
                verb,
                MIB,
                32,
                32,
                1,
                flags,
                cpu_most=1.1,
                plain=(verb, 8),
            )
        )
    for verb, paged in (("read", "gather"), ("write", "scatter")):
        flags = (f"--rw=rand{verb}", "--bs=4k", "--direct=1", "--iodepth=32")
        rows.append(
            Shape(
                f"random {verb.upper()} 4 KiB, O_DIRECT, depth 32",
                "go",
                DEPTH_32,
                paged,
                4 * KIB,
                4096,
                8,
                1,
                flags,
                plain=(paged, 32),
            )
        )
    cached = (
        "--rw=read",
        "--bs=64k",
        "--direct=0",
        "--iodepth=8",
        "--numjobs=2",
        "--invalidate=0",
        "--group_reporting",
    )
    rows.append(
        Shape(
            "cached READ 64 KiB, two threads",
            "go",
            CACHED,
            "each",
            64 * KIB,
            4096,
            4,
            2,
            cached,
            CACHE_ENGINES,
            0.95,
            plain=("each", 0),
        )
    )
    pages = ("--rw=randwrite", "--bs=64k", "--direct=1", "--iodepth=32")
    rows.append(
        Shape(
            "4096 pages of 64 KiB by write_pages, from Python",
            "python",
            {},
            "pages",
            64 * KIB,
            4096,
            1,
            1,
            pages,
            least=0.95,
            plain=("scatter", 32),
        )
    )
    plain = ("--rw=read", "--bs=64k", "--direct=0", "--numjobs=2", "--invalidate=0", "--group_reporting")
    rows.append(
        Shape(
            "pool of 2 threads with pread 64 KiB, cached, without tent",
            "go",
            CACHED,
            "pread",
            64 * KIB,
            4096,
            4,
            2,
            plain,
            ("psync",),
            None,
        )
    )
    direct = ("--rw=write", "--bs=1M", "--direct=1", "--numjobs=1", "--iodepth=8")
    rows.append(
        Shape(
            "pool of 8 threads with pwrite 1 MiB, O_DIRECT, without tent",
            "go",
            CACHED,
            "pwrite",
            MIB,
            64,
            1,
            8,
            direct,
            least=None,
        )
    )
    return rows


def fio(path: Path, shape: Shape, engine: str) -> Measured:
    """One run of fio that moves as many bytes; its own account of time and processor."""
    jobs = shape.threads if any(f.startswith("--numjobs=2") for f in shape.fio) else 1
    command = [
        "fio",
        "--name=bench",
        f"--filename={path}",
        f"--size={path.stat().st_size // jobs}",
        f"--offset_increment={path.stat().st_size // jobs}",  # each job has its part of the file, as tent's threads
        f"--io_size={shape.total // jobs}",
        f"--ioengine={engine}",
        "--output-format=json",
        *shape.fio,
    ]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    job = json.loads(text[text.index("{") :])["jobs"][0]
    side = job["read"] if job["read"]["io_bytes"] else job["write"]
    nanoseconds = int(side["io_bytes"] / side["bw_bytes"] * 1e9)
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3
    return Measured((nanoseconds,), side["io_bytes"], cpu)


def evict(path: Path) -> None:
    """Takes the file out of the page cache, where READs past it would find their bytes first."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def ours(contestant: Contestant, shape: Shape) -> Measured:
    got = contestant.measure(shape.verb, shape.size, shape.count, shape.iterations, shape.threads)
    return Measured(got.batches, shape.total, got.cpu_seconds)


def build() -> Path:
    target = ROOT / "build" / "bench" / "filebench"
    target.parent.mkdir(parents=True, exist_ok=True)
    compiled("cfile", target.parent)
    go = interpreters.go_command()
    subprocess.run(
        [go, "build", "-o", target, "./tests/bench/filebench"], cwd=ROOT, env=build_gotent.go_env(go), check=True
    )
    return target


def start(stack: contextlib.ExitStack, program: Path, shape: Shape, path: Path) -> Contestant:
    command = [str(program)] if shape.contestant == "go" else [sys.executable, str(HERE / "filepy.py")]
    return stack.enter_context(
        contextlib.closing(Contestant(shape.name, [*command, json.dumps(shape.settings), str(path)]))
    )


def beside(stack: contextlib.ExitStack, program: Path, shape: Shape, path: Path) -> list[Callable[[], Measured]]:
    """The others: each engine of fio, and the plain program where it has the verb. A call is one round of one."""
    engines: list[Callable[[], Measured]] = [partial(fio, path, shape, engine) for engine in shape.engines]
    if shape.plain is None:
        return engines
    verb, depth = shape.plain
    command = [str(program.with_name("cfile")), str(depth), str(path)]
    floor = stack.enter_context(contextlib.closing(Contestant("cfile", command)))

    def plain() -> Measured:
        got = floor.measure(verb, shape.size, shape.count, shape.iterations, shape.threads if depth == 0 else 0)
        return Measured(got.batches, shape.total, got.cpu_seconds)

    return [*engines, plain]


def file_system(folder: Path) -> str:
    """The kind of file system that a folder is on, as in "ext4"."""
    command = ["df", "--output=fstype", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]


def make(folder: Path, megabytes: int) -> Path:
    """A file of random bytes: zeroes are moved faster than anything else."""
    path = folder / "tent-bench.bin"
    with path.open("wb") as out:
        for _ in range(megabytes):
            out.write(os.urandom(MIB))
        out.flush()
        os.fsync(out.fileno())
    return path


def compare(shape: Shape, program: Path, path: Path, rounds: int) -> Entry:
    ours_by_round: list[Measured] = []
    with contextlib.ExitStack() as stack:
        contestant, rivals = start(stack, program, shape, path), beside(stack, program, shape, path)
        theirs_by_round: list[list[Measured]] = [[] for _ in rivals]
        for number in range(rounds + 1):
            runs: list[Callable[[], Measured]] = [*rivals, partial(ours, contestant, shape)]
            found = []
            for run in runs:
                if "--direct=1" in shape.fio:
                    evict(path)
                found.append(run())
            if number == 0:
                continue  # warms the caches of all
            ours_by_round.append(found.pop())
            for one, got in zip(theirs_by_round, found, strict=True):
                one.append(got)
    # The rival that is the fastest by its median: the fastest of each round would be the luckiest.
    best = max(theirs_by_round, key=lambda one: statistics.median(m.bytes_per_second for m in one))
    pairs = list(zip(ours_by_round, best, strict=True))
    figures, theirs = ([m.bytes_per_second / 1e9 for m in side] for side in (ours_by_round, best))
    rates = [a.bytes_per_second / b.bytes_per_second for a, b in pairs]
    cpus = [a.cpu_seconds_per_gb / max(b.cpu_seconds_per_gb, 1e-9) for a, b in pairs]
    ratio, cpu = statistics.median(rates), statistics.median(cpus)
    reached = (shape.least is None or ratio >= shape.least) and (shape.cpu_most is None or cpu <= shape.cpu_most)
    wanted = (
        "reported"
        if shape.least is None
        else f"≥ {shape.least:g}" + (f", CPU ≤ {shape.cpu_most:g}" if shape.cpu_most else "")
    )
    return Entry(
        shape.name,
        "GB/s",
        ours=rounded(statistics.median(figures)),
        theirs=rounded(statistics.median(theirs)),
        ratio=rounded(ratio),
        difference=None,
        cpu_ratio=rounded(cpu),
        target=wanted,
        reached="yes" if reached else "no",
        interval=bootstrap.of_median(rates),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures tent on files beside fio and C.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=ROOT / "build", help="on the disk that is measured")
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the file")
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--json", type=Path, help="file for the table, as docs/performance has it")
    args = parser.parse_args()
    if shutil.which("fio") is None:
        print(
            "bench-file: fio is missing: install your distribution's fio (Debian: apt-get install fio).",
            file=sys.stderr,
        )
        return 2
    program = build()
    chosen = [s for s in shapes() if args.rows in s.name]
    measured: list[Entry] = []
    for folder, rows in (
        (args.folder, chosen),
        (Path("/dev/shm"), [s for s in chosen if s.settings is CACHED and s.verb != "pwrite"]),
    ):
        if not rows or not folder.is_dir():
            continue
        path = make(folder, args.megabytes)
        try:
            for shape in rows:
                entry = compare(shape, program, path, max(1, args.rounds))
                measured.append(entry if folder == args.folder else replace(entry, name=f"{entry.name}, {folder}"))
                print(shape.name, "done", file=sys.stderr, flush=True)
        finally:
            path.unlink()
    machine = f"{file_system(args.folder)}, {os.cpu_count()} cores, Linux {platform.release()}, {args.rounds} rounds"
    show(today("bench-file", sys.argv[1:], machine, measured), args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
