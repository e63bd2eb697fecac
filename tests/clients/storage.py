"""LMCache's own storage backend by NIXL, with pages on disk: a program that puts pages, gets them and compares.

Its words: `static` keeps a pool of files open, `dynamic` opens one for each page. Its last line is how many came back.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
import time

PAGES = 24
SHAPE = (4, 2, 256, 8, 64)  # layers, K and V, tokens, heads, head size: 2 MiB a page
LIMIT = 60  # seconds for a put


def main(mode: str, folder: str) -> int:
    """Returns how many pages came back as they were."""
    import torch
    from lmcache.utils import CacheEngineKey
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.memory_management import MemoryFormat
    from lmcache.v1.metadata import LMCacheMetadata
    from lmcache.v1.storage_backend import CreateStorageBackends

    storage = {
        "enable_nixl_storage": True,
        "nixl_backend": "POSIX",
        "nixl_path": folder,
        "nixl_pool_size": PAGES if mode == "static" else 0,
    }
    config = LMCacheEngineConfig.from_defaults(
        local_cpu=False,
        max_local_cpu_size=0.25,
        nixl_buffer_device="cpu",
        nixl_buffer_size=0,
        save_unfull_chunk=False,
        extra_config=storage,
    )
    metadata = LMCacheMetadata("little", 1, 1, 0, 0, torch.bfloat16, SHAPE)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    backend = CreateStorageBackends(config, metadata, loop, "cpu")["NixlStorageBackend"]
    keys = [CacheEngineKey("little", 1, 0, i + 1, torch.bfloat16) for i in range(PAGES)]
    pages = [
        backend.allocate(torch.Size((2, 4, 256, 512)), torch.bfloat16, MemoryFormat.KV_2LTD, busy_loop=False)
        for _ in keys
    ]
    for i, page in enumerate(pages):
        words = page.tensor.view(torch.int16)
        words.copy_((torch.arange(words.numel()) * (2 * i + 1) % 65521 - 32000).to(torch.int16).view(words.shape))
    wanted = [page.tensor.clone() for page in pages]
    backend.batched_submit_put_task(keys, pages)
    limit = time.monotonic() + LIMIT
    while any(backend.exists_in_put_tasks(key) for key in keys):
        if time.monotonic() > limit:
            raise SystemExit(f"a put has not ended within {LIMIT} s")
        time.sleep(0.01)
    for page in pages:
        page.tensor.zero_()
        page.ref_count_down()
    got = backend.batched_get_blocking(keys[::-1])[::-1]
    same = [
        page is not None and torch.equal(page.tensor.view(torch.int16), data.view(torch.int16))
        for page, data in zip(got, wanted, strict=True)
    ]
    for page in got:
        page.ref_count_down()
    backend.close()
    return sum(same)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        came = main(sys.argv[1], made)
    print(f"{came} of {PAGES} pages", flush=True)
    os._exit(0)  # LMCache's threads go on
