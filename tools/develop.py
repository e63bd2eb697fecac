"""Installs tent, editable, in the environment of the interpreter that runs this: `make develop`.

The build requirements are installed there first, by hash, and pip builds with these: in the isolation that it makes by
itself it knows no hashes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import build_gotent

TOOLS = Path(__file__).resolve().parent


def pip(*words: str) -> None:
    """One `pip install`; its failure ends this program with the same status."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(command, cwd=build_gotent.ROOT)
    if done.returncode:
        sys.exit(done.returncode)


def main() -> None:
    pip("--require-hashes", "--requirement", str(TOOLS / "build-requirements.txt"))
    if build_gotent.find_go() is None:
        build_gotent.announce()
        pip("--require-hashes", "--requirement", str(TOOLS / "build-go.txt"))
    before = [sys.executable, "-m", "pip", "uninstall", "--quiet", "--yes", "--disable-pip-version-check", "tent"]
    subprocess.run(before, cwd=build_gotent.ROOT, stderr=subprocess.DEVNULL)  # its name before it was tent-engine
    shutil.rmtree(build_gotent.ROOT / "tent.egg-info", ignore_errors=True)
    pip("--no-build-isolation", "--editable", ".")


if __name__ == "__main__":
    main()
