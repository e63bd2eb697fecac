"""make bench-security: the cost of security/data, one lane protection beside another, in one run.

    security.py [--rounds 15] [--note TEXT] [--json FILE]

Pairs of processes over TCP take turns, round by round: mode insecure, and mode local with data auth, sign and encrypt.
Figures are medians with the least and the most of the rounds, and differences are those of neighbours in a round. CPU
is that of both ends together, so a target for each side counts twice.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import bootstrap
from contestant import Contestant, Measured
from rows import BULK, SMALL, Row, Side, Work, cpu, p50_us, rate
from run import build, measure, show
from table import Reported, digits, today

PLAIN, AUTH, SIGN, ENCRYPT = MODES = "insecure", "auth", "sign", "encrypt"
MANY = Work("write", 64 << 10, 64, 50)
ALONE = {SIGN: Work("tag", 64 << 10, 1024, 8), ENCRYPT: Work("seal", 64 << 10, 1024, 8)}  # the cipher, at one end
SIDES = 2
CPU_MORE = {SIGN: 0.16 * SIDES, ENCRYPT: 0.4 * SIDES}  # seconds a GB beyond plain


def rows() -> list[Row]:
    """Each mode beside insecure, by rate, CPU and the time of a page."""
    list_ = []
    figures: list[tuple[Work, str, Callable[[Measured], float], str]] = [
        *((work, "rate", rate, "GB/s") for work in (*BULK.values(), MANY)),
        *((work, "CPU of both", cpu, "s/GB") for work in (*BULK.values(), MANY)),
        (SMALL, "p50", p50_us, "µs"),
    ]
    for work, name, figure, unit in figures:
        plain = Side(PLAIN, work, figure)
        list_ += [Row(f"{work}, {name}: {mode}", unit, Side(mode, work, figure), plain, 0) for mode in MODES]
    for mode, work in ALONE.items():
        list_.append(Row(f"AES-128-GCM alone, both ends: {mode}", "s/GB", Side(mode, work, both_ends), None, 0))
    return list_


def both_ends(m: Measured) -> float:
    """Seconds a GB that two ends compute, from those of one."""
    return SIDES * 1e9 / m.bytes_per_second


def reported(row: Row, figures: dict[tuple[str, Work], list[Measured]]) -> Reported:
    """A row's median with its spread, its distance from insecure, and its target."""
    ours = [row.ours.figure(m) for m in figures[row.ours.contestant, row.ours.work]]
    middle, least, most = (digits(of(ours), False) for of in (statistics.median, min, max))
    text = f"{middle} {row.unit} ({least} to {most})"
    mode = row.ours.contestant
    if mode == PLAIN or row.theirs is None:
        return Reported(row.name, text, "", "")
    theirs = row.rivals(figures)
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    mores = [a - b for a, b in zip(ours, theirs, strict=True)]
    ratio, more = statistics.median(ratios), statistics.median(mores)
    text += f", {ratio:.2f} of insecure"
    if row.ours.figure is not cpu:
        return Reported(row.name, text, "", "")
    text += f", {more:+.3f} s/GB"
    if mode == AUTH:
        judged, target, reached = ratios, "≤ 1.01 of insecure", ratio <= 1.01
    else:
        judged, target, reached = mores, f"≤ {CPU_MORE[mode]:+.2f} s/GB", more <= CPU_MORE[mode]
    return Reported(row.name, text, target, "yes" if reached else "no", bootstrap.of_median(judged))


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures what the protection of data costs.")
    parser.add_argument("--rounds", type=int, default=15, help="rounds that count")
    parser.add_argument("--note", default="", help="a word about the machine, such as busy")
    parser.add_argument("--json", type=Path, help="file for the table, as docs/performance has it")
    args = parser.parse_args()
    chosen = rows()
    arena = build(set(MODES))
    with contextlib.ExitStack() as stack:
        contestants = {
            name: stack.enter_context(contextlib.closing(Contestant(name, command))) for name, command in arena.items()
        }
        figures = measure(chosen, contestants, args.rounds, 1)
    note = f" ({args.note})" if args.note else ""
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, loopback, {args.rounds} rounds{note}"
    show(today("bench-security", sys.argv[1:], machine, [reported(row, figures) for row in chosen]), args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
