"""tent from Python as a contestant of the benchmark (see contestant.py): an engine here, one in a process of its own.

    tentpy.py tcp|busy|shm|own ARENA_BYTES

tcp leaves shared memory out, busy too and looks for 10 ms before it sleeps, shm uses memory that tent allocated, own
memory that the program mapped itself.
Beyond the common verbs: `submit SIZE COUNT ITERATIONS _` times submit_transfer of a packed RequestArray alone, and
`poll SIZE LOOKS ITERATIONS _` times looks at a transfer that cannot make progress, because its peer is stopped, and
`pages SIZE COUNT ITERATIONS REGIONS` moves COUNT pages in another order between grids of REGIONS equal regions.
"""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
import timeit
from array import array
from collections.abc import Callable
from functools import partial

from pattern import first_wrong, pattern

import tent
from tent.region import RegionSlice
from tent.segment import RemoteSlice

LIMIT_S = 60.0
APART_NS = 1_000_000  # between two submits, as in gobench: the peer sleeps by then, and the send wakes it
POSITIONS = 16


def settings(kind: str) -> dict[str, object]:
    looks_us = 10_000 if kind == "busy" else 0
    transports = {"shm": {"enable": kind in ("shm", "own")}, "tcp": {"busy_poll_us": looks_us}}
    return {"busy_poll_us": looks_us, "transports": transports}


def memory(engine: tent.Engine, kind: str, length: int) -> tent.Region:
    """The memory at both ends: tent's, or for `own` a mapping that the program made."""
    if kind == "own":
        return engine.register(mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), name="kv")
    return engine.allocate(length, name="kv")


def peer(kind: str, length: int) -> None:
    """Offers memory, fills it and looks at it when told to."""
    with tent.Engine(settings(kind)) as engine, memory(engine, kind, length) as region:
        view = region.view
        view[:] = pattern(1, length)
        print(engine.address, flush=True)
        for line in sys.stdin:
            verb, *numbers = line.split()
            seed, size = map(int, numbers)
            if verb == "fill":
                view[:size] = pattern(seed, size)
                print(-1, flush=True)
            else:
                print(first_wrong(view, seed, size), flush=True)


