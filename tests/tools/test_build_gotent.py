"""The build of the extension module: the words that it gives to Go, its linker and cgo."""

from __future__ import annotations

import subprocess
from pathlib import Path

import build_gotent
import interpreters
import pytest

SOURCE = """package main

import "C"

//export kept
func kept() {}

//export hidden
func hidden() {}

func main() {}
"""


@pytest.mark.parametrize("name", ["with a space", "with,a comma"])
def test_the_name_of_a_folder_reaches_the_c_linker_whole(tmp_path: Path, name: str) -> None:
    """TMPDIR and the clone may be called so, and the list of the symbols that are exported lies there."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "go.mod").write_text("module small\n\ngo 1.26\n")
    (folder / "main.go").write_text(SOURCE)
    exports = folder / "exports.map"
    exports.write_text("{ global: kept; local: *; };\n")
    go = interpreters.go_command()
    flags = f"-ldflags=-s -w {build_gotent.extldflags(*build_gotent.exporting(exports))}"
    command = [go, "build", "-buildmode=c-shared", flags, "-o", "small.so", "."]
    subprocess.run(command, cwd=folder, env=build_gotent.go_env(go), check=True)
    symbols = subprocess.check_output(["nm", "-D", "--defined-only", "small.so"], cwd=folder, text=True)
    assert {line.split()[-1] for line in symbols.splitlines()} == {"kept"}


INCLUDES = """package main

// #include "there.h"
import "C"

func main() {
	if C.THERE != 7 {
		panic("another header")
	}
}
"""


@pytest.mark.parametrize("name", ["a second download (1)", "it's", 'a "name"', "päth & #;"])
def test_the_name_of_a_folder_reaches_cgo_whole(tmp_path: Path, name: str) -> None:
    """A clone may be called so, and Go's caches lie there where the machine has no Go."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "there.h").write_text("#define THERE 7\n")
    program = tmp_path / "program"
    program.mkdir()
    (program / "go.mod").write_text("module small\n\ngo 1.26\n")
    (program / "main.go").write_text(INCLUDES)
    go = interpreters.go_command()
    env = build_gotent.go_env(go) | {"CGO_CFLAGS": build_gotent.word(f"-I{folder}")}
    subprocess.run([go, "run", "."], cwd=program, env=env, check=True)


def test_a_name_that_go_cannot_be_told_is_refused() -> None:
    with pytest.raises(build_gotent.BuildError, match="both quotation marks"):
        build_gotent.word("""it's a "name" """)
