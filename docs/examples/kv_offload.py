"""Offloads a KV cache to a file and restores it in another process, in another page order, every byte verified.

python docs/examples/kv_offload.py [folder]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import tent

LAYERS, PAGES, PAGE = 4, 64, 64 << 10  # each layer has K and V of PAGES pages
PART = PAGES * PAGE
PARTS = 2 * LAYERS

Array = np.ndarray[Any, np.dtype[np.uint8]]


def content(sequence: int) -> Array:
    """Returns the bytes that the model left in one page of a sequence: known here, so that they can be verified."""
    return np.random.default_rng(sequence).integers(0, 256, (PARTS, PAGES, PAGE), np.uint8)


def parts_of(file: tent.Segment) -> tent.Grid:
    """The file as PARTS equal parts, one behind the other: a grid like the cache's own."""
    return file.pages([file[i * PART : (i + 1) * PART] for i in range(PARTS)], PAGE)


def offload(path: Path, pages: list[int], slots: list[int]) -> None:
    """Moves the given pages of every layer to slots of the file. Once this returns, a crash does not lose them."""
    cache = content(7)
    with tent.Engine() as engine, engine.open(path, create=True, size=PARTS * PART) as file:
        regions = [engine.register(part) for part in cache]
        moved = engine.write_pages(
            engine.pages(regions, PAGE), pages, parts_of(file), slots, priority=tent.PRIO_LOW, durability="data"
        )
        print("offloaded:", moved.result(timeout=60), "bytes by", *moved.transports)
        for region in regions:
            region.close()


def restore(path: Path, slots: list[int], pages: list[int]) -> None:
    """Brings slots of the file back into other pages of a new cache, and looks at every byte."""
    cache = np.zeros((PARTS, PAGES, PAGE), np.uint8)
    with tent.Engine() as engine, engine.open(path, readonly=True) as file:
        regions = [engine.register(part) for part in cache]
        moved = engine.read_pages(engine.pages(regions, PAGE), pages, parts_of(file), slots)
        print("restored:", moved.result(timeout=60), "bytes by", *moved.transports)
        for region in regions:
            region.close()
    original = content(7)
    where = json.loads(path.with_suffix(".json").read_text())  # page of the original by slot
    for slot, page in zip(slots, pages):
        assert (cache[:, page] == original[:, where[str(slot)]]).all(), (slot, page)
    rest = np.setdiff1d(np.arange(PAGES), pages)
    assert not cache[:, rest].any(), "a page that nobody asked for has changed"
    print("verified:", len(pages), "pages of", PARTS, "parts")


def main(folder: Path) -> None:
    path = folder / "kv.bin"
    dice = np.random.default_rng(1)
    pages = dice.choice(PAGES, PAGES // 2, replace=False).tolist()  # of the old cache
    slots = dice.choice(PAGES, PAGES // 2, replace=False).tolist()  # of the file
    offload(path, pages, slots)
    path.with_suffix(".json").write_text(json.dumps(dict(zip(slots, pages))))

    target = dice.permutation(slots).tolist()  # of the new cache
    arguments = json.dumps({"slots": slots, "pages": target})
    subprocess.run([sys.executable, __file__, "--restore", path, arguments], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--restore"]:
        restore(Path(sys.argv[2]), **json.loads(sys.argv[3]))
    elif len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
