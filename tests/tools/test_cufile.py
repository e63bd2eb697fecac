"""The optional download of NVIDIA's libcufile: its reason where it cannot be had, and that it is looked for once."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import cufile
import pytest
import stages
from running import Runner


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cufile, "FOLDER", tmp_path / "cufile")
    return tmp_path / "cufile"


def pip(monkeypatch: pytest.MonkeyPatch, code: int, said: str = "", wheel: Path | None = None) -> list[list[str]]:
    """Calls of pip, which ends with a code and leaves a wheel."""
    calls: list[list[str]] = []

    def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(words)
        if wheel is not None:
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr(cufile.LIBRARY, b"a library")
        return subprocess.CompletedProcess(words, code, "", said)

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_a_wheel_that_cannot_be_had_is_a_skip_with_its_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip(monkeypatch, 1, "WARNING: Retrying\nERROR: No matching distribution found for nvidia-cufile-cu12==1.14.1.1\n")
    tally = stages.cufile(Runner("cufile", "go", {}), stages.Context(0, {}, "3.12"))
    (why,) = tally.reasons
    assert tally.skipped == 1 and tally.failed == 0
    assert why.startswith("no libcufile of NVIDIA: ERROR: No matching distribution")


def test_the_library_is_taken_once_and_by_its_hash(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = pip(monkeypatch, 0, wheel=folder / "nvidia.whl")
    made = cufile.library()
    assert made.read_bytes() == b"a library" and cufile.library() == made
    assert len(calls) == 1 and "--require-hashes" in calls[0]
    (folder / "key").write_text("of another version")
    assert cufile.library() == made and len(calls) == 2
