"""make check-gpu, with the emulated driver: working ways and broken ones are told apart, and the page is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu import driver, management  # noqa: F401

PROGRAM = Path(__file__).parents[1] / "bench" / "checkgpu.py"
QUICK = ("--no-suite", "--rounds=1", "--megabytes=2", "--pages=16")
CHECKS = 9


def run(folder: Path, library: str, **settings: str) -> tuple[int, str, str]:
    """The exit code, the page and the output."""
    page = folder / "page.md"
    env = os.environ | {"TENT_LIBCUDA": library} | {f"TENT_FAKECUDA_{k}": v for k, v in settings.items()}
    command = [sys.executable, PROGRAM, *QUICK, "--page", page]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=env)
    return done.returncode, page.read_text() if page.exists() else "", done.stdout + done.stderr


def test_every_way_is_checked_and_measured(
    library: str, nvml: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENT_LIBNVIDIA_ML", nvml)
    code, page, output = run(tmp_path, library, IMEX="1")
    assert code == 0, output
    assert page.count("| passed in") + page.count("| not here: ") == CHECKS, page
    assert "| not here: " not in page.replace("not here: no torch", "").replace("not here: torch sees", ""), page
    assert page.count("GB/s") == 12, page


@pytest.mark.long
def test_checks_that_fail_are_told(library: str, tmp_path: Path) -> None:
    """The GPU has too little memory, and every check tells it instead of the first one alone."""
    code, page, output = run(tmp_path, library, BYTES=str(3 << 20))
    assert code == 1, output
    assert page.count("| FAILED: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY |") == CHECKS - 4, page
    assert page.count("| FAILED: the other process has ended |") == 2 and "Not measured" in page, page
    assert page.count("| memory for other hosts (mnnvl) | not here: nvml: no NVML: ") == 1, page


def test_without_a_gpu_it_says_what_is_missing(tmp_path: Path) -> None:
    code, page, output = run(tmp_path, str(tmp_path / "libabsent.so"))
    assert (code, page) == (1, "") and "check-gpu needs a GPU and its driver" in output and "libabsent.so" in output
