"""`python -m tent.demos.failover`: rails are cut under a transfer and brought back, and nobody notices.

Two processes, four rails on loopback addresses, each of which carries 10 MiB a second. While one transfer runs, one
rail after the other is cut (into a black hole: nothing comes back and nobody says so) and healed. A live view shows
the rates of the rails; at the end the receiver looks at every byte, and a picture is drawn.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import tent
from tent.command.screen import optional
from tent.demos import picture_path
from tent.testing import Oracle, Pair

RAILS = 4
RATE = 10 << 20  # bytes a second of a rail
SIZE = 256 << 20
FIRST_CUT, EVERY, CUT_FOR = 1.0, 1.5, 1.0  # seconds
LOOK_EVERY = 0.1
LIMIT_S = 120.0


@dataclass
class Story:
    """The observations: at each look the time and the bytes that each rail has delivered; and when rails were cut."""

    times: list[float] = field(default_factory=list)
    delivered: list[list[float]] = field(default_factory=list)
    cuts: list[tuple[int, float, float]] = field(default_factory=list)  # rail, from, to
    longest_dip: float = 0.0  # without any new acknowledged byte, seconds
    usual_dip: float = 0.0  # the same before the first cut
    moved: int = 0

    def rates(self, window: int = 4) -> list[list[float]]:
        """Bytes a second by look and rail, over a few looks."""
        rates = [[0.0] * RAILS]
        for i in range(1, len(self.times)):
            j = max(0, i - window)
            span = self.times[i] - self.times[j]
            rates.append([(now - then) / span for now, then in zip(self.delivered[i], self.delivered[j])])
        return rates

    def is_cut(self, rail: int, at: float) -> bool:
        return any(r == rail and begin <= at < end for r, begin, end in self.cuts)


def rail_bytes(engine: tent.Engine) -> list[float]:
    """Bytes that each rail has delivered, by its address here."""
    found = [0.0] * RAILS
    for name, value in engine.metrics().items():
        if match := re.match(r'tent_rail_bytes_total\{.*local="127\.0\.0\.(\d+)"', name):
            found[int(match[1]) - 1] += value
    return found


def run(pair: Pair, transfer: tent.Transfer, show: Callable[[Story], None]) -> Story:
    """Cuts and heals rails until the transfer has ended, and records the bytes of each."""
    story = Story()
    script = script_of_cuts()
    begin = last_progress = time.monotonic()
    next_look, next_act = 0.0, next(script, None)
    while not transfer.done():
        now = time.monotonic() - begin
        if transfer.bytes > story.moved:
            story.moved, last_progress = transfer.bytes, time.monotonic()
        dip = time.monotonic() - last_progress
        story.longest_dip = max(story.longest_dip, dip)
        if now < FIRST_CUT:
            story.usual_dip = max(story.usual_dip, dip)
        if next_act and now >= next_act[0]:
            act(pair, story, *next_act)
            next_act = next(script, None)
        if now >= next_look:
            story.times.append(now)
            story.delivered.append(rail_bytes(pair.engine))
            show(story)
            next_look = now + LOOK_EVERY
        if now > LIMIT_S:
            raise SystemExit(f"the transfer did not end within {LIMIT_S:.0f} s")
        tent.wait([transfer], timeout=0.005)
    pair.faults.heal()
    return story


def script_of_cuts() -> Iterator[tuple[float, int, bool]]:
    """When which rail is cut (True) or healed."""
    for rail in range(RAILS):
        at = FIRST_CUT + rail * EVERY
        yield at, rail, True
        yield at + CUT_FOR, rail, False


def act(pair: Pair, story: Story, at: float, rail: int, cut: bool) -> None:
    faults = pair.faults.rail(rail)
    if cut:
        faults.blackhole()
        story.cuts.append((rail, at, at + CUT_FOR))
    else:
        faults.heal()


# -- output


def bars(story: Story) -> list[str]:
    """A line a rail: its rate, as a bar and a number."""
    rates, now = story.rates()[-1], story.times[-1]
    lines = []
    for rail, rate in enumerate(rates):
        full = min(30, round(30 * rate / RATE))
        state = "cut" if story.is_cut(rail, now) else ""
        lines.append(f"127.0.0.{rail + 1}  [{'#' * full}{'.' * (30 - full)}] {rate / 2**20:5.1f} MiB/s  {state}")
    return lines


@contextmanager
def view() -> Iterator[Callable[[Story], None]]:
    """How a look is shown: redrawn with rich on a terminal, else a line a second."""
    live: Any = nullcontext()
    rich, text = optional("rich.live"), optional("rich.text")
    if rich and text and sys.stdout.isatty():
        live = rich.Live(refresh_per_second=10)
    shown = [-1]

    def show(story: Story) -> None:
        now = story.times[-1]
        if screen is not None:
            head = f"{now:5.1f} s   {story.moved >> 20} of {SIZE >> 20} MiB"
            screen.update(text.Text("\n".join([head, *bars(story)])))
        elif int(now) > shown[0]:
            shown[0] = int(now)
            rates = "  ".join(f"{rate / 2**20:5.1f}" for rate in story.rates()[-1])
            cut = ", ".join(f"127.0.0.{rail + 1}" for rail in range(RAILS) if story.is_cut(rail, now))
            print(f"  {now:4.0f} s  {rates}  MiB/s{'  cut: ' + cut if cut else ''}", flush=True)

    with live as screen:
        yield show


def draw(story: Story, path: str) -> str:
    """The picture: each rail's rate over time, its cuts shaded. Returns where it is, "" without matplotlib."""
    matplotlib = optional("matplotlib")
    if matplotlib is None:
        return ""
    path = picture_path(path, "failover.svg")
    matplotlib.use("Agg")
    plt: Any = importlib.import_module("matplotlib.pyplot")
    rates = story.rates()
    figure, axes = plt.subplots(RAILS + 1, 1, sharex=True, figsize=(9, 7), layout="constrained")
    for rail, axis in enumerate(axes[:RAILS]):
        axis.plot(story.times, [look[rail] / 2**20 for look in rates])
        axis.set_ylabel(f"127.0.0.{rail + 1}\nMiB/s")
    axes[RAILS].plot(story.times, [sum(look) / 2**20 for look in rates], color="black")
    axes[RAILS].set_ylabel("all\nMiB/s")
    axes[RAILS].set_xlabel("seconds; rates over 0.4 s")
    for rail, begin, end in story.cuts:
        axes[rail].axvspan(begin, end, alpha=0.2, color="red")
    for axis in axes:
        axis.set_ylim(bottom=0)
    figure.savefig(path)
    plt.close(figure)
    return path


