"""make bench-restore: a KV cache comes back from a disk in another page order, by tent, NIXL and LMCache in turn.

    restore.py [--rounds 5] [--gigabytes 4] [--folder DIR] [--only NAME ...] [--kept FILE]
               [--json FILE]

Pages of 64 KiB lie in one file, in chunks of 16 MiB in LMCache's; each restore has another order of them in memory.
NIXL (its POSIX plug-in) and LMCache (its store on a local disk) read both ways that they offer, through the page
cache and past it, and the way that is faster by its median counts. Every contestant is a fresh process each time, the
order of contestants is random, and the first restore of a process is looked at byte by byte and does not count. Cold:
no page of any file is in the page cache; cached: all are. In the same rounds a plain C program (cfile.c) reads the file
from its begin to its end with O_DIRECT, by READs of 1 MiB into huge pages, eight of them at a time. Each READ brings 16
pages to their places in memory. That is the rate of the disk: a cold restore that has it can gain no more. The same
with each READ into one range of memory, which restores nothing, stands beside it.

With --kept the table also has the rounds of earlier runs with that file: hours of quiet are not needed in one piece.

It runs in the environment of `make test-clients`, beside which tent's wheel lies. Twice the cache must be free on the
disk, and three times in memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import sys
import tempfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import bootstrap
from contestant import Contestant, Measured
from rows import MIB
from run import HERE, ROOT, compiled, show
from stored import CHUNK_PAGES, PAGE, PAGES_MOST, POOL, chunk, evict, fill, store
from table import Entry, rounded, today

COLD, CACHED = "cold", "cached"
RIVALS = {
    "NIXL's POSIX plug-in": ("nixl", "nixl-direct"),
    "LMCache's store on a local disk": ("lmcache", "lmcache-direct"),
}
NAMES = ("tent", *(name for names in RIVALS.values() for name in names))
# Plain programs, with their verb: READs into 16 places of memory each, or into one.
DISK = {"disk": ("restore", MIB // PAGE), "disk, one range": ("read", 8)}
DEPTH = 8
LEAST, OF_DISK = 1.2, 0.98

Round = dict[tuple[str, str], Measured]  # by contestant and state


def files_of(name: str, folder: Path, pages: int) -> list[Path]:
    """The files that a contestant reads."""
    chunks = [folder / chunk(number) for number in range(pages // CHUNK_PAGES)]
    return chunks if name.startswith("lmcache") else [folder / POOL]


def visit(name: str, folder: Path, pages: int, seed: int) -> dict[str, Measured]:
    """One life of a contestant: a restore that is looked at, a cold one, and one of cached bytes but past the cache."""
    contestant = Contestant(name, [sys.executable, str(HERE / "restorers.py"), name, str(folder), str(pages)])
    try:
        contestant.check("read", PAGE, pages, seed)
        evict(folder)
        took = {COLD: contestant.measure("read", PAGE, pages, 1, seed + 1)}
        if not name.endswith("direct"):
            fill(files_of(name, folder, pages))
            took[CACHED] = contestant.measure("read", PAGE, pages, 1, seed + 2)
        return took
    finally:
        contestant.close()
        evict(folder)  # its pages would push out those of the next one


def disk(name: str, program: Path, folder: Path) -> Measured:
    """A plain program over the whole file, once."""
    path = folder / POOL
    evict(folder)
    verb, last = DISK[name]
    with contextlib.closing(Contestant(name, [str(program), str(DEPTH), str(path)])) as plain:
        plain.measure(verb, MIB, 0, 1, last)  # it finds places for the pages before the clock begins
        return plain.measure(verb, MIB, path.stat().st_size // MIB, 1, last)


def measure(program: Path, folder: Path, pages: int, dice: random.Random, names: list[str]) -> Round:
    """One round: each contestant, and the disk, in a random order."""
    order, one = [*names, *DISK], Round()
    dice.shuffle(order)
    for name in order:
        plain = name in DISK
        took = {COLD: disk(name, program, folder)} if plain else visit(name, folder, pages, dice.randrange(1 << 30))
        one.update({(name, state): m for state, m in took.items()})
        told = ", ".join(f"{state} {m.bytes_per_second / 1e9:.2f} GB/s" for state, m in took.items())
        print(f"{name}: {told}", file=sys.stderr, flush=True)
    return one


def kept(path: Path | None) -> list[Round]:
    """The rounds of earlier runs."""
    if path is None or not path.exists():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))
    return [{(name, state): Measured(tuple(ns), n, cpu) for name, state, ns, n, cpu in one} for one in found]


def keep(path: Path, rounds: list[Round]) -> None:
    """Writes rounds for kept()."""
    told = [[(*key, m.batches, m.bytes_moved, m.cpu_seconds) for key, m in one.items()] for one in rounds]
    path.write_text(json.dumps(told), encoding="utf-8")


def row(rounds: list[Round], state: str, title: str, rivals: tuple[str, ...], least: float) -> Entry | None:
    """tent beside the fastest of some contestants by its median; None where none of them took part."""
    beside = [
        [(one["tent", state], one[name, state]) for one in rounds if {(name, state), ("tent", state)} <= one.keys()]
        for name in rivals
    ]
    if not any(beside):
        return None
    pairs = max(filter(None, beside), key=lambda some: statistics.median(b.bytes_per_second for _, b in some))
    ratios = [a.bytes_per_second / b.bytes_per_second for a, b in pairs]
    ratio = statistics.median(ratios)
    ours, theirs = (statistics.median(m.bytes_per_second / 1e9 for m in side) for side in zip(*pairs, strict=True))
    cpu = statistics.median(a.cpu_seconds_per_gb / max(b.cpu_seconds_per_gb, 1e-9) for a, b in pairs)
    return Entry(
        title,
        "GB/s",
        ours=rounded(ours),
        theirs=rounded(theirs),
        ratio=rounded(ratio),
        difference=None,
        cpu_ratio=rounded(cpu),
        target=f"≥ {least:g}",
        reached="yes" if ratio >= least else "no",
        interval=bootstrap.of_median(ratios),
    )


def entries(rounds: list[Round]) -> list[Entry]:
    plain, one_range = DISK
    disk = row(rounds, COLD, "cold, beside the disk: plain C, READs of 1 MiB into 16 places", (plain,), OF_DISK)
    most = row(rounds, COLD, "cold, beside the disk: plain C, READs of 1 MiB into one range", (one_range,), 0)
    found = []
    for state in (COLD, CACHED):
        for title, rivals in RIVALS.items():
            entry = row(rounds, state, f"{state}, beside {title}", rivals, LEAST)
            if entry is not None and state == COLD and disk is not None:
                either = "yes" if "yes" in (entry.reached, disk.reached) else "no"
                entry = replace(entry, target=f"≥ {LEAST:g}, or the disk", reached=either)
            found.append(entry)
    found.append(disk)
    found.append(most and replace(most, target="", reached=""))
    return [entry for entry in found if entry is not None]


def main() -> int:
    parser = argparse.ArgumentParser(description="Restores a KV cache from a disk by tent, NIXL and LMCache.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, default=4, help="size of the cache, in GiB")
    parser.add_argument("--folder", type=Path, default=ROOT / "build", help="on the disk that is measured")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES), metavar="NAME")
    parser.add_argument("--kept", type=Path, help="file of rounds: those of earlier runs count too")
    parser.add_argument("--json", type=Path, help="file for the table, as docs/performance has it")
    args = parser.parse_args()
    chunks = int(args.gigabytes * (1 << 30)) // PAGE // CHUNK_PAGES
    pages = min(max(1, chunks) * CHUNK_PAGES, PAGES_MOST)
    args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="restore-") as name:
        folder = Path(name)
        store(folder, pages, any(one.startswith("lmcache") for one in args.only))
        program = compiled("cfile", folder)
        rounds, dice = kept(args.kept), random.Random(os.getpid())
        for _ in range(max(1, args.rounds)):
            rounds.append(measure(program, folder, pages, dice, args.only))
            if args.kept is not None:
                keep(args.kept, rounds)
    machine = (
        f"{os.cpu_count()} cores, Linux {platform.release()}, {pages * PAGE / (1 << 30):g} GiB, {len(rounds)} rounds"
    )
    for name in ("nixl", "lmcache"):
        try:
            machine += f", {name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    show(today("bench-restore", sys.argv[1:], machine, entries(rounds)), args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
