"""Types: mypy --strict passes on a user's program over the installed package, and finds a user's mistakes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tent

PACKAGE = Path(tent.__file__).parent
PROGRAM = Path(__file__).parent / "programs" / "typed.py"

pytest.importorskip("mypy")


def check(what: list[str], cache: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.10", "--config-file", ""]
    environment = dict(os.environ)
    if "site-packages" not in PACKAGE.parts:  # an editable install, which mypy does not follow
        environment["MYPYPATH"] = str(PACKAGE.parent)
    return subprocess.run(
        [*command, "--cache-dir", cache, *what],
        capture_output=True,
        text=True,
        cwd=cache,
        env=environment,
        timeout=110,
    )


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_users_program_is_typed_and_mistakes_are_found(tmp_path: Path) -> None:
    """One run over both programs; the stage typing has the package itself."""
    assert (PACKAGE / "py.typed").exists()
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import tent\n"
        "engine = tent.Engine(name=3)\n"
        "engine.write(None, None, prio=1)\n"
        "transfer: int = engine.notify(engine.open('x'), 'n')\n"
        "tent.no_such_name\n"
        "engine._call(engine._library.pybind_Wait, 'batch', 1)\n"
        "state: str = engine._call(engine._library.pybind_Wait, 0, 1)\n"
        "engine._library.pybind_NoSuchFunction\n"
        "own: tent.Region = engine.open('x')['kv']\n"
    )
    done = check([str(PROGRAM), str(wrong)], tmp_path)
    found = {(Path(name).name, int(line)) for name, line in re.findall(r"^(.+?):(\d+): error: ", done.stdout, re.M)}
    assert found == {("wrong.py", line) for line in range(2, 10)}, done.stdout + done.stderr