def chart(story: Story) -> str:
    """The same in text: a column a look, a digit for each tenth of the rail's rate. An x is a look at a rail that is
    cut, and that has delivered nothing since the look before."""
    rates, lines = story.rates(), []
    for rail in range(RAILS):
        marks = []
        for i, at in enumerate(story.times):
            silent = i > 0 and story.delivered[i][rail] == story.delivered[i - 1][rail]
            marks.append("x" if silent and story.is_cut(rail, at) else str(min(9, round(10 * rates[i][rail] / RATE))))
        lines.append(f"  127.0.0.{rail + 1}  {''.join(marks)}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tent.demos.failover", description="Rails are cut under a transfer."
    )
    parser.add_argument(
        "--picture", default="", help="where the picture goes (needs matplotlib); a temporary file unless given"
    )
    path = parser.parse_args().picture
    rails = f"{RAILS} rails of {RATE >> 20} MiB/s"
    print(f"tent {tent.__version__}: {SIZE >> 20} MiB over {rails}; one after the other is cut")
    oracle = Oracle(seed=1)
    with Pair(rails=RAILS, rate=RATE, log_level="error") as pair:
        src, dst = oracle.regions(pair, SIZE)
        with view() as show:
            transfer = pair.engine.write(src, dst)
            story = run(pair, transfer, show)
        assert transfer.result(0) == SIZE  # raises its error, if it has one
        oracle.check()
        metrics = pair.engine.metrics()
    print(chart(story))
    if picture := draw(story, path):
        print(f"  the picture is {picture}")
    print(
        f"  {transfer.elapsed:.1f} s, no error; {metrics['tent_rail_errors_total']:.0f} errors of rails, "
        "seen by the metrics alone\n"
        f"  longest dip (no rail acknowledges anything): {1000 * story.longest_dip:.0f} ms; "
        f"before the first cut it was {1000 * story.usual_dip:.0f} ms\n"
        f"  {SIZE >> 20} MiB verified by the receiver, every byte right"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