class Bench:
    """The initiator's side."""

    def __init__(self, kind: str, length: int) -> None:
        command = [sys.executable, __file__, "--peer", kind, str(length)]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.child.stdout is not None
        address = self.child.stdout.readline().strip()
        self.upstream = tent.TransferEngine(settings(kind))
        self.engine = self.upstream.engine
        self.segment_id = self.upstream.open_segment(address + "/kv")
        self.remote = self.engine.open(address)
        self.kv = memory(self.engine, kind, length)
        self.view = self.kv.view
        self.view[:] = pattern(2, length)

    def close(self) -> None:
        self.upstream.close()
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait(LIMIT_S)

    def ask(self, *words: object) -> int:
        assert self.child.stdin is not None and self.child.stdout is not None
        print(*words, file=self.child.stdin, flush=True)
        return int(self.child.stdout.readline())

    def moves(self, verb: str, size: int, count: int, regions: int = 1) -> list[Callable[[], object]]:
        """One call a position; things that a program makes once (slices, grids, index arrays) are made beforehand."""
        if verb == "pages":
            return self.shuffled(size, count, regions)
        room = max(1, len(self.view) // (size * count))
        bases = [position % room * count for position in range(POSITIONS)]
        kv, remote = self.kv, self.remote["kv"]
        if count == 1:
            parts = [slice(b * size, (b + 1) * size) for b in bases]
            return [partial(self.one, verb, kv[p], remote[p]) for p in parts]
        here, there = self.engine.pages([kv], size), self.remote.pages([remote], size)
        indexes = [array("q", range(b, b + count)) for b in bases]
        return [partial(self.many, verb, here, there, i, size) for i in indexes]

    def shuffled(self, size: int, count: int, regions: int) -> list[Callable[[], object]]:
        """The same for pages that go elsewhere: page 77 * i of each region becomes page 181 * i of its counterpart."""
        each = count // regions
        room = max(1, len(self.view) // (size * count))
        src, dst = (array("q", [k * i % each for i in range(each)]) for k in (77, 181))
        calls: list[Callable[[], object]] = []
        for position in range(min(room, POSITIONS)):
            base = position * size * count
            starts = range(base, base + size * count, size * each)
            here = self.engine.pages([self.kv[s : s + size * each] for s in starts], size)
            there = self.remote.pages([self.remote["kv"][s : s + size * each] for s in starts], size)
            calls.append(partial(self.permute, here, src, there, dst, size))
        return [calls[position % len(calls)] for position in range(POSITIONS)]

    def permute(self, here: tent.Grid, src: array[int], there: tent.Grid, dst: array[int], size: int) -> None:
        self.engine.write_pages(here, src, there, dst, page_bytes=size).result(LIMIT_S)

    def one(self, verb: str, here: RegionSlice, there: RemoteSlice) -> None:
        move = self.engine.write if verb == "write" else self.engine.read
        move(here, there).result(LIMIT_S)

    def many(self, verb: str, here: tent.Grid, there: tent.Grid, pages: array[int], size: int) -> None:
        move = self.engine.write_pages if verb == "write" else self.engine.read_pages
        move(here, pages, there, pages, page_bytes=size).result(LIMIT_S)

    def measure(self, verb: str, size: int, count: int, iterations: int, regions: int) -> list[int]:
        moves = self.moves(verb, size, count, regions)
        took = []
        for i in range(iterations):
            move = moves[i % POSITIONS]
            begin = time.perf_counter_ns()
            move()
            took.append(time.perf_counter_ns() - begin)
        return took

    def check(self, verb: str, size: int, count: int, regions: int, seed: int) -> str:
        """Moves one batch of fresh data and looks at every byte of it where it arrived."""
        if verb == "pages":
            return self.check_shuffled(size, count, regions, seed)
        length = size * count
        mine, theirs = (seed, seed + 1) if verb == "write" else (seed + 1, seed)
        self.view[:length] = pattern(mine, length)
        self.ask("fill", theirs, length)
        self.moves(verb, size, count)[0]()
        wrong = self.ask("check", seed, length) if verb == "write" else first_wrong(self.view, seed, length)
        return "ok" if wrong < 0 else f"bad {wrong}"

    def check_shuffled(self, size: int, count: int, regions: int, seed: int) -> str:
        """The pages are fetched back in their places and compared with those that were sent."""
        length, each = size * count, count // regions
        sent = pattern(seed, length)
        self.view[:length] = sent
        self.ask("fill", seed + 1, length)
        self.moves("pages", size, count, regions)[0]()
        self.engine.read(self.kv[0:length], self.remote["kv"][0:length]).result(LIMIT_S)
        for index in range(count):
            first, i = index - index % each, index % each
            source, target = (first + 77 * i % each) * size, (first + 181 * i % each) * size
            if self.view[target : target + size] != sent[source : source + size]:
                return f"bad {target}"
        return "ok"

    def submit(self, size: int, count: int, iterations: int) -> list[int]:
        """Nanoseconds of submit_transfer alone."""
        requests = tent.RequestArray(count)
        requests.opcode[:] = array("Q", [tent.OpCode.WRITE] * count)
        requests.source[:] = array("Q", range(self.kv.address, self.kv.address + size * count, size))
        requests.target_id[:] = array("Q", [self.segment_id] * count)
        requests.target_offset[:] = array("Q", range(0, size * count, size))
        requests.length[:] = array("Q", [size] * count)
        took = []
        for _ in range(iterations):
            end = time.perf_counter_ns() + APART_NS
            while time.perf_counter_ns() < end:
                pass
            batch = self.upstream.allocate_transfer_batch(count)
            begin = time.perf_counter_ns()
            self.upstream.submit_transfer(batch, requests)
            took.append(time.perf_counter_ns() - begin)
            self.upstream.wait(batch, LIMIT_S)
            self.upstream.free_transfer_batch(batch)
        return took

    def poll(self, looks: int, iterations: int) -> list[int]:
        """Nanoseconds of one look that finds nothing new."""
        os.kill(self.child.pid, signal.SIGSTOP)
        try:
            transfer = self.engine.write(self.kv, self.remote["kv"])
            timer = timeit.Timer(transfer.done)
            took = [round(timer.timeit(looks) / looks * 1e9) for _ in range(iterations)]
            assert not transfer.done()
        finally:
            os.kill(self.child.pid, signal.SIGCONT)
        transfer.result(LIMIT_S)
        return took

    def command(self, seed: int, verb: str, *words: str) -> str:
        if verb == "check":
            return self.check(words[0], int(words[1]), int(words[2]), int(words[3]), 2 * seed)
        size, count, iterations, regions = (int(w) for w in words)
        if verb == "submit":
            took = self.submit(size, count, iterations)
        elif verb == "poll":
            took = self.poll(count, iterations)
        else:
            took = self.measure(verb, size, count, iterations, regions)
        return " ".join(map(str, ["ns", *took]))


def main() -> None:
    if sys.argv[1] == "--peer":
        peer(sys.argv[2], int(sys.argv[3]))
        return
    bench = Bench(sys.argv[1], int(sys.argv[2]))
    print("ready", bench.child.pid, flush=True)
    for seed, line in enumerate(sys.stdin, start=10):
        print(bench.command(seed, *line.split()), flush=True)
    bench.close()


if __name__ == "__main__":
    main()
