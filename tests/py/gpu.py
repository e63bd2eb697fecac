"""Programs with memory of GPUs, in processes of their own with an emulated driver: tests/fakes/cuda, by TENT_LIBCUDA.

Its memory cannot be touched by the processor: a line that takes it for memory of the host ends the process.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import textwrap
from pathlib import Path

import apart
import pytest

NVML = Path(__file__).parents[1] / "fakes" / "nvml" / "src" / "fake.c"
SOURCES = sorted((Path(__file__).parents[1] / "fakes" / "cuda" / "src").glob("*.[ch]"))

# Memory of a device as a framework in the same process makes it.
COMMON = """
    import ctypes, os
    import tent

    gpu = ctypes.CDLL(os.environ["TENT_LIBCUDA"])
    assert gpu.cuInit(0) == 0

    def allocate(device, size):
        assert gpu.fakecuda_enter(device) == 0
        address = ctypes.c_uint64()
        assert gpu.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
        return address.value

    def current():
        device = ctypes.c_int(-1)
        gpu.cuCtxGetDevice(ctypes.byref(device))
        return device.value

    def peek(address, size):
        data = ctypes.create_string_buffer(size)
        assert gpu.fakecuda_peek(data, ctypes.c_uint64(address), ctypes.c_uint64(size), 0) == 0
        return data.raw

    SIZE = 1 << 16
"""

# A byte depends on its position and a seed, and the memory around the region has bands.
ORACLE = """
    from pathlib import Path

    BAND = 4096

    def pattern(seed, size):
        return bytes((at * 131 + at // 251 + seed) % 256 for at in range(size))

    def poke(address, data):
        assert gpu.fakecuda_peek(data, ctypes.c_uint64(address), ctypes.c_uint64(len(data)), 1) == 0

    def taken(engine, region, file):
        return engine.explain(region, file)["taken"]
"""


@pytest.fixture(scope="session", name="library")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of the emulated driver. It is compiled once, although each module that names the fixture has its own."""
    compiler = shutil.which("gcc")
    assert compiler is not None, "the emulated driver is built with gcc, as the extension is"
    name = hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()[:8]
    path = tmp_path_factory.getbasetemp() / f"libcuda-{name}.so"
    if path.exists():
        return str(path)
    sources = [path for path in SOURCES if path.suffix == ".c"]
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-pthread", *sources, "-o", path], check=True
    )
    return str(path)


@pytest.fixture(scope="module", name="nvml")
def management(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of the emulated NVML: the first two GPUs are in an NVLink domain."""
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-fvisibility=hidden", NVML, "-o", path], check=True)
    return str(path)


def passes(library: str, program: str, **settings: str) -> None:
    """Runs a program in a process with the emulated driver."""
    text = textwrap.dedent(COMMON) + textwrap.dedent(program)
    apart.passes(text, TENT_LIBCUDA=library, **{f"TENT_FAKECUDA_{k}": v for k, v in settings.items()})
