"""The program of test_random_files.py in a process of its own, with memory of an emulated GPU."""

from __future__ import annotations

import ctypes
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
from test_random_files import GUARD, SIZES, Bytes, Memory, Program

import tent

gpu = ctypes.CDLL(os.environ["TENT_LIBCUDA"])
assert gpu.cuInit(0) == 0


def peek(address: int, array: Any, store: int) -> None:
    """Copies bytes out of memory of a device, or into it."""
    data = ctypes.c_void_p(array.ctypes.data)
    assert gpu.fakecuda_peek(data, ctypes.c_uint64(address), ctypes.c_uint64(array.size), store) == 0


class DeviceMemory(Memory):
    """Memory of a GPU between guard bands."""

    def __init__(self, engine: tent.Engine, dice: random.Random) -> None:
        size, address = dice.choice(SIZES), ctypes.c_uint64()
        assert gpu.fakecuda_enter(dice.randrange(2)) == 0
        assert gpu.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size + 2 * GUARD)) == 0
        self.size, self.address, self.start = size, address.value, GUARD + dice.choice([0, 13])
        whole = np.full(size + 2 * GUARD, 0xA5, np.uint8)
        whole[self.start :][:size] = np.frombuffer(dice.randbytes(size), np.uint8)
        peek(self.address, whole, 1)
        Bytes.__init__(self, whole[self.start :][:size])
        self.engine, self.region = engine, engine.register((self.address + self.start, size))

    def everything(self) -> Any:
        found = np.empty(self.size + 2 * GUARD, np.uint8)
        peek(self.address, found, 0)
        return found

    def now(self) -> Any:
        return self.everything()[self.start :][: self.size]

    def beside(self) -> tuple[Any, Any]:
        found = self.everything()
        return found[: self.start], found[self.start + self.size :]


def play(folder: str, seed: int) -> None:
    """The random program."""
    settings = {"transports/gds/enable": True}
    engines = [tent.Engine(settings, allow_faults=True) for _ in range(2)]
    Program(engines, Path(folder), seed, DeviceMemory).play()
