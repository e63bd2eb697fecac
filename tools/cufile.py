"""NVIDIA's own libcufile, for tests: out of its wheel, by hash. It is an optional download of `make test-all`.

cufile.py                 prints the path of the library; exits with SKIPPED, and the reason, where there is none
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from running import ROOT, SKIPPED

WANTED = ROOT / "tools" / "cufile.txt"
FOLDER = ROOT / "build" / "cufile"
LIBRARY = "nvidia/cufile/lib/libcufile.so.0"
LIMIT_S = 300


def library() -> Path:
    """The path of the library, downloaded at the first call. OSError says why there is none."""
    made, key = FOLDER / LIBRARY, FOLDER / "key"
    wanted = WANTED.read_text(encoding="utf-8")
    if made.is_file() and key.is_file() and key.read_text(encoding="utf-8") == wanted:
        return made
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.whl"):
        old.unlink()
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    words = [*download, "--require-hashes", "--requirement", str(WANTED), "--dest", str(FOLDER)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"pip took more than {LIMIT_S} s") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise OSError(lines[-1] if lines else "pip failed")
    (wheel,) = FOLDER.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(LIBRARY, FOLDER)
    key.write_text(wanted, encoding="utf-8")
    return made


def main() -> int:
    try:
        print(library())
    except OSError as error:
        print(f"no libcufile of NVIDIA: {error}")
        return SKIPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
