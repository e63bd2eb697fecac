"""Wheels: built as pip builds them for users, and looked at before anybody gets them.

wheels.py                 make wheel: builds one from an sdist, audits it, and proves install and import everywhere
wheels.py audit FILE      whether its tag is the one that its symbols deserve, and its bill that of what is linked
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import build_gotent
import interpreters
import licences
import tree

ROOT = build_gotent.ROOT
FOLDER = ROOT / "build" / "wheel"
# Every interpreter must do this with an installed wheel: load the extension, and move bytes between engines.
PROOF = """
import tent
with tent.Engine() as near, tent.Engine() as far:
    with near.allocate(1 << 16) as mine, far.allocate(1 << 16, name="kv") as theirs, near.open(far.address) as peer:
        assert near.write(mine, peer["kv"]).result(30) == 1 << 16
print(tent.__version__, "moved 65536 bytes from", tent.__file__)
"""


def build(python: Path, folder: Path = FOLDER, **env: str) -> Path:
    """An sdist, and from it the wheel, so that a file that the sdist lacks is found here. The build requirements are
    installed by hash first: in the isolation of `build` pip takes hashes neither from constraints nor from the
    project."""
    shutil.rmtree(folder, ignore_errors=True)
    wanted = ["build-requirements.txt", *(["build-go.txt"] if build_gotent.find_go() is None else [])]
    for name in wanted:
        interpreters.pip_install(python, "--require-hashes", "--requirement", str(ROOT / "tools" / name))
    command = [str(python), "-m", "build", "--no-isolation", "--outdir", str(folder), "."]
    subprocess.run(command, cwd=ROOT, check=True, env={**interpreters.plain_environment(), **env})
    (wheel,) = folder.glob("*.whl")
    if lacking := lacks(next(folder.glob("*.tar.gz"))):
        raise SystemExit(f"the sdist lacks files that packagers need: {', '.join(lacking)}; see MANIFEST.in")
    wheel.with_suffix(".cdx.json").write_bytes(bill(wheel))
    return wheel


def bill(wheel: Path) -> bytes:
    """The bill of materials that a wheel carries. Raises ValueError where it is not that of the linked extension."""
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        names = archive.namelist()
        text = next((archive.read(name) for name in names if name.endswith(f".dist-info/{licences.BILL}")), None)
        if text is None:
            raise ValueError(f"{wheel.name} has no bill of materials: see WheelWithBill in setup.py")
        extension = next(name for name in names if name.startswith("tent/_gotent"))
        linked = modules(Path(archive.extract(extension, folder)))
    listed = {(each["name"], each["version"]) for each in json.loads(text)["components"]}
    if wrong := listed ^ linked:
        raise ValueError(f"the bill of {wheel.name} and the linked modules differ: {sorted(wrong)}")
    return text


def modules(extension: Path) -> set[tuple[str, str]]:
    """Name and version of Go, as "std", and of each module that a linked file names itself."""
    asked = [interpreters.go_command(), "version", "-m", str(extension)]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    std = re.search(r": go(\S+)$", said, re.M)
    assert std
    return {("std", std[1]), *re.findall(r"^\tdep\t(\S+)\t(\S+)\t", said, re.M)}


def lacks(sdist: Path) -> list[str]:
    """The files of the project that an sdist has not, but for those of git and of the project's own machines."""
    with tarfile.open(sdist) as archive:
        there = {name.partition("/")[2] for name in archive.getnames()}
    return [name for name in tree.files(added=True) if not name.startswith(".") and name not in there]


def audit(wheel: Path) -> str:
    """One line of praise. Raises ValueError when the tag promises more than the symbols keep."""
    promised = re.search(r"-(manylinux_\d+_\d+_\w+)\.whl$", wheel.name)
    if promised is None:
        raise ValueError(f"{wheel.name} has no manylinux tag")
    text = " ".join(run_auditwheel(wheel).split())
    found = re.search(r'is consistent with the following platform tag: "manylinux_(\d+)_(\d+)_(\w+)"', text)
    if found is None:
        raise ValueError(f"auditwheel finds no manylinux tag for {wheel.name}: {text}")
    allowed = f"manylinux_{found[1]}_{found[2]}_{found[3]}"
    if glibc(allowed) > glibc(promised[1]) or not promised[1].endswith(found[3]):
        raise ValueError(f"{wheel.name} promises {promised[1]}, but needs {allowed}")
    return f"{wheel.name}: its symbols are those of {allowed}"


def run_auditwheel(wheel: Path) -> str:
    command = [str(interpreters.tools_python()), "-m", "auditwheel", "show", str(wheel)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def glibc(tag: str) -> tuple[int, int]:
    """(2, 28) of manylinux_2_28_x86_64."""
    _, major, minor, *_ = tag.split("_")
    return int(major), int(minor)


def prove(wheel: Path) -> None:
    """Installs the wheel and moves bytes with it, in a fresh environment of each interpreter."""
    for version, command in interpreters.interpreters().items():
        name = f".venv-wheel-{version}"
        shutil.rmtree(ROOT / name, ignore_errors=True)
        python = interpreters.environment(command, name)
        try:
            interpreters.pip_install(python, "--no-deps", str(wheel))
            done = subprocess.run([python, "-I", "-c", PROOF], capture_output=True, text=True, cwd="/", timeout=60)
            if done.returncode != 0:
                raise ValueError(f"Python {version} cannot use {wheel.name}:\n{done.stderr}")
            print(f"Python {version}: {done.stdout.strip()}", flush=True)
        finally:
            shutil.rmtree(ROOT / name)


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds and checks wheels.")
    parser.add_argument("what", nargs="?", choices=("all", "audit", "build"), default="all")
    parser.add_argument("wheel", nargs="?", type=Path)
    args = parser.parse_args()
    try:
        wheel = args.wheel or build(interpreters.tools_python())
        if args.what != "build":
            print(audit(wheel), flush=True)
            bill(wheel)
        if args.what == "all":
            prove(wheel)
    except ValueError as error:
        print(error)
        return 1
    print(wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
