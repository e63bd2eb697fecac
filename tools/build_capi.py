"""Builds the C library: `make capi` puts libtent.so, its header and its pkg-config file under build/capi.

    build_capi.py [--prefix build/capi] [--check] [--install /usr/local]

With --check it also compiles the examples and the checks, plainly and with the address and undefined-behaviour
sanitizers, and runs them. With --install it copies the three under another folder, which DESTDIR may precede; tent.pc
finds the others from its own place, so that the folder can be moved. Beside each product stands the key of its inputs:
one that is made of the same is left as it is, as a compiler's cache would. Programs run every time.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import build_gotent
import interpreters

ROOT = build_gotent.ROOT
SOURCE = ROOT / "pybind" / "capi"
HEADER = SOURCE / "include" / "tent" / "transfer_engine.h"
PLUG_INS = ROOT / "transports" / "plugin" / "include"  # of transports in C, which tent loads
DRIVER = ROOT / "tests" / "fakes" / "cuda" / "src"  # the emulated driver of GPUs
LIMIT_S = 120
CC, CXX = os.environ.get("CC", "gcc"), os.environ.get("CXX", "g++")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
OPENER, OPENS = "opened.c", ("-pthread", "-ldl")  # the check that opens the library itself

PKG_CONFIG = """prefix=${{pcfiledir}}/../..
includedir=${{prefix}}/include
libdir=${{prefix}}/lib

Name: tent
Description: moves bytes between the memories of processes and machines
Version: {version}
Cflags: -I${{includedir}}
Libs: -L${{libdir}} -Wl,-rpath,${{libdir}} -ltent
"""


def key_of(files: Iterable[Path], *words: str) -> str:
    """A key of files, by name and content, and of the words of the commands that read them."""
    digest = hashlib.sha256("\0".join(words).encode())
    for file in sorted(files):
        digest.update(f"\0{file}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def make(product: Path, key: str, command: list[str], env: dict[str, str] | None = None) -> None:
    """Runs a command that makes a product, unless the product was made with the same key."""
    stamp = product.with_name(f"{product.name}.key")
    if product.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == key:
        return
    stamp.unlink(missing_ok=True)
    subprocess.run(command, cwd=ROOT, env=env, check=True)
    stamp.write_text(key, encoding="utf-8")


def said(*command: str) -> str:
    """The output of a command: a compiler's version."""
    return subprocess.check_output(command, text=True, cwd=ROOT)


def declared(header: str) -> list[str]:
    """The calls that a header of C declares, by name: each declaration begins a line."""
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    return sorted(re.findall(r"^\w[\w *]*?\b(\w+)\(", code, flags=re.M))


def exported(library: Path) -> list[str]:
    """The symbols that programs and other libraries find in a library."""
    return sorted(line.split()[-1] for line in said("nm", "-D", "--defined-only", str(library)).splitlines())


def build(prefix: Path) -> None:
    """libtent.so, tent/transfer_engine.h and tent.pc under prefix."""
    library, exports = prefix / "lib" / "libtent.so", prefix / "exports.map"
    (prefix / "lib" / "pkgconfig").mkdir(parents=True, exist_ok=True)
    (prefix / "include" / "tent").mkdir(parents=True, exist_ok=True)
    # All other names, as of cgo and the vendors' bindings, are hidden: a library's fatalf or tp_new stays its own.
    names = " ".join(f"{name};" for name in declared(HEADER.read_text(encoding="utf-8")))
    exports.write_text(f"{{ global: {names} local: *; }};\n", encoding="utf-8")
    go = interpreters.go_command()
    release = f"-X {build_gotent.RELEASE}={build_gotent.version()}"
    external = build_gotent.extldflags("-Wl,-soname,libtent.so", *build_gotent.exporting(exports))
    linker = f"-s -w {build_gotent.LINKNAME} {release} {external}"
    command = [go, "build", "-buildmode=c-shared", f"-ldflags={linker}", "-o", str(library), "./pybind/capi"]
    env = build_gotent.go_env(go)
    sources = [ROOT / name for name in build_gotent.source_files()]
    flags = [env.get(name, "") for name in ("GOFLAGS", "CC", "CGO_CFLAGS", "CGO_LDFLAGS")]
    make(library, key_of(sources, *command, *flags, said(go, "version"), said(CC, "--version")), command, env)
    library.with_suffix(".h").unlink(missing_ok=True)  # cgo's own header; people read ours
    for headers in (SOURCE / "include" / "tent", PLUG_INS):
        shutil.copytree(headers, prefix / "include" / "tent", dirs_exist_ok=True)
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
            shutil.copytree(built / name, place, dirs_exist_ok=True, copy_function=put)
        else:
            put(built / name, place)
    print(f"installed under {target}")


