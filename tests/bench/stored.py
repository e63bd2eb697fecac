"""The stored KV cache of make bench-restore: one file of pages, and the same pages in LMCache's files of chunks."""

from __future__ import annotations

import os
import random
from pathlib import Path

PAGE = 64 << 10  # of a block: 16 tokens of one layer, 8 heads of 128 values, keys and values of 2 bytes
CHUNK_PAGES = 256  # of a chunk, 16 MiB
POOL = "pool.bin"
PAGES_MOST = 1 << 18

_noise = random.Random(21).randbytes(PAGE + 8 * PAGES_MOST)


def page(number: int) -> bytes:
    """The bytes of a page: noise from another begin for each, so pages differ nearly everywhere."""
    return _noise[8 * number : 8 * number + PAGE]


def chunk(number: int) -> str:
    """The name under which a chunk's file is written."""
    return f"chunk-{number}"


def store(folder: Path, pages: int, chunks: bool) -> None:
    """Writes the cache to a folder, and has the disk take it."""
    with (folder / POOL).open("wb") as pool:
        for number in range(pages // CHUNK_PAGES):
            first = number * CHUNK_PAGES
            data = b"".join(map(page, range(first, first + CHUNK_PAGES)))
            pool.write(data)
            if chunks:
                with (folder / chunk(number)).open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
        pool.flush()
        os.fsync(pool.fileno())


def evict(folder: Path) -> None:
    """Takes every file of a folder out of the page cache."""
    for path in filter(Path.is_file, folder.iterdir()):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fill(paths: list[Path]) -> None:
    """Brings files into the page cache."""
    space = bytearray(1 << 24)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(space):
                pass
