"""`make ascend-shim` compiles the shim of HIXL without CANN, and the library needs exactly HIXL then."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build" / "ascend" / "libtent_ascend.so"


def test_the_shim_is_compiled_without_cann_and_does_not_load_without_it() -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++: the shim of HIXL is C++")
    LIBRARY.unlink(missing_ok=True)
    make = ["make", "--no-print-directory", "-C", str(ROOT), "ascend-shim", "ASCEND_HOME_PATH=/nonexistent"]
    done = subprocess.run(make, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "warnings"
    with pytest.raises(OSError, match=r"undefined symbol: _ZNK?(4hixl|2ge)"):
        ctypes.CDLL(str(LIBRARY))


def test_without_a_compiler_make_says_what_is_missing() -> None:
    make = ["make", "--no-print-directory", "-C", str(ROOT), "ascend-shim", "CXX=/nonexistent/g++"]
    done = subprocess.run(make, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "no /nonexistent/g++: the shim is C++" in done.stdout
