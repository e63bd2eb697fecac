"""One contestant of the benchmark: a pair of processes that moves bytes when it is told to, and is idle otherwise.

All contestants understand the same lines on stdin, so rounds of one can be interleaved with rounds of the others:

    write|read SIZE COUNT ITERATIONS CONNECTIONS   ->  ns N N N ...     nanoseconds of each batch of COUNT pieces
    check write|read SIZE COUNT CONNECTIONS        ->  ok | bad OFFSET  fresh data, every byte looked at by its receiver

They say `ready PID` first, PID being the peer process. Some know further verbs (submit, poll).
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """One round of one contestant. Times in nanoseconds, CPU of both its processes in seconds."""

    batches: tuple[int, ...]
    bytes_moved: int
    cpu_seconds: float

    @property
    def p50(self) -> float:
        return statistics.median(self.batches)

    @property
    def bytes_per_second(self) -> float:
        return self.bytes_moved / (sum(self.batches) / 1e9)

    @property
    def cpu_seconds_per_gb(self) -> float:
        return self.cpu_seconds / (self.bytes_moved / 1e9)


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of another process, ended ones too (the clock id of clock_getcpuclockid(3))."""
    return time.clock_gettime(~pid << 3 | 2)


class Contestant:
    """Owns the process that it starts, and through it the peer. Not for several threads; close() ends it.

    Some libraries have threads that spin while there is nothing to do. With `freeze` both processes are stopped while
    it is not their turn, so that they do not take the processor from the others.
    """

    def __init__(self, name: str, command: Sequence[str], freeze: bool = False) -> None:
        self.name = name
        self.freeze = freeze
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        word, *pids = self.read_line().split()
        if word != "ready":
            raise RuntimeError(f"{name} did not start: {word}")
        self.pids = [self.process.pid, *map(int, pids)]
        self.rest(True)

    def rest(self, still: bool) -> None:
        """Stops both processes, or lets them go on."""
        for pid in self.pids if self.freeze else ():
            os.kill(pid, signal.SIGSTOP if still else signal.SIGCONT)

    def close(self) -> None:
        """Ends both processes."""
        self.rest(False)
        assert self.process.stdin is not None
        self.process.stdin.close()  # all of them end with their input
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def read_line(self) -> str:
        """The next line of the protocol; some libraries print lines of their own."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(("ready", "ns ", "ok", "bad ", "what?")):
                return line
        raise RuntimeError(f"{self.name} ended with {self.process.wait()}")

    def ask(self, *words: object) -> str:
        assert self.process.stdin is not None
        print(*words, file=self.process.stdin, flush=True)
        return self.read_line().strip()

    def check(self, op: str, size: int, count: int, connections: int) -> None:
        """Raises unless every byte arrived where it belongs."""
        self.rest(False)
        answer = self.ask("check", op, size, count, connections)
        self.rest(True)
        if answer != "ok":
            raise RuntimeError(f"{self.name}: {op} of {count} x {size} bytes is wrong: {answer}")

    def measure(self, verb: str, size: int, count: int, iterations: int, connections: int) -> Measured:
        self.rest(False)
        before = sum(map(cpu_seconds, self.pids))
        word, *numbers = self.ask(verb, size, count, iterations, connections).split()
        used = sum(map(cpu_seconds, self.pids)) - before
        self.rest(True)
        if word != "ns":
            raise RuntimeError(f"{self.name}: {verb} {size} {count}: {word} {' '.join(numbers)}")
        return Measured(tuple(map(int, numbers)), size * count * iterations, used)
