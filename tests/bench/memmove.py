"""A Python program without tent on one host: ctypes.memmove into a mapping that both processes have, one
call a page. Driven by lines on stdin (see contestant.py).

    memmove.py ARENA_BYTES
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time

from pattern import first_wrong, pattern

POSITIONS = 16


def address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Initiator:
    def __init__(self, length: int) -> None:
        fd = os.memfd_create("memmove")
        os.ftruncate(fd, length)
        self.shared = mmap.mmap(fd, length)  # as a peer that mapped the same file sees it
        self.own = mmap.mmap(-1, length)
        self.shared[:], self.own[:] = pattern(1, length), pattern(2, length)
        self.there, self.here, self.length = address(self.shared), address(self.own), length

    def batch(self, write: bool, size: int, count: int, position: int) -> list[tuple[int, int, int]]:
        base = position % max(1, self.length // (size * count)) * size * count
        pieces = [(self.there + base + i * size, self.here + base + i * size, size) for i in range(count)]
        return pieces if write else [(b, a, n) for a, b, n in pieces]

    def measure(self, write: bool, size: int, count: int, iterations: int) -> list[int]:
        batches = [self.batch(write, size, count, p) for p in range(POSITIONS)]
        took, move = [], ctypes.memmove
        for i in range(iterations):
            pieces = batches[i % POSITIONS]
            begin = time.perf_counter_ns()
            for to, source, n in pieces:
                move(to, source, n)
            took.append(time.perf_counter_ns() - begin)
        return took

    def check(self, write: bool, size: int, count: int, seed: int) -> str:
        length = size * count
        source, target = (self.own, self.shared) if write else (self.shared, self.own)
        source[:length], target[:length] = pattern(seed, length), pattern(seed + 1, length)
        for to, at, n in self.batch(write, size, count, 0):
            ctypes.memmove(to, at, n)
        wrong = first_wrong(memoryview(target), seed, length)
        return "ok" if wrong < 0 else f"bad {wrong}"


def main() -> None:
    initiator = Initiator(int(sys.argv[1]))
    print("ready", flush=True)
    for seed, line in enumerate(sys.stdin, start=10):
        verb, *words = line.split()
        if verb == "check":
            print(initiator.check(words[0] == "write", int(words[1]), int(words[2]), 2 * seed), flush=True)
        else:
            print("ns", *initiator.measure(verb == "write", *map(int, words[:3])), flush=True)


if __name__ == "__main__":
    main()
