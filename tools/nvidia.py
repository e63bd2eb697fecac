"""Files of NVIDIA's that tests compare tent with: out of its wheels, by hash. tent neither contains nor installs them.

nvidia.py cufile | headers | compiler   prints their paths; exits with SKIPPED, and the reason, where there are none
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from running import ROOT, SKIPPED

BUILD = ROOT / "build"
LIMIT_S = 300


@dataclass(frozen=True)
class Wanted:
    """Files of the wheels that a list of requirements names, and how people call them."""

    name: str
    requirements: Path
    members: tuple[str, ...]

    def fetch(self) -> list[Path]:
        """The paths of the files, downloaded at the first call. OSError says why there are none."""
        folder = BUILD / self.requirements.stem
        made, key = [folder / member for member in self.members], folder / "key"
        wanted = self.requirements.read_text(encoding="utf-8")
        if all(map(Path.is_file, made)) and key.is_file() and key.read_text(encoding="utf-8") == wanted:
            return made
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.whl"):
            old.unlink()
        self._download(folder)
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for member in set(self.members) & set(archive.namelist()):
                    archive.extract(member, folder)
        if lacking := [str(path) for path in made if not path.is_file()]:
            raise OSError(f"no wheel has {', '.join(lacking)}")
        key.write_text(wanted, encoding="utf-8")
        return made

    def _download(self, folder: Path) -> None:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        words = [*download, "--require-hashes", "--requirement", str(self.requirements), "--dest", str(folder)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise OSError(f"pip took more than {LIMIT_S} s") from error
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise OSError(lines[-1] if lines else "pip failed")


CUFILE = Wanted("libcufile", ROOT / "tools" / "cufile.txt", ("nvidia/cufile/lib/libcufile.so.0",))
HEADERS = Wanted(
    "cuda.h",
    ROOT / "tools" / "cuda-headers.txt",
    ("nvidia/cuda_runtime/include/cuda.h", "nvidia/cu13/include/cuda.h"),
)
COMPILER = Wanted(
    "compiler of kernels",
    ROOT / "tools" / "nvrtc.txt",
    (
        "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        "nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.4",
        "nvidia/cuda_nvcc/bin/ptxas",
    ),
)
FILES = {"cufile": CUFILE, "headers": HEADERS, "compiler": COMPILER}


def main() -> int:
    parser = argparse.ArgumentParser(description="Takes files for tests out of NVIDIA's wheels.")
    parser.add_argument("what", choices=FILES)
    wanted = FILES[parser.parse_args().what]
    try:
        print(*wanted.fetch(), sep="\n")
    except OSError as error:
        print(f"no {wanted.name} of NVIDIA: {error}")
        return SKIPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
