"""The tests of Python with memory of GPUs, over the driver of this machine instead of the emulated one."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

from gpupage import Counted

TESTS = Path(__file__).resolve().parents[1] / "py"
FILES = ("test_cuda.py", "test_gpu_streams.py", "test_gpu_staging.py", "test_gpu_errors.py", "test_gds.py",
         "test_driver_rules.py", "test_driver_rules_work.py", "test_driver_rules_shared.py")  # fmt: skip
LIMIT = 900  # seconds of all tests
SUMMARY = re.compile(r"^=* ?(\d+ (?:passed|failed|skipped|error).*?) in [\d.]+s.*$", re.MULTILINE)


def run() -> str | None:
    """Counts of the tests; a reason where there are none. AssertionError with the counts, and the names that failed."""
    if importlib.util.find_spec("pytest") is None:
        return "no pytest"
    if named := os.environ.get("TENT_LIBCUDA"):
        return f"TENT_LIBCUDA names another driver, {named}"
    root = TESTS.parents[1]
    plain = ["-c", os.devnull, f"--rootdir={root}", "-p", "no:cacheprovider", "-p", "pytester"]  # needs no plug-ins
    command = [sys.executable, "-m", "pytest", "-q", "-rfEs", *plain, *(str(TESTS / f) for f in FILES)]
    env = os.environ | {"TENT_REAL_GPU": "1"}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=LIMIT)
    found = SUMMARY.findall(done.stdout)
    counts = found[-1] if found else f"pytest ended with {done.returncode}"
    if done.returncode:
        print(done.stdout + done.stderr, flush=True)
        failed = re.findall(r"^(?:FAILED|ERROR) \S*?([^/:\s]+::\S+)", done.stdout, re.MULTILINE)
        raise AssertionError(f"{counts}: {', '.join(failed)}")
    return Counted(counts)
