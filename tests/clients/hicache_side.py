"""SGLang's HiCacheNixl over a pool of host memory, without copies and with, past the page cache and through it.

Prints a line of JSON for each: its answers, and whether each byte is right. Usage: hicache_side.py FOLDER
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.storage.mmap import alloc_mmap
from sglang.srt.mem_cache.storage.nixl.hicache_nixl import HiCacheNixl

PAGES, TOKENS = 64, 16
ELEMENTS = 8192  # of K, or of V, in a page: 16 KiB


class Pool:
    """Stands for SGLang's HostKVCache, which wants a pool on a GPU beside it. The first half is K, the second V."""

    def __init__(self, layout: str) -> None:
        self.layout, self.page_size, self.pin_memory = layout, TOKENS, False
        self.kv_buffer = alloc_mmap((2, PAGES, ELEMENTS), torch.int16)

    def fill(self, seed: int) -> Any:
        """Fills it, and returns a copy."""
        random = torch.Generator().manual_seed(seed)
        shape = self.kv_buffer.shape
        self.kv_buffer.copy_(torch.randint(-30000, 30000, shape, generator=random, dtype=torch.int16))
        return self.kv_buffer.clone()

    def is_stride_page_aligned(self, unit: int) -> bool:
        return bool(2 * ELEMENTS % unit == self.kv_buffer.data_ptr() % unit == 0)

    def get_page_buffer_meta(self, tokens: Any) -> tuple[list[int], list[int]]:
        pages = [int(token) // TOKENS for token in tokens[::TOKENS]]
        places = [self.kv_buffer[half, page].data_ptr() for page in pages for half in range(2)]
        return places, [2 * ELEMENTS] * len(places)

    def get_dummy_flat_data_page(self) -> Any:
        return torch.zeros(2 * ELEMENTS, dtype=torch.int16)

    def get_data_page(self, token: int, flat: bool = True) -> Any:
        return self.kv_buffer[:, int(token) // TOKENS].flatten()

    def set_from_flat_data_page(self, token: int, page: Any) -> None:
        self.kv_buffer[:, int(token) // TOKENS] = page.view(2, -1)


def tokens(pages: list[int]) -> Any:
    return torch.cat([torch.arange(page * TOKENS, (page + 1) * TOKENS) for page in pages])


def run(folder: str, zero_copy: bool, direct: bool) -> dict[str, Any]:
    """Pages are set, got, replaced, and asked for where there is none."""
    config = HiCacheStorageConfig(
        tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=False,
        enable_storage_metrics=False, is_page_first_layout=zero_copy, model_name="little",
        extra_config={"plugin": {"posix": {"active": True}}, "use_direct_io": direct,
                      "l3_cleaner_enabled": False},  # it removes pages of a disk that others have filled
    )  # fmt: skip
    store, pool = HiCacheNixl(config, folder), Pool("page_first" if zero_copy else "layer_first")
    before = pool.fill(1)
    store.register_mem_pool_host(pool)
    keys, kept, places = [f"key{i}" for i in range(4)], [3, 60, 5, 41], [9, 10, 2, 63]
    said: dict[str, Any] = {"names paths": store.registry.path_mode, "zero-copy": store.is_zero_copy}
    said["at first"] = store.batch_exists(keys)
    said["set"] = store.batch_set_v1(keys, tokens(kept))
    said["exist"] = store.batch_exists([*keys, "other"])
    model = pool.fill(2)
    said["get"] = store.batch_get_v1(keys, tokens(places))
    model[:, places] = before[:, kept]
    said["right"] = torch.equal(pool.kv_buffer, model)
    said["get absent"] = store.batch_get_v1(["none", keys[0]], tokens([0, 1]))
    said["untouched"] = torch.equal(pool.kv_buffer, model)
    newer = pool.fill(3)
    said["set again"] = store.batch_set_v1(keys[:2], tokens([7, 8]))
    model = pool.fill(4)
    said["get both"] = store.batch_get_v1(keys, tokens([0, 1, 2, 3]))
    model[:, :2], model[:, 2:4] = newer[:, 7:9], before[:, kept[2:]]
    said["both right"] = torch.equal(pool.kv_buffer, model)
    store.clear()
    said["cleared"] = store.batch_exists(keys)
    store.close()
    return said


if __name__ == "__main__":
    for zero_copy, direct in itertools.product((True, False), (True, False)):
        said = run(f"{sys.argv[1]}/{zero_copy}{direct}", zero_copy, direct)
        print(json.dumps({**said, "direct": direct}), flush=True)
