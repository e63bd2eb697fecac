"""Seconds as a quiet machine would count them, so that a busy one does not fail a good tree.

A stage has a budget of time. Wall time alone would fail it because of a neighbour, and processor time alone would never
see a test that sleeps. Both are known here: /proc/stat counts the work of all processors, time stolen by a hypervisor
included, and the tree of processes below this one says how much of that was ours. The rest was taken by others, and a
stage is charged for the share of the machine that it could have had:

    quiet = wall * (1 - others / (processors * wall))

A stage that computes takes twice the wall time beside a neighbour that takes half of the machine, and is charged the
same. A stage that sleeps takes the same wall time and is charged less: the doubt is in favour of the tree.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
BUSY = (0, 1, 2, 5, 6, 7)  # user nice system irq softirq steal; user has guest's time in it


def machine_seconds() -> float:
    """Processor seconds since boot that were not idle, over all processors."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return sum(fields[i] for i in BUSY) / TICKS


def own_seconds(root: int | None = None) -> float:
    """Processor seconds of a process, of the processes below it, and of the children that they have waited for."""
    used: dict[int, int] = {}
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
        except OSError:
            continue  # it has ended meanwhile
        fields = text[text.rindex(")") + 2 :].split()
        below.setdefault(int(fields[1]), []).append(int(entry.name))
        used[int(entry.name)] = sum(int(word) for word in fields[11:15])  # utime stime cutime cstime
    total, todo = 0, [root or os.getpid()]
    while todo:
        process = todo.pop()
        total += used.get(process, 0)
        todo += below.get(process, [])
    return total / TICKS


def quiet_seconds(wall: float, others: float, processors: int) -> float:
    """The length of `wall` seconds without the processor seconds that others took meanwhile."""
    return wall * max(0.0, 1.0 - max(0.0, others) / (processors * wall)) if wall > 0 else 0.0


@dataclass
class Stopwatch:
    """Started when it is made; read as often as one likes."""

    begin: float
    machine: float
    own: float

    @classmethod
    def start(cls) -> Stopwatch:
        return cls(time.monotonic(), machine_seconds(), own_seconds())

    def wall(self) -> float:
        return time.monotonic() - self.begin

    def quiet(self) -> float:
        """Seconds since the start, as a quiet machine would have counted them; never more than the wall's."""
        machine, own = machine_seconds() - self.machine, own_seconds() - self.own
        return quiet_seconds(self.wall(), machine - own, os.cpu_count() or 1)
