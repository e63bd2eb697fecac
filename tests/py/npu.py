"""Programs with memory of NPUs, in processes of their own with the emulated libraries of tests/fakes/ascend.

Its memory cannot be touched by the processor: a line that takes it for memory of the host ends the process.
"""

from __future__ import annotations

import shutil
import subprocess
import textwrap
from dataclasses import dataclass
from pathlib import Path

import apart
import pytest

ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests" / "fakes" / "ascend"
SHIM = ROOT / "transports" / "ascend" / "shim" / "tent_ascend.cc"

# Memory of a device as torch_npu in the same process makes it.
COMMON = """
    import ctypes, os
    import tent

    npu = ctypes.CDLL(os.environ["TENT_LIBASCENDCL"])
    SIZE = 1 << 16

    def allocate(device, size):
        assert npu.fakeacl_enter(device) == 0
        address = ctypes.c_void_p()
        assert npu.aclrtMalloc(ctypes.byref(address), ctypes.c_size_t(size), 1) == 0
        return address.value

    def peek(address, size):
        data = ctypes.create_string_buffer(size)
        assert npu.fakeacl_peek(data, ctypes.c_uint64(address), ctypes.c_uint64(size), 0) == 0
        return data.raw

    def poke(address, data):
        assert npu.fakeacl_peek(data, ctypes.c_uint64(address), ctypes.c_uint64(len(data)), 1) == 0
"""


@dataclass
class Libraries:
    """Paths of the emulated libraries; hixl and shim are empty without a C++ compiler."""

    runtime: str
    hixl: str
    shim: str

    def environment(self) -> dict[str, str]:
        found = {"TENT_LIBASCENDCL": self.runtime}
        if self.shim:
            found |= {"TENT_LIBMETADEF": self.hixl, "TENT_LIBHIXL": self.hixl, "TENT_LIBASCEND": self.shim}
        return found


@pytest.fixture(scope="module", name="libraries")
def built(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    """Compiles them."""
    compiler = shutil.which("gcc")
    assert compiler is not None, "the emulated runtime is built with gcc, as the extension is"
    folder = tmp_path_factory.mktemp("ascend")
    common = ["-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-pthread"]
    runtime = folder / "libascendcl.so"
    subprocess.run([compiler, *common, FAKES / "src" / "acl.c", "-o", runtime], check=True)
    if (plus := shutil.which("g++")) is None:
        return Libraries(str(runtime), "", "")
    hixl, shim = folder / "libcann_hixl.so", folder / "libtent_ascend.so"
    other = [plus, "-std=c++17", *common, "-D_GLIBCXX_USE_CXX11_ABI=0"]
    subprocess.run([*other, FAKES / "hixl" / "hixl.cc", "-o", hixl], check=True)
    subprocess.run([plus, "-std=c++17", *common, SHIM, "-o", shim], check=True)
    return Libraries(str(runtime), str(hixl), str(shim))


def passes(libraries: Libraries, program: str, **settings: str) -> None:
    """Runs a program in a process with the emulated libraries."""
    text = textwrap.dedent(COMMON) + textwrap.dedent(program)
    apart.passes(text, **libraries.environment(), **{f"TENT_FAKEACL_{k}": v for k, v in settings.items()})
