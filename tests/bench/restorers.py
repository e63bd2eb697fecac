"""Programs that restore a KV cache from a disk in another page order, as contestants (contestant.py, restore.py):

    restorers.py tent|nixl|nixl-direct|lmcache|lmcache-direct FOLDER PAGES

    check read SIZE COUNT SEED         ->  ok | bad PAGE    restores in the order of a seed, and looks at every byte
    read SIZE COUNT ITERATIONS SEED    ->  ns N N ...       restores, each time in another order

Page i of the file comes to page order[i] of one cache in memory that the program owns, of huge pages where the kernel
has some. The order is an array before the clock begins, and nothing else that depends on it is prepared.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from stored import CHUNK_PAGES, PAGE, POOL, chunk, page

Restore = Callable[["np.ndarray[Any, Any]"], None]  # takes an order
GUARD = 1 << 21  # bytes on either side of the cache, that nobody may write


class Cache:
    """The cache in memory, between two bands of another pattern."""

    def __init__(self, pages: int) -> None:
        self.map = mmap.mmap(-1, pages * PAGE + 2 * GUARD, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.map.madvise(mmap.MADV_HUGEPAGE)
        self.all = np.frombuffer(self.map, dtype=np.uint8)
        self.all[:] = 0xA5
        self.bytes = self.all[GUARD:-GUARD]
        self.pages = self.bytes.reshape(pages, PAGE)
        self.address = self.bytes.ctypes.data

    def wrong(self, order: np.ndarray[Any, Any]) -> int:
        """The first page of the file that is not where it belongs; -1 for none, and -2 for bytes beside the cache."""
        for i, place in enumerate(order):
            if self.pages[place].tobytes() != page(i):
                return i
        beside = np.concatenate((self.all[:GUARD], self.all[-GUARD:]))
        return -1 if (beside == 0xA5).all() else -2


def tent(cache: Cache, folder: Path, pages: int) -> Restore:
    """One call of read_pages()."""
    import tent

    engine = tent.Engine()
    region = engine.register(cache.bytes, name="kv")
    file = engine.open(f"file://{folder / POOL}")
    places = np.arange(pages, dtype=np.int64)

    def restore(order: np.ndarray[Any, Any]) -> None:
        engine.read_pages(region, order, file, places, page_bytes=PAGE).result(300)

    return restore


def nixl(cache: Cache, folder: Path, pages: int, flags: int = 0) -> Restore:
    """A transfer of NIXL's POSIX plug-in by its defaults. The lists of all pages are prepared, as LMCache does it."""
    from nixl._api import nixl_agent, nixl_agent_config  # type: ignore[import-not-found]

    agent: Any = nixl_agent("restorer", nixl_agent_config(backends=[]))
    agent.create_backend("POSIX", {})
    file = os.open(folder / POOL, os.O_RDONLY | flags)
    agent.register_memory([(cache.address, pages * PAGE, 0, "")], "DRAM")
    agent.register_memory([(0, pages * PAGE, file, "")], "FILE")
    at = np.arange(pages, dtype=np.uint64) * PAGE
    length = np.full(pages, PAGE, np.uint64)
    memory = np.stack([cache.address + at, length, np.zeros(pages, np.uint64)], axis=1)
    stored = np.stack([at, length, np.full(pages, file, np.uint64)], axis=1)
    here = agent.prep_xfer_dlist("NIXL_INIT_AGENT", memory, "DRAM")
    there = agent.prep_xfer_dlist("restorer", stored, "FILE")
    places = np.arange(pages, dtype=np.int32)

    def restore(order: np.ndarray[Any, Any]) -> None:
        handle = agent.make_prepped_xfer("READ", here, order.astype(np.int32), there, places)
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        if state != "DONE":
            raise RuntimeError(state)
        agent.release_xfer_handle(handle)

    return restore


def lmcache(cache: Cache, folder: Path, pages: int, direct: bool = False) -> Restore:
    """LMCache's store on a local disk: all chunks by one call, then torch brings their pages to their places."""
    os.environ["LMCACHE_LOG_LEVEL"] = "ERROR"
    import torch  # type: ignore[import-not-found]
    from lmcache.utils import CacheEngineKey  # type: ignore[import-not-found]
    from lmcache.v1.config import LMCacheEngineConfig  # type: ignore[import-not-found]
    from lmcache.v1.memory_allocators.mixed_memory_allocator import (  # type: ignore[import-not-found]
        MixedMemoryAllocator,
    )
    from lmcache.v1.memory_management import MemoryFormat  # type: ignore[import-not-found]
    from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend  # type: ignore[import-not-found]
    from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend  # type: ignore[import-not-found]

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    config = LMCacheEngineConfig.from_defaults(
        local_disk=tempfile.mkdtemp(dir=folder),
        max_local_disk_size=64.0,
        local_cpu=False,
        extra_config={"use_odirect": direct},
    )
    staging = MixedMemoryAllocator(pages * PAGE + (1 << 20))
    backend = LocalDiskBackend(
        config, loop, LocalCPUBackend(config, memory_allocator=staging, dst_device="cpu"), dst_device="cpu"
    )
    shape = torch.Size([2, 32, CHUNK_PAGES * PAGE // 2 // 2 // 32 // 1024, 1024])  # 32 layers, 1024 values a token
    keys = [CacheEngineKey("restored", 1, 0, number, torch.bfloat16) for number in range(pages // CHUNK_PAGES)]
    for number, key in enumerate(keys):
        Path(backend._key_to_path(key)).symlink_to(folder / chunk(number))
        backend.insert_key(key, CHUNK_PAGES * PAGE, shape, torch.bfloat16, MemoryFormat.KV_2LTD)
    words = torch.int64  # torch copies rows of these two to three times as fast as rows of bytes
    into = torch.frombuffer(cache.map, dtype=torch.uint8)[GUARD:-GUARD].view(words).view(pages, PAGE // 8)

    def restore(order: np.ndarray[Any, Any]) -> None:
        objects = backend.batched_get_blocking(keys)
        places = torch.from_numpy(order).view(-1, CHUNK_PAGES)
        for where, one in zip(places, objects, strict=True):
            into[where] = one.tensor.view(words).view(CHUNK_PAGES, PAGE // 8)
            one.ref_count_down()

    return restore


RESTORERS: dict[str, Callable[[Cache, Path, int], Restore]] = {
    "tent": tent,
    "nixl": nixl,
    "nixl-direct": lambda cache, folder, pages: nixl(cache, folder, pages, os.O_DIRECT),
    "lmcache": lmcache,
    "lmcache-direct": lambda cache, folder, pages: lmcache(cache, folder, pages, True),
}


def main() -> None:
    name, folder, pages = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    cache = Cache(pages)
    restore = RESTORERS[name](cache, folder, pages)
    print("ready", flush=True)
    for line in sys.stdin:
        *words, seed = line.split()
        dice = np.random.default_rng(int(seed))
        if words[0] == "check":
            order = dice.permutation(pages)
            restore(order)
            wrong = cache.wrong(order)
            print("ok" if wrong == -1 else f"bad {wrong}", flush=True)
            continue
        took = []
        for _ in range(int(words[3])):
            order = dice.permutation(pages)
            begin = time.perf_counter_ns()
            restore(order)
            took.append(time.perf_counter_ns() - begin)
        print("ns", *took, flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # the others' threads and pools have no end that can be waited for
