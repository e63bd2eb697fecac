"""`python -m tent.demos.qos`: small urgent requests beside floods, with classes of priority and without.

Two processes and one rail of 16 MiB a second on loopback (the rate is the fault kit's, since a laptop has no link that
is slow enough to be full). Every 40 ms one process writes 64 KiB to the other and sees how long that takes: alone,
beside a flood of its own of class LOW, and beside the same flood of class HIGH, as if there were no classes. Then a
third process floods a fourth one over loopback as fast as the machine is, without slots and with slots. Every byte is
verified.
"""

from __future__ import annotations

import argparse
import importlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import tent
from tent import command
from tent.command.screen import optional
from tent.demos import picture_path
from tent.testing import Oracle, Pair

RATE = 16 << 20  # bytes a second of the rail in the first three acts
SMALL = 64 << 10
EVERY = 0.04  # seconds from one small request to the next: a tenth of the rail
FLOOD, FLOODS = 4 << 20, 2  # bytes of a request of the flood, and how many are under way
SETTLE = 0.3  # seconds of a flood before anything counts
SLOTS = "transports/tcp/shared_quota_shm_path"
LIMIT_S = 60.0


@dataclass
class Act:
    """One part of the demo: when small requests began, counted from its start, and how long they
    took."""

    name: str
    begun: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)  # seconds, from the time at which it should have begun
    flooded: float = 0.0  # bytes a second

    def quantile(self, q: float) -> float:
        return sorted(self.took)[min(len(self.took) - 1, int(q * len(self.took)))] if self.took else 0.0

    def __str__(self) -> str:
        flood = f", flood {self.flooded / 2**20:.0f} MiB/s" if self.flooded else ""
        p50, p99 = 1000 * self.quantile(0.5), 1000 * self.quantile(0.99)
        return f"{self.name:34} p50 {p50:7.2f} ms   p99 {p99:7.2f} ms{flood}"


class Flood:
    """Keeps large requests of one class under way between two regions of an oracle."""

    def __init__(self, pair: Pair, oracle: Oracle, priority: int) -> None:
        self.engine, self.priority = pair.engine, priority
        self.places = [oracle.regions(pair, FLOOD) for _ in range(FLOODS)]
        self.ended, self.rounds = 0, 0
        self.transfers = [self._begin(src, dst) for src, dst in self.places]

    def _begin(self, src: Any, dst: Any) -> tent.Transfer:
        return self.engine.write(src, dst, priority=self.priority)

    @property
    def moved(self) -> int:
        return self.ended + sum(transfer.bytes for transfer in self.transfers)

    def go_on(self) -> None:
        for i, transfer in enumerate(self.transfers):
            if transfer.done():
                self.ended += transfer.result()  # raises its error, if it has one
                self.transfers[i] = self._begin(*self.places[i])

    def end(self) -> None:
        """Waits for the requests under way: the oracle wants all of them."""
        for transfer in self.transfers:
            self.ended += transfer.result(timeout=LIMIT_S)
        self.transfers = []


def play(act: Act, pair: Pair, oracle: Oracle, seconds: float, flood: Flood | None, show: Callable[[], None]) -> None:
    """Begins a small request every 40 ms, whether or not those before it have ended."""
    src, dst = oracle.regions(pair, SMALL)
    begin = time.monotonic() + (SETTLE if flood else 0)
    before, count, waiting = 0, 0, {}
    while True:
        now = time.monotonic()
        if flood:
            flood.go_on()
            if count == 0:
                before = flood.moved
        due = begin + count * EVERY
        if now >= due and due < begin + seconds:
            waiting[pair.engine.write(src, dst, priority=tent.PRIO_HIGH)] = (due - begin, now - due)
            count += 1
        for transfer in [transfer for transfer in waiting if transfer.done()]:
            at, late = waiting.pop(transfer)
            transfer.result()
            act.begun.append(at)
            act.took.append(late + transfer.elapsed)
        if flood and now > begin and due < begin + seconds:
            act.flooded = (flood.moved - before) / (now - begin)
        if due >= begin + seconds and not waiting:
            return
        if now > begin + seconds + LIMIT_S:
            raise SystemExit(f"a request did not end within {LIMIT_S:.0f} s")
        show()
        pending = [*waiting, *(flood.transfers if flood else [])]
        tent.wait(pending, timeout=max(0.0, min(due - now, 0.005)), return_when="FIRST_COMPLETED")


def act_with(name: str, seconds: float, show: Callable[[Act], None], flood: int | None = None, **settings: Any) -> Act:
    """An act with engines of its own; flood is the class of a flood from the same engine."""
    act, oracle = Act(name), Oracle(seed=1)
    with Pair(rails=1, log_level="error", **settings) as pair:
        flooding = None if flood is None else Flood(pair, oracle, flood)
        play(act, pair, oracle, seconds, flooding, lambda: show(act))
        if flooding:
            flooding.end()
        oracle.check()
    return act


@contextmanager
def neighbour(slots: str) -> Iterator[None]:
    """A process that floods a process of its own, of class LOW, until the block is left; then it verifies its bytes."""
    command = [sys.executable, "-m", "tent.demos.qos", "--neighbour", slots]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        if process.stdout.readline() != "floods\n":
            raise SystemExit("the flooding process did not start")
        try:
            yield
        finally:
            said, _ = process.communicate("end\n", timeout=LIMIT_S)
    if process.returncode or said != "verified\n":
        raise SystemExit(f"the flooding process found wrong bytes: {said}")