def put(file: str | Path, place: str | Path) -> None:
    """Copies a file into the place of another one. Programs that have that one mapped keep it."""
    fresh = f"{place}.new"
    shutil.copy(file, fresh)
    os.replace(fresh, place)


def driver(prefix: Path) -> Path:
    """The emulated driver of GPUs, compiled."""
    library = prefix / "libcuda.so.1"
    sources = sorted(DRIVER.glob("*.c"))
    flags = ("-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-pthread")
    command = [CC, *flags, *map(str, sources), "-o", str(library)]
    make(library, key_of([*DRIVER.iterdir()], *command, said(CC, "--version")), command)
    return library


def plug_in(prefix: Path) -> Path:
    """The example of a transport as a plug-in, compiled, where nobody else may write."""
    library = prefix / "plug-ins" / "inside.so"
    library.parent.mkdir(mode=0o755, exist_ok=True)
    folder = PLUG_INS.parent / "example"
    flags = ("-std=c99", "-O2", "-shared", "-fPIC", "-pthread", f"-I{PLUG_INS}")
    command = [CC, *flags, str(folder / "inside.c"), "-o", str(library)]
    make(library, key_of([*folder.iterdir(), *PLUG_INS.iterdir()], *command, said(CC, "--version")), command)
    library.chmod(0o755)
    return library


def check(prefix: Path) -> None:
    """Compares the library's names with the header's. Compiles and runs the examples and the programs that must be
    refused, with the flags of the header's readers."""
    calls, found = declared(HEADER.read_text(encoding="utf-8")), exported(prefix / "lib" / "libtent.so")
    if calls != found:
        wrong = ", ".join(sorted({*calls} ^ {*found}))
        raise SystemExit(f"libtent.so does not export what transfer_engine.h declares, and nothing else: {wrong}")
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{prefix}/include"]
    link = ["-pthread", f"-L{prefix}/lib", "-Xlinker", f"-rpath={prefix}/lib", "-ltent"]
    compilers = {".c": [CC, "-std=c11"], ".cc": [CXX, "-std=c++11"]}
    given = [*(path for path in (prefix / "include").rglob("*") if path.is_file()), prefix / "lib" / "libtent.so.key"]
    versions = said(CC, "--version") + said(CXX, "--version")
    env = os.environ | {
        "TENT_LIBCUDA": str(driver(prefix)),
        "TENT_CHECK_PLUG_IN": str(plug_in(prefix)),
        "TENT_CHECK_LIBRARY": str(prefix / "lib" / "libtent.so"),
    }
    for source in sorted([*(SOURCE / "examples").iterdir(), *(SOURCE / "checks").iterdir()]):
        linked = OPENS if source.name == OPENER else link
        for name, extra in (("plain", ("-O2",)), ("sanitized", SANITIZERS)):
            program = prefix / f"{source.name}-{name}"
            command = [*compilers[source.suffix], *flags, *extra, str(source), "-o", str(program), *linked]
            make(program, key_of([source, *given], versions, *command), command)
            done = subprocess.run([program], capture_output=True, text=True, timeout=LIMIT_S, env=env)
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
