"""make bench: tent beside a plain C and a plain Python program, in one run, round by round in turn.

    run.py [--rounds 7] [--only tcp|host] [--rows TEXT] [--connections 2] [--json FILE]

Every contestant is a pair of processes that is idle when it is not its turn; before it counts, one batch of every
kind of work is verified byte by byte, and one round is thrown away. Ratios are medians of pairs of neighbours.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import socket
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import bootstrap
import build_gotent
import interpreters
from contestant import Contestant, Measured
from rows import HOST_ROWS, KERNEL, MEMCPY, MIB, NT, TCP_ROWS, Row, Work
from table import Entry, Table, rounded, today

# Contestants' memories must not lie a power of two apart, and must hold the largest batch.
ARENA_BYTES = 80 * MIB + 12288


def congestion() -> str:
    """cubic where this process may choose it, else reno. The default may be bbr, which paces, on loopback too."""
    with socket.socket() as probe:
        try:
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        except OSError:
            return "reno"
    return "cubic"


def compiled(name: str, folder: Path) -> Path:
    """The plain program name.c of this folder, compiled into another one."""
    program = folder / name
    compiler = os.environ.get("CC", "gcc")
    subprocess.run([compiler, "-O2", "-o", program, HERE / f"{name}.c", "-lpthread"], check=True)
    return program


def build(needed: set[str]) -> dict[str, list[str]]:
    """Compiles the programs in C and Go, and returns the commands of the contestants that are needed."""
    folder = ROOT / "build" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    kind, arena = congestion(), str(ARENA_BYTES)
    for name in ("cpeer", "cping", "cshm"):
        compiled(name, folder)
    go = interpreters.go_command()
    env = build_gotent.go_env(go)
    subprocess.run([go, "build", "-o", folder / "gobench", "./tests/bench/gobench"], cwd=ROOT, env=env, check=True)
    python, tent = [sys.executable], str(HERE / "tentpy.py")
    commands = {
        "c": [str(folder / "cpeer"), kind, "8", arena],
        **{"c" + mode: [str(folder / "cping"), mode, kind, arena] for mode in ("sleep", "spin")},
        "plain": [*python, str(HERE / "plain.py"), kind, arena],
        "memmove": [*python, str(HERE / "memmove.py"), arena],
        **{mode: [str(folder / "cshm"), mode, arena] for mode in (MEMCPY, NT, KERNEL)},
        "go": [str(folder / "gobench"), "tcp", arena],
        **{"go" + way: [str(folder / "gobench"), way, arena] for way in ("shm", "own")},
        **{mode: [str(folder / "gobench"), mode, arena] for mode in ("insecure", "auth", "sign", "encrypt")},
        **{"py" + way: [*python, tent, way, arena] for way in ("shm", "own")},
        **{name: [*python, tent, way, arena] for name, way in (("tent", "tcp"), ("busy", "busy"))},
    }
    return {name: command for name, command in commands.items() if name in needed}


Figures = dict[tuple[str, Work], list[Measured]]


def plan(rows: list[Row]) -> dict[Work, list[str]]:
    """Which contestants do which work, each once a round, those that are compared next to each other."""
    wanted: dict[Work, list[str]] = {}
    for row in rows:
        for side in row.sides():
            if side.contestant not in wanted.setdefault(side.work, []):
                wanted[side.work].append(side.contestant)
    return wanted


def measure(rows: list[Row], contestants: dict[str, Contestant], rounds: int, connections: int) -> Figures:
    wanted = plan(rows)
    for work, names in wanted.items():
        if work.verb in ("write", "read", "pages"):
            for name in names:
                contestants[name].check(work.verb, work.size, work.count, lanes(work, connections))
    figures: Figures = {}
    for number in range(rounds + 1):
        for work, names in wanted.items():
            order = names if number % 2 else names[::-1]  # nobody always comes second
            for name in order:
                one = contestants[name].measure(
                    work.verb, work.size, work.count, work.iterations, lanes(work, connections)
                )
                if number > 0:
                    figures.setdefault((name, work), []).append(one)
        print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
    return figures


def lanes(work: Work, connections: int) -> int:
    """The last word of a command: regions of pages, or C's connections, one for a small batch."""
    if work.verb == "pages":
        return work.regions
    return connections if work.size * work.count >= MIB else 1


def entries(rows: list[Row], figures: Figures) -> list[Entry]:
    """The figures of each row, and whether it reached its target."""
    measured = []
    for row in rows:
        ours = [row.ours.figure(m) for m in figures[row.ours.contestant, row.ours.work]]
        theirs = row.rivals(figures)
        value, reached, least = row.value(ours, theirs), False, None
        if row.floor is not None:
            floor = [row.floor.figure(m) for m in figures[row.floor.contestant, row.floor.work]]
            reached, least = row.near(ours, floor, theirs), rounded(statistics.median(floor))
        measured.append(
            Entry(
                row.name,
                row.unit,
                ours=rounded(statistics.median(ours)),
                theirs=rounded(statistics.median(theirs)) if theirs else None,
                ratio=rounded(value) if theirs and not row.difference else None,
                difference=rounded(value) if theirs and row.difference else None,
                target=row.target(least),
                reached="" if row.limit is None else "yes" if reached or row.reached(value) else "no",
                interval=interval(row, ours, theirs),
            )
        )
    return measured


def interval(row: Row, ours: list[float], theirs: list[float]) -> tuple[float, float]:
    """That of a row's figure: pairs stay together."""

    def figure(chosen: list[int]) -> float:
        return row.value([ours[i] for i in chosen], [theirs[i] for i in chosen] if theirs else [])

    return bootstrap.interval(len(ours), figure)


def show(table: Table, path: Path | None) -> None:
    """Prints the table, and writes its JSON form where one was asked for."""
    print(table.machine + "\n\n" + table.text())
    judged = [row.reached for row in table.rows if row.target]
    print(f"\n{judged.count('yes')} of {len(judged)} targets reached")
    if path is not None:
        table.write(path)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures tent beside plain programs.")
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count, at least 5")
    parser.add_argument("--only", choices=("tcp", "host"), default="", help="one of the two tables")
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument(
        "--connections", type=int, default=min(2, os.cpu_count() or 1), help="of the C program, as tent's lanes"
    )
    parser.add_argument("--json", type=Path, help="file for the table, as docs/performance has it")
    args = parser.parse_args()
    tables = {"tcp": TCP_ROWS, "host": HOST_ROWS}
    chosen = [table for name, table in tables.items() if args.only in ("", name)]
    rows = [row for table in chosen for row in table if args.rows in row.name]
    with contextlib.ExitStack() as stack:
        contestants = {
            name: stack.enter_context(contextlib.closing(Contestant(name, command)))
            for name, command in build({side.contestant for row in rows for side in row.sides()}).items()
        }
        figures = measure(rows, contestants, max(5, args.rounds), args.connections)
    machine = (
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, {congestion()}, "
        f"{args.connections} connections, {max(5, args.rounds)} rounds, loopback"
    )
    show(today("bench", sys.argv[1:], machine, entries(rows, figures)), args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
