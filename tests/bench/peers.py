"""make bench-peers: tent beside today's published alternatives, in one run, round by round in turn.

    peers.py [--rounds 7] [--rows TEXT] [--json FILE]

NIXL (by its default, and with UCX_TLS=tcp) and Mooncake's transfer engine (over TCP) come from their wheels, each in an
environment of its own under build/peers. Mooncake's wants libibverbs.so.1 (Debian: libibverbs1). All use memory that
the program owns. A library that cannot be installed or does not start is left out and named. Plain C is the floor of
transfers over TCP: a row that is near it has reached its target, too, if that library is no faster than plain C.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from contestant import Contestant
from rows import KIB, MIB, Row, Side, Work, p50_us
from run import ARENA_BYTES, HERE, ROOT, build, congestion, entries, measure, show
from table import today

# Pinned, so that a table names the versions.
WHEELS = {"nixl": ("nixl-cu12==1.5.1", "numpy"), "mooncake": ("mooncake-transfer-engine-non-cuda==0.3.13.post1",)}

FLOOR, CONNECTIONS = "c", 2  # tent has as many on these machines
SHAPES = [(4 * KIB, 1, 1000), (4 * KIB, 64, 200), (64 * KIB, 64, 40), (MIB, 1, 100), (64 * MIB, 1, 5)]


def environment(name: str) -> str:
    """The interpreter of an environment that has the wheel; made at the first use."""
    folder = ROOT / "build" / "peers" / name
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"installing {WHEELS[name][0]} in {folder.relative_to(ROOT)}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        # Without dependencies: NIXL's asks for torch, which is not used here.
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", *WHEELS[name]], check=True)
        (folder / "ready").touch()
    return str(python)


def commands() -> Iterator[tuple[str, list[str]]]:
    ours, theirs, arena = str(HERE / "tentpy.py"), str(HERE / "others.py"), str(ARENA_BYTES)
    yield from build({FLOOR}).items()
    yield "tent", [sys.executable, ours, "tcp", arena]
    yield "pyown", [sys.executable, ours, "own", arena]
    for name in WHEELS:
        try:
            python = environment(name)
        except subprocess.CalledProcessError as error:
            print(f"{name} is left out: {error}", file=sys.stderr, flush=True)
            continue
        yield name, [python, theirs, name, arena]
        if name == "nixl":
            yield "nixl-tcp", ["env", "UCX_TLS=tcp", python, theirs, name, arena]


def rows() -> list[Row]:
    over_tcp = {(4 * KIB, 64): 0.25, (64 * KIB, 64): 0.25, (64 * MIB, 1): 0.4}
    table = []
    for size, count, iterations in SHAPES:
        work = Work("write", size, count, iterations)
        for rival in ("nixl-tcp", "mooncake"):
            limit = over_tcp.get((size, count), 1.0)
            table.append(
                Row(
                    f"over TCP, {work}, beside {rival}",
                    "us",
                    Side("tent", work, p50_us),
                    Side(rival, work, p50_us),
                    limit,
                    floor=Side(FLOOR, work, p50_us) if limit < 1 else None,
                )
            )
    for verb in ("write", "read"):
        for size, count, iterations in SHAPES:
            work = Work(verb, size, count, iterations)
            limit = 0.5 if (size, count) == (4 * KIB, 64) else 1.0
            table.append(
                Row(
                    f"one host, own memory, {work}, beside nixl",
                    "us",
                    Side("pyown", work, p50_us),
                    Side("nixl", work, p50_us),
                    limit,
                )
            )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures tent beside published alternatives.")
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count, at least 5")
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--json", type=Path, help="file for the table, as docs/performance has it")
    args = parser.parse_args()
    wanted = [row for row in rows() if args.rows in row.name]
    needed = {side.contestant for row in wanted for side in row.sides()}
    with contextlib.ExitStack() as stack:
        contestants: dict[str, Contestant] = {}
        for name, command in commands():
            if name not in needed:
                continue
            try:
                contestants[name] = stack.enter_context(contextlib.closing(Contestant(name, command, freeze=True)))
            except RuntimeError as error:
                print(f"{name} is left out: {error}", file=sys.stderr, flush=True)
        present = [row for row in wanted if all(side.contestant in contestants for side in row.sides())]
        figures = measure(present, contestants, max(5, args.rounds), CONNECTIONS)
    wheels = ", ".join(wheel for wheel, *_ in WHEELS.values())
    machine = (
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, {wheels}, "
        f"tent over {congestion()}, the others as they come, {max(5, args.rounds)} rounds, one host"
    )
    show(today("bench-peers", sys.argv[1:], machine, entries(present, figures)), args.json)
    print(f"{len(wanted) - len(present)} rows could not be measured")
    return 0


if __name__ == "__main__":
    sys.exit(main())
