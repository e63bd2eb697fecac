"""Programs with memory of GPUs, in processes of their own with an emulated driver: tests/fakes/cuda, by TENT_LIBCUDA.

Its memory cannot be touched by the processor: a line that takes it for memory of the host ends the process.

With TENT_REAL_GPU=1 the programs use the driver of the machine, through the doors of tests/fakes/cuda/real. A test that
needs more than a real driver has, or more devices than the machine has, is skipped there with the reason.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterable
from pathlib import Path

import apart
import pytest

NVML = Path(__file__).parents[1] / "fakes" / "nvml" / "src" / "fake.c"
CUDA = Path(__file__).parents[1] / "fakes" / "cuda"
CUFILE = Path(__file__).parents[1] / "fakes" / "cufile" / "src" / "fake.c"
SOURCES = sorted((CUDA / "src").glob("*.[ch]"))
DOORS = [CUDA / "src" / "doors.h", CUDA / "src" / "doors.c", CUDA / "real" / "doors.c"]

REAL = os.environ.get("TENT_REAL_GPU") == "1"
EMULATED = re.compile(r"fakecuda_(?:hold|inject|forgive|stats|flushes)\b")  # doors that no real driver has
HARMLESS = {"DELAY_US", "SEED"}  # settings that no program sees

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

    count = ctypes.c_int()
    assert gpu.cuDeviceGetCount(ctypes.byref(count)) == 0
    LAST = count.value - 1  # 1 of the emulated driver's two devices, 0 on a machine with one GPU

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
    """The path of the emulated driver, or of the doors to a real one.

    It is compiled once, although each module that names the fixture has its own.
    """
    compiler = shutil.which("gcc")
    assert compiler is not None, "the emulated driver is built with gcc, as the extension is"
    files = DOORS if REAL else SOURCES
    name = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:8]
    folder = tmp_path_factory.getbasetemp()
    path = folder / f"libcuda-{name}.so"
    if path.exists():
        return str(path)
    command = [compiler, "-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-pthread"]
    command += [str(file) for file in files if file.suffix == ".c"]
    if REAL:  # an empty library has the name of the driver: the symbols are found when a process loads both
        stub = folder / f"stub-{name}"
        stub.mkdir(exist_ok=True)
        named = ["-Wl,-soname,libcuda.so.1", "-x", "c", "/dev/null", "-o", str(stub / "libcuda.so.1")]
        subprocess.run([compiler, "-shared", *named], check=True)
        command += ["-Wl,--no-as-needed", str(stub / "libcuda.so.1")]
    subprocess.run([*command, "-o", path], check=True)
    return str(path)


@functools.cache
def devices_here(library: str) -> int:
    """The devices of the machine, counted in a process of its own: this one may fork, so it uses no driver."""
    program = "import ctypes, os; print(ctypes.CDLL(os.environ['TENT_LIBCUDA']).fakecuda_devices())"
    return int(apart.passes(program, TENT_LIBCUDA=library))


def needs(library: str, program: str = "", devices: int = 1, settings: Iterable[str] = ()) -> None:
    """Skips a test on a real driver that has not all doors of a program, its settings, or its number of devices."""
    if not REAL:
        return
    if door := EMULATED.search(program):
        pytest.skip(f"a real driver has no {door.group()}")
    if emulated := sorted(set(settings) - HARMLESS):
        pytest.skip(f"only the emulated driver has the setting {emulated[0]}")
    if (here := devices_here(library)) < devices:
        pytest.skip(f"the test needs {devices} devices, and this machine has {here}")


@pytest.fixture(scope="module", name="nvml")
def management(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of the emulated NVML: the first two GPUs are in an NVLink domain."""
    if REAL:
        pytest.skip("the emulated NVML knows the emulated GPUs alone")
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-fvisibility=hidden", NVML, "-o", path], check=True)
    return str(path)


@pytest.fixture(scope="module", name="cufile")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of the emulated cuFile."""
    compiler = shutil.which("gcc")
    assert compiler is not None, "the emulated library is built with gcc, as the extension is"
    path = tmp_path_factory.mktemp("cufile") / "libcufile.so.0"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-pthread", CUFILE, "-o", path], check=True
    )
    return str(path)


def passes(library: str, program: str, *, devices: int = 1, **settings: str) -> str:
    """Runs a program in a process with the driver, and returns its output. It uses that many devices at least."""
    needs(library, program, devices, settings)
    text = textwrap.dedent(COMMON) + textwrap.dedent(program)
    return apart.passes(text, TENT_LIBCUDA=library, **{f"TENT_FAKECUDA_{k}": v for k, v in settings.items()})


def keeps(library: str, program: str, *, devices: int = 1, **settings: str) -> None:
    """Runs a program with rules of the driver in a process of its own, see driver_side.py.

    TENT_DRIVER_REPORT names a file that takes all its lines, also those of rules that are kept.
    """
    needs(library, program, devices, settings)
    here = str(Path(__file__).parent)
    head = f"import sys; sys.path.insert(0, {here!r})\nfrom driver_side import *\n"
    text = head + textwrap.dedent(program) + "\nfinish()\n"
    settings = {f"TENT_FAKECUDA_{k}": v for k, v in settings.items()}
    done = apart.run(text, flags=("-X", "faulthandler"), timeout=115, TENT_LIBCUDA=library, **settings)
    if named := os.environ.get("TENT_DRIVER_REPORT"):
        with Path(named).open("a") as file:
            file.write(f"{os.environ.get('PYTEST_CURRENT_TEST')}: {done.returncode}\n{done.stdout}{done.stderr}\n")
    broken = [line for line in done.stdout.splitlines() if line.startswith("BROKEN: ")]
    assert done.returncode == 0 and not broken, "\n".join([*broken, done.stderr])
