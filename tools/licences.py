"""Writes THIRD_PARTY_LICENSES: the notices of all Go code that is linked into the extension and the C library.

    licences.py                # writes it
    licences.py --check        # exits with 1 if it is old
    licences.py --sbom FILE    # instead writes the same parts as a software bill of materials (CycloneDX 1.5)

The texts come from the module cache, which go.sum holds to their hashes, and that of Go from its folder. Packages of Go
(PyPI's, Debian's) leave it out there: then it is the one that the file has. Wheel and sdist carry the file
(pyproject.toml), and the wheel its own bill of materials (setup.py, PEP 770); tests/py/test_packaging.py and
tools/wheels.py compare both lists with the modules that the linked extension names itself.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import build_gotent
import generated
import interpreters

ROOT = build_gotent.ROOT
FILE = ROOT / "THIRD_PARTY_LICENSES"
PROGRAMS = (f"./{build_gotent.FACADE}", f"./{build_gotent.FACADE}/capi")
NOTICES = re.compile(r"(?i)(licen[cs]e|copying|notice|patents)([.-].*)?")
RULE = "=" * 100
GO = "Go standard library and runtime"
PACKAGE = "tent-engine"
BILL = f"sboms/{PACKAGE}.cdx.json"  # below a wheel's .dist-info, as PEP 770 has it
# The first phrase that a text has names its licence.
KINDS = (
    ("Apache-2.0", "Apache License"),
    ("MIT", "Permission is hereby granted, free of charge"),
    ("BSD-3-Clause", "contributors may be used to endorse"),
    ("BSD-3-Clause", "be used to endorse or promote products"),
    ("BSD-2-Clause", "Redistribution and use in source and binary forms"),
)


class Part(NamedTuple):
    """A module that is linked, with its notices: file names and texts."""

    name: str
    version: str
    notices: tuple[tuple[str, str], ...]

    @property
    def licence(self) -> str:
        """Its SPDX expression."""
        texts = [" ".join(text.split()) for _, text in self.notices]
        found = {next((kind for kind, phrase in KINDS if phrase in text), "") for text in texts} - {""}
        if not found:
            raise SystemExit(f"the licence of {self.name} has no known text: look at it, and extend KINDS")
        return " AND ".join(sorted(found))


def parts(go: str) -> list[Part]:
    """Go itself and every module of which a package is linked, by name."""
    env = build_gotent.go_env(go)
    form = "{{with .Module}}{{.Path}}\t{{.Version}}\t{{.Dir}}{{end}}\t{{.Dir}}"
    listed = subprocess.check_output([go, "list", "-deps", "-f", form, *PROGRAMS], cwd=ROOT, env=env, text=True)
    folders: dict[tuple[str, str, str], set[Path]] = {}
    for line in listed.splitlines():
        name, version, top, folder = line.rjust(len(line) + 3, "\t").split("\t")[-4:]
        if version:  # else the standard library, or this project
            folders.setdefault((name, version, top), set()).add(Path(folder))
    root, version = (
        subprocess.check_output([go, "env", key], env=env, cwd="/", text=True).strip()
        for key in ("GOROOT", "GOVERSION")
    )
    found = [Part(GO, version, notices(Path(root), set()) or kept_of_go())]
    for (name, version, top), packages in sorted(folders.items()):
        found.append(Part(name, version, notices(Path(top), packages)))
    return found


def notices(top: Path, packages: set[Path]) -> tuple[tuple[str, str], ...]:
    """The notices of a module: at its top, and on the way down to the packages that are linked. None if it has none,
    which Part.licence refuses."""
    folders = {top}
    for package in packages:
        folders |= {folder for folder in (package, *package.parents) if folder.is_relative_to(top)}
    files = sorted(f for folder in folders for f in folder.iterdir() if f.is_file() and NOTICES.fullmatch(f.name))
    return tuple((str(f.relative_to(top)), f.read_text(encoding="utf-8", errors="replace")) for f in files)


def kept_of_go() -> tuple[tuple[str, str], ...]:
    """The notices of Go that FILE has. They are the same for every release of Go that can build tent."""
    heads_and_texts = [part.strip() for part in FILE.read_text(encoding="utf-8").split(RULE)][1:]
    sections = zip(heads_and_texts[::2], heads_and_texts[1::2])
    return tuple((head.rpartition(": ")[2], text) for head, text in sections if head.startswith(GO))


def text(found: list[Part]) -> str:
    """The file, the same with every release of Go that can build tent."""
    lines = ["The compiled parts of tent contain the code of these projects. Their notices stand below.", ""]
    found = [part._replace(version="of any version") if part.name == GO else part for part in found]
    lines += [f"  {part.name} {part.version}: {part.licence}" for part in found]
    for part in found:
        for name, notice in part.notices:
            lines += ["", RULE, f"{part.name} {part.version}: {name}", RULE, "", notice.strip()]
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines()) + "\n"


def bill(found: list[Part], version: str) -> dict[str, Any]:
    """The parts as CycloneDX has them."""
    go, *modules = found
    components: list[dict[str, Any]] = [{"type": "library", "name": "std", "version": go.version.removeprefix("go")}]
    components[0] |= {"purl": f"pkg:golang/std@{go.version.removeprefix('go')}"}
    for part in modules:
        module = f"pkg:golang/{part.name}@{part.version}"
        components.append({"type": "library", "name": part.name, "version": part.version, "purl": module})
    for component, part in zip(components, found, strict=True):
        component["bom-ref"] = component["purl"]
        component["licenses"] = [{"expression": part.licence}]
    purl = f"pkg:pypi/{PACKAGE}@{version}"
    subject: dict[str, Any] = {"type": "library", "name": PACKAGE, "version": version, "purl": purl, "bom-ref": purl}
    subject |= {"licenses": [{"license": {"id": "Apache-2.0"}}]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": subject},
        "components": components,
        "dependencies": [{"ref": purl, "dependsOn": [component["bom-ref"] for component in components]}],
    }


def write_bill(go: str, file: Path) -> None:
    """Writes the bill of materials of the modules that this Go links, and makes its folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(bill(parts(go), build_gotent.version()), indent=2) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Notices of all code that is linked.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the file is old")
    parser.add_argument("--sbom", type=Path, metavar="FILE", help="write a bill of materials instead")
    options = parser.parse_args()
    go = interpreters.go_command()
    if options.sbom:
        write_bill(go, options.sbom)
        return 0
    return generated.renew({FILE: text(parts(go))}, "python tools/licences.py", check=options.check)


if __name__ == "__main__":
    sys.exit(main())
