"""Builds the C library: `make capi` puts libtent.so, its header and its pkg-config file under build/capi.

    build_capi.py [--prefix build/capi] [--check] [--install /usr/local]

With --check it also compiles the examples and the checks, plainly and with the address and undefined-behaviour
sanitizers, and runs them. With --install it copies the three under another folder, which DESTDIR may precede; tent.pc
finds the others from its own place, so that the folder can be moved.
"""

from __future__ import annotations

import argparse
import os
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

PKG_CONFIG = """prefix=${{pcfiledir}}/../..
includedir=${{prefix}}/include
libdir=${{prefix}}/lib

Name: tent
Description: moves bytes between the memories of processes and machines
Version: {version}
Cflags: -I${{includedir}}
Libs: -L${{libdir}} -Wl,-rpath,${{libdir}} -ltent
"""


def build(prefix: Path) -> None:
    """libtent.so, tent/transfer_engine.h and tent.pc under prefix."""
    library = prefix / "lib" / "libtent.so"
    (prefix / "lib" / "pkgconfig").mkdir(parents=True, exist_ok=True)
    (prefix / "include" / "tent").mkdir(parents=True, exist_ok=True)
    go = interpreters.go_command()
    release = f"-X {build_gotent.RELEASE}={build_gotent.version()}"
    linker = f"-s -w {build_gotent.LINKNAME} {release} -extldflags=-Wl,-soname,libtent.so"
    command = [go, "build", "-buildmode=c-shared", f"-ldflags={linker}", "-o", str(library), "./pybind/capi"]
    subprocess.run(command, cwd=ROOT, env=build_gotent.go_env(go), check=True)
    library.with_suffix(".h").unlink(missing_ok=True)  # cgo's own header; people read ours
    shutil.copytree(SOURCE / "include" / "tent", prefix / "include" / "tent", dirs_exist_ok=True)
    (prefix / "lib" / "pkgconfig" / "tent.pc").write_text(pkg_config(), encoding="utf-8")


def pkg_config() -> str:
    """The text of tent.pc."""
    return PKG_CONFIG.format(version=build_gotent.version())


def install(built: Path, prefix: Path) -> None:
    """Copies the library, its header and tent.pc under prefix, below the folder that DESTDIR names, if any."""
    target = Path(os.environ.get("DESTDIR", "") + str(prefix))
    for name in ("lib/libtent.so", "lib/pkgconfig/tent.pc", "include/tent"):
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if (built / name).is_dir():
            shutil.copytree(built / name, place, dirs_exist_ok=True)
        else:
            shutil.copy(built / name, place)
    print(f"installed under {target}")


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
    parser.add_argument("--install", type=Path, metavar="PREFIX", help="copy it there, below $DESTDIR")
    args = parser.parse_args()
    prefix = args.prefix.resolve()
    build(prefix)
    if args.check:
        check(prefix)
    if args.install:
        install(prefix, Path(os.path.abspath(args.install)))
    print(f"libtent.so, tent/transfer_engine.h and tent.pc are under {prefix}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