def be_neighbour(slots: str) -> int:
    """Floods a process of its own: the program that neighbour() starts."""
    oracle = Oracle(seed=2)
    with Pair(rails=1, rate=None, log_level="error", **{SLOTS: slots}) as pair:
        flood = Flood(pair, oracle, tent.PRIO_LOW)
        print("floods", flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            flood.go_on()
            tent.wait(flood.transfers, timeout=0.05, return_when="FIRST_COMPLETED")
        flood.end()
        oracle.check()
    print("verified", flush=True)
    return 0


# -- output

WIDTH = 50


def strip(act: Act) -> str:
    """The latest requests, a digit each: the power of two of its time in units of 0.1 ms."""
    return "".join(str(min(9, max(0, int(took * 1e4).bit_length()))) for took in act.took[-WIDTH:])


@contextmanager
def view() -> Iterator[Callable[[list[Act]], None]]:
    """How the acts are shown: redrawn with rich on a terminal, else a line an act when it has ended."""
    live: Any = nullcontext()
    rich, text = optional("rich.live"), optional("rich.text")
    if rich and text and sys.stdout.isatty():
        live = rich.Live(refresh_per_second=10)
    shown = 0.0

    def show(acts: list[Act]) -> None:
        nonlocal shown
        if screen is not None and time.monotonic() > shown + 0.1:
            shown = time.monotonic()
            screen.update(text.Text("\n".join([str(act) for act in acts] + [f"  {strip(acts[-1])}"])))

    with live as screen:
        yield show


def draw(acts: list[Act], path: str) -> str:
    """The picture: how long each request took, act by act. Returns where it is, "" without matplotlib."""
    matplotlib = optional("matplotlib")
    if matplotlib is None:
        return ""
    path = picture_path(path, "qos.svg")
    matplotlib.use("Agg")
    plt: Any = importlib.import_module("matplotlib.pyplot")
    figure, axes = plt.subplots(figsize=(10, 4.5), layout="constrained")
    start = 0.0
    for act in acts:
        axes.plot([start + at for at in act.begun], [1000 * took for took in act.took], ".", label=act.name)
        start += max(act.begun, default=0) + 0.2
    axes.set(yscale="log", xlabel="seconds", ylabel=f"ms until {SMALL >> 10} KiB of HIGH have arrived")
    axes.legend(loc="upper left", fontsize="small")
    axes.grid(True, axis="y", alpha=0.3)
    figure.savefig(path)
    plt.close(figure)
    return path


def perform(seconds: float, show: Callable[[list[Act]], None]) -> list[Act]:
    acts: list[Act] = []

    def seen(act: Act) -> None:
        show([*acts, act])

    def done(act: Act) -> None:
        acts.append(act)
        if not sys.stdout.isatty():
            print(f"  {act}\n    {strip(act)}", flush=True)

    done(act_with("alone", seconds, seen, rate=RATE))
    done(act_with("beside LOW", seconds, seen, tent.PRIO_LOW, rate=RATE))
    done(act_with("beside the same flood of HIGH", seconds, seen, tent.PRIO_HIGH, rate=RATE))
    done(act_with("unlimited, alone", seconds, seen, rate=None))
    for name, path in ("slots off", ""), ("slots on", f"/tent_demo_{os.getpid()}"):
        try:
            with neighbour(path):
                settings: dict[str, Any] = {"rate": None, SLOTS: path}
                done(act_with(f"LOW in another process, {name}", seconds, seen, **settings))
        finally:
            if path and os.path.exists(f"/dev/shm{path}"):
                os.unlink(f"/dev/shm{path}")
    return acts


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tent.demos.qos", description="Small urgent requests beside floods."
    )
    parser.add_argument(
        "--picture", default="", help="where the picture goes (needs matplotlib); a temporary file unless given"
    )
    parser.add_argument("--seconds", type=command.seconds, default="3", help="seconds of each act (%(default)s)")
    parser.add_argument("--neighbour", metavar="SLOTS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.neighbour is not None:
        return be_neighbour(args.neighbour)
    print(
        f"tent {tent.__version__}: {SMALL >> 10} KiB of HIGH every {1000 * EVERY:.0f} ms; "
        f"a rail of {RATE >> 20} MiB/s (the fault kit's), then loopback\n"
        "  digits: the time of each request, as a power of two of 0.1 ms"
    )
    with view() as show:
        acts = perform(args.seconds, show)
    if picture := draw(acts, args.picture):
        print(f"  the picture is {picture}")
    alone, low, high, free, off, on = (1000 * act.quantile(0.99) for act in acts)
    print(
        f"  p99 of {SMALL >> 10} KiB on the rail: {alone:.1f} ms alone, {low:.1f} ms beside a flood of LOW, "
        f"{high:.0f} ms when all are HIGH\n"
        f"  on loopback: {free:.1f} ms alone; beside a flood of LOW in another process {off:.1f} ms without slots, "
        f"{on:.1f} ms with slots\n"
        f"  {sum(len(act.took) for act in acts)} small requests and both floods verified by their receivers, "
        "every byte right"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
