"""Types: mypy --strict passes on tent and on a user's program, and finds a user's mistakes."""

from __future__ import annotations

import os
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
def test_the_package_and_its_users_are_typed(tmp_path: Path) -> None:
    assert (PACKAGE / "py.typed").exists()
    for what in (["-p", "tent"], [str(PROGRAM)]):
        done = check(what, tmp_path)
        assert done.returncode == 0, done.stdout
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
    done = check([str(wrong)], tmp_path)
    for line in (2, 3, 4, 5, 6, 7, 8, 9):
        assert f"wrong.py:{line}: error" in done.stdout, done.stdout
