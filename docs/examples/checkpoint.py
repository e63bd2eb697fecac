"""A checkpoint: a dict of arrays in one file, saved and restored over tent.

    save(engine, "model.ckpt", {"weight": array, ...})     # durable when it returns, and the old file until then
    arrays = restore(engine, "model.ckpt")                 # every byte verified

The file begins with 16 bytes (a magic word and the length of the index), then the index in JSON, then the arrays, each
at a multiple of 4096 so that it can travel past the page cache. Nothing in it is executed: no pickle. PyTorch tensors
of the host are arrays too: `tensor.numpy()` is the same memory.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import tent

Array = np.ndarray[Any, np.dtype[Any]]

MAGIC = b"TENTCKP1"
HEAD = struct.Struct("<8sQ")
ALIGNMENT = 4096
KINDS = "biufc"  # numbers: arrays with the same bytes everywhere


def aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def layout(arrays: Mapping[str, Array]) -> tuple[bytes, dict[str, int], int]:
    """The first bytes of the file, where each array goes, and the size of all."""
    entries = {}
    for name, array in arrays.items():
        if array.dtype.kind not in KINDS or not array.flags.c_contiguous:
            raise ValueError(f"{name}: an array of numbers, contiguous, is needed, not {array.dtype}")
        entries[name] = {"dtype": array.dtype.str, "shape": array.shape, "crc32": zlib.crc32(array.data)}
    index = json.dumps(entries).encode()
    end = aligned(HEAD.size + len(index))
    places = {}
    for name, array in arrays.items():
        places[name] = end
        end = aligned(end + array.nbytes)
    return HEAD.pack(MAGIC, len(index)) + index, places, end


def save(engine: tent.Engine, path: str | Path, arrays: Mapping[str, Array]) -> int:
    """Writes the arrays and returns how many bytes moved. The file gets its name when all of it is on stable storage,
    so there is a whole checkpoint at any moment: the old one, or the new one."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    head, places, size = layout(arrays)
    with ExitStack() as stack:
        file = stack.enter_context(engine.open(partial, create=True, truncate=True, size=size))
        batch = stack.enter_context(engine.batch(priority=tent.PRIO_LOW, durability="data"))
        batch.write(stack.enter_context(engine.register(bytearray(head))), file[: len(head)])
        for name, array in arrays.items():
            if array.nbytes:
                place = places[name]
                batch.write(stack.enter_context(engine.register(array)), file[place : place + array.nbytes])
        moved = batch.submit().result()
    os.replace(partial, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name is on stable storage too
    finally:
        os.close(folder)
    return moved


def restore(engine: tent.Engine, path: str | Path) -> dict[str, Array]:
    """Reads a checkpoint and verifies every array. A ValueError names the defect of the file."""
    with ExitStack() as stack:
        file = stack.enter_context(engine.open(Path(path), readonly=True))
        if file.size < HEAD.size:
            raise ValueError(f"{path} is not a checkpoint: it has {file.size} bytes")
        magic, length = HEAD.unpack(read(engine, file, 0, HEAD.size))
        if magic != MAGIC or length > file.size - HEAD.size:
            raise ValueError(f"{path} is not a checkpoint")
        index = json.loads(read(engine, file, HEAD.size, length))
        arrays: dict[str, Array] = {}
        for name, entry in index.items():
            dtype = np.dtype(entry["dtype"])
            if dtype.kind not in KINDS:
                raise ValueError(f"{path}: {name} is not an array of numbers")
            arrays[name] = np.empty(entry["shape"], dtype)
        place = aligned(HEAD.size + length)
        batch = stack.enter_context(engine.batch())
        for name, array in arrays.items():
            if place + array.nbytes > file.size:
                raise ValueError(f"{path} ends in the middle of {name}")
            if array.nbytes:
                batch.read(stack.enter_context(engine.register(array)), file[place : place + array.nbytes])
            place = aligned(place + array.nbytes)
        if len(batch):
            batch.submit().result()
    for name, array in arrays.items():
        if zlib.crc32(array.data) != index[name]["crc32"]:
            raise ValueError(f"{path}: the bytes of {name} are not those that were saved")
    return arrays


def read(engine: tent.Engine, file: tent.Segment, offset: int, size: int) -> bytes:
    """A few bytes of a file, as bytes."""
    memory = bytearray(size)
    with engine.register(memory) as region:
        engine.read(region, file[offset : offset + size]).result()
    return bytes(memory)


def main(path: Path) -> None:
    dice = np.random.default_rng(5)
    model: dict[str, Array] = {
        "embedding": dice.standard_normal((1000, 512), np.float32),
        "attention/query": dice.standard_normal((512, 512)).astype(np.float16),
        "steps": np.array(12_000),
        "nothing": np.empty((0, 3), np.int8),
    }
    with tent.Engine() as engine:
        print("saved", save(engine, path, model), "bytes")
    with tent.Engine() as engine:
        again = restore(engine, path)
    assert list(again) == list(model)
    for name, array in model.items():
        assert again[name].dtype == array.dtype and again[name].shape == array.shape
        assert again[name].tobytes() == array.tobytes(), name
    print("restored", ", ".join(f"{name} {list(array.shape)}" for name, array in again.items()))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder) / "model.ckpt")
