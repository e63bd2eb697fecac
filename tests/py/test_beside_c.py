"""The C library in a program of Python: opened by ctypes, alone and beside the package, which has a Go of its own."""

from __future__ import annotations

from pathlib import Path

import apart
import pytest

LIBRARY = Path(__file__).resolve().parents[2] / "build" / "capi" / "lib" / "libtent.so"

ENGINE = """
import ctypes, sys

lib = ctypes.CDLL(sys.argv[1])
lib.tent_create_engine.restype = ctypes.c_void_p
lib.tent_last_error.restype = ctypes.c_char_p
c = ctypes.c_void_p(lib.tent_create_engine())
assert c.value, lib.tent_last_error()
"""

# Peers of this process: the package writes into memory of the C library, and reads it back from there.
MOVE = """
name, mine = ctypes.create_string_buffer(256), ctypes.create_string_buffer(4096)
assert lib.tent_segment_name(c, name, ctypes.c_size_t(len(name))) == 0, lib.tent_last_error()
assert lib.tent_register_memory(c, mine, ctypes.c_size_t(4096)) == 0, lib.tent_last_error()
with tent.Engine() as engine:
    source, target = bytearray(range(256)) * 16, bytearray(4096)
    segment = engine.open(name.value.decode())
    there = segment.memory(ctypes.addressof(mine), 4096)
    engine.write(engine.register(source), there).result()
    engine.read(engine.register(target), there).result()
    assert mine.raw == source == target
"""

END = """
lib.tent_destroy_engine(c)
assert lib.tent_last_error() == b"", lib.tent_last_error()
"""


@pytest.mark.parametrize(
    "program",
    [ENGINE + END, "import tent\n" + ENGINE + MOVE + END, ENGINE + "import tent\n" + MOVE + END],
    ids=["alone", "behind the package", "in front of the package"],
)
def test_ctypes_opens_the_library(program: str) -> None:
    if not LIBRARY.exists():
        pytest.skip(f"no {LIBRARY}: make capi builds it")
    apart.passes(program, LIBRARY)
