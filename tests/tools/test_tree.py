"""The files of the project are found with git and without."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import tree


def test_without_git_the_files_are_those_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (tree.ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("there is no repository here")
    known = {pattern: set(tree.files(*pattern)) for pattern in ((), ("*.go",), ("gocore/*.go", "tools/*.py"))}
    assert len(known["*.go",]) > len(known["gocore/*.go", "tools/*.py"]) > 100
    monkeypatch.setenv("PATH", "/nowhere")
    for patterns, want in known.items():
        found = set(tree.files(*patterns))
        assert want <= found and not [name for name in found - want if name.startswith(("build/", ".venv"))]


def test_a_folder_that_git_does_not_trust_is_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "build").mkdir()
    (tmp_path / "a").mkdir()
    for name in ("a/b.go", "a/c.py", "build/d.go", "e.so"):
        (tmp_path / name).touch()
    assert tree.files(root=tmp_path) == ["a/b.go", "a/c.py"]
    assert tree.files("*.go", root=tmp_path) == ["a/b.go"]

    def refuses(*command: object, **_: object) -> None:
        raise subprocess.CalledProcessError(128, "git")

    monkeypatch.setattr(subprocess, "run", refuses)
    assert tree.files("*.py", root=tmp_path) == ["a/c.py"]


def test_the_walk_leaves_out_what_git_ignores() -> None:
    ignore = tree.ROOT / ".gitignore"
    if not ignore.exists():
        pytest.skip("an sdist has none")
    assert tuple(ignore.read_text(encoding="utf-8").split()) == tree.IGNORED
