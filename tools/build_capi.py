"""Builds the C library: `make capi` puts libtent.so, its header and its pkg-config file under build/capi.

    build_capi.py [--prefix build/capi] [--check]

With --check it also compiles the examples and the checks, plainly and with the address and undefined-behaviour
sanitizers, and runs them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import build_gotent
import interpreters

ROOT = build_gotent.ROOT
SOURCE = ROOT / "pybind" / "capi"
LIMIT_S = 120
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")

PKG_CONFIG = """prefix={prefix}
includedir=${{prefix}}/include
libdir=${{prefix}}/lib

Name: tent
Description: moves bytes between the memories of processes and machines
Version: {version}
Cflags: -I${{includedir}}
Libs: -L${{libdir}} -Wl,-rpath,${{libdir}} -ltent
"""


def version() -> str:
    text = (ROOT / "tent" / "_version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', text, re.M)
    assert found is not None
    return found.group(1)


def build(prefix: Path) -> None:
    """libtent.so, tent/transfer_engine.h and tent.pc under prefix."""
    library = prefix / "lib" / "libtent.so"
    (prefix / "lib" / "pkgconfig").mkdir(parents=True, exist_ok=True)
    (prefix / "include" / "tent").mkdir(parents=True, exist_ok=True)
    go = interpreters.go_command()
    linker = f"-s -w {build_gotent.LINKNAME} -extldflags=-Wl,-soname,libtent.so"
    command = [go, "build", "-buildmode=c-shared", f"-ldflags={linker}", "-o", str(library), "./pybind/capi"]
    subprocess.run(command, cwd=ROOT, env=build_gotent.go_env(go), check=True)
    library.with_suffix(".h").unlink(missing_ok=True)  # cgo's own header; people read ours
    shutil.copytree(SOURCE / "include" / "tent", prefix / "include" / "tent", dirs_exist_ok=True)
    text = PKG_CONFIG.format(prefix=prefix, version=version())
    (prefix / "lib" / "pkgconfig" / "tent.pc").write_text(text, encoding="utf-8")


def check(prefix: Path) -> None:
    """Compiles and runs the examples and the programs that must be refused, with the flags of the header's readers."""
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{prefix}/include"]
    link = ["-pthread", f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib", "-ltent"]
    compilers = {".c": [os.environ.get("CC", "gcc"), "-std=c11"], ".cc": [os.environ.get("CXX", "g++"), "-std=c++17"]}
    for source in sorted([*(SOURCE / "examples").iterdir(), *(SOURCE / "checks").iterdir()]):
        for name, extra in (("plain", ("-O2",)), ("sanitized", SANITIZERS)):
            program = prefix / f"{source.name}-{name}"
            subprocess.run([*compilers[source.suffix], *flags, *extra, source, "-o", program, *link], check=True)
            done = subprocess.run([program], capture_output=True, text=True, timeout=LIMIT_S)
            if done.returncode != 0:
                raise SystemExit(f"{source.name} ({name}) failed:\n{done.stdout}{done.stderr}")
            print(f"  {source.name} ({name}): {done.stdout.strip()}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds libtent.so.")
    parser.add_argument("--prefix", type=Path, default=ROOT / "build" / "capi", help="where it goes")
    parser.add_argument("--check", action="store_true", help="compile and run the examples as well")
    args = parser.parse_args()
    prefix = args.prefix.resolve()
    build(prefix)
    if args.check:
        check(prefix)
    print(f"libtent.so, tent/transfer_engine.h and tent.pc are under {prefix}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
