"""tent from Python on a file, as a contestant of the benchmark of files (see contestant.py and files.py):

filepy.py SETTINGS FILE
pages SIZE COUNT ITERATIONS _   ->  ns N     write_pages of COUNT pages, in random order in the file
"""

from __future__ import annotations

import json
import mmap
import random
import sys
import time
from array import array

import tent

ARENA_BYTES = 256 << 20


def main() -> None:
    settings, path = json.loads(sys.argv[1]), sys.argv[2]
    memory = mmap.mmap(-1, ARENA_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)  # as cfile.c has it
    with (
        tent.Engine(settings) as engine,
        engine.register(memory, name="kv") as region,
        engine.open(f"file://{path}") as file,
    ):
        view = region.view
        view[:] = bytes(i * 7 >> 3 & 255 for i in range(1 << 16)) * (ARENA_BYTES >> 16)
        print("ready", flush=True)
        for line in sys.stdin:
            size, count, iterations = map(int, line.split()[1:4])
            places = array("q", random.sample(range(file.size // size), count))
            pages = array("q", range(count))
            begin = time.perf_counter_ns()
            for _ in range(iterations):
                engine.write_pages(region, pages, file, places, page_bytes=size).result(60)
            print("ns", time.perf_counter_ns() - begin, flush=True)


if __name__ == "__main__":
    main()
