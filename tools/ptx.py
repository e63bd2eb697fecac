"""Makes the kernel that tent embeds, transports/cuda/driver/copy.ptx, of copy.cu by NVIDIA's compiler.

ptx.py            writes it, when its assembler takes it for each architecture
ptx.py --check    compares instead; exits with SKIPPED, and the reason, where the compiler's wheel cannot be had

The driver of the machine assembles PTX for its own GPU. The text is of a version that drivers from CUDA 9 on know: the
kernel needs nothing newer.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import nvidia
from running import ROOT, SKIPPED

FOLDER = ROOT / "transports" / "cuda" / "driver"
SOURCES = ("copy.cu", "copy.h")
PTX = FOLDER / "copy.ptx"
OPTIONS = ("--gpu-architecture=compute_70", "--std=c++17", f"--include-path={FOLDER}")
VERSION = "6.0"  # of PTX; the first that knows sm_70
ASSEMBLED = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90")


def digest() -> str:
    """The hash of the sources. The text names it, so that a test sees sources that have changed since."""
    return hashlib.sha256(b"".join((FOLDER / name).read_bytes() for name in SOURCES)).hexdigest()


def compiled(library: Path, builtins: Path) -> str:
    """The PTX of copy.cu."""
    ctypes.CDLL(str(builtins))  # the library asks the loader for it by its name alone
    nvrtc = ctypes.CDLL(str(library))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    source = (FOLDER / SOURCES[0]).read_bytes()

    def text(name: str) -> str:
        getattr(nvrtc, f"nvrtcGet{name}Size")(program, ctypes.byref(size))
        into = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, f"nvrtcGet{name}")(program, into)
        return into.value.decode()

    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, SOURCES[0].encode(), 0, None, None)
    options = (ctypes.c_char_p * len(OPTIONS))(*(option.encode() for option in OPTIONS))
    if nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options) != 0:
        raise SystemExit(text("ProgramLog"))
    return text("PTX")


def finished(made: str) -> str:
    """The text without the compiler's own comments, of VERSION."""
    body = made[made.index(".version") :]
    body = re.sub(r"^\.version .*$", f".version {VERSION}", body, count=1, flags=re.M)
    return f"// Of {' and '.join(SOURCES)}, SHA-256 {digest()}, by tools/ptx.py.\n{body.strip()}\n"


def assemble(assembler: Path, text: str) -> None:
    """CalledProcessError where the assembler refuses the text for some architecture."""
    assembler.chmod(0o755)  # a wheel's archive has no modes
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "copy.ptx", Path(folder) / "copy.cubin"
        source.write_text(text, encoding="utf-8")
        for name in ASSEMBLED:
            subprocess.run([assembler, f"--gpu-name={name}", source, "-o", made], check=True, timeout=60)


def main() -> int:
    parser = argparse.ArgumentParser(description="Makes the kernel that tent embeds.")
    parser.add_argument("--check", action="store_true", help="compare with the file, and write nothing")
    args = parser.parse_args()
    try:
        library, builtins, assembler = nvidia.COMPILER.fetch()
    except OSError as error:
        print(f"no {nvidia.COMPILER.name} of NVIDIA: {error}")
        return SKIPPED
    text = finished(compiled(library, builtins))
    assemble(assembler, text)
    if not args.check:
        PTX.write_text(text, encoding="utf-8")
    elif text != PTX.read_text(encoding="utf-8"):
        print(f"{PTX.relative_to(ROOT)} is not what {SOURCES[0]} gives: run tools/ptx.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
