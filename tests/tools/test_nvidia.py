"""Files out of NVIDIA's wheels, for tests: the reason where they cannot be had; they are taken once, and by hash."""

from __future__ import annotations

import re
import subprocess
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import check
import nvidia
import pytest
import stages
from running import Runner

FAILURE = "WARNING: Retrying\nERROR: No matching distribution found for nvidia-cufile-cu12==1.14.1.1\n"
REASON = "ERROR: No matching distribution found"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(nvidia, "BUILD", tmp_path)
    return tmp_path


def pip(monkeypatch: pytest.MonkeyPatch, code: int, said: str = "", members: Iterable[str] = ()) -> list[list[str]]:
    """Calls of pip, which ends with a code and leaves a wheel for each member."""
    calls: list[list[str]] = []

    def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(words)
        for i, member in enumerate(members):
            with zipfile.ZipFile(Path(words[-1]) / f"nvidia{i}.whl", "w") as archive:
                archive.writestr(member, member)
        return subprocess.CompletedProcess(words, code, "", said)

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_a_wheel_that_cannot_be_had_is_a_skip_with_its_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip(monkeypatch, 1, FAILURE)
    tally = stages.cufile(Runner("cufile", "go", {}), stages.Context(0, {}, "3.12"))
    (why,) = tally.reasons
    assert tally.skipped == 1 and tally.failed == 0
    assert why.startswith(f"no libcufile of NVIDIA: {REASON}")


def test_headers_that_cannot_be_had_fail_where_they_are_required(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip(monkeypatch, 1, FAILURE)
    ctx = stages.Context(0, {}, "3.12")
    check.prepare_headers(ctx)
    for required, failed in (("", 0), ("rdma cuda", 1)):
        monkeypatch.setenv(check.REQUIRE, required)
        tally = check.not_run("cuda", ctx.missing["cuda"])
        assert tally.failed == failed and tally.not_run[0].startswith(f"no cuda.h of NVIDIA: {REASON}")


@pytest.mark.parametrize("wanted", nvidia.FILES.values(), ids=nvidia.FILES)
def test_files_are_taken_once_and_by_their_hash(
    folder: Path, monkeypatch: pytest.MonkeyPatch, wanted: nvidia.Wanted
) -> None:
    calls = pip(monkeypatch, 0, members=wanted.members)
    made = wanted.fetch()
    assert [path.read_text() for path in made] == list(wanted.members)
    assert wanted.fetch() == made
    assert len(calls) == 1 and "--require-hashes" in calls[0] and str(wanted.requirements) in calls[0]
    (folder / wanted.requirements.stem / "key").write_text("of another version")
    assert wanted.fetch() == made and len(calls) == 2
    made[-1].unlink()
    pip(monkeypatch, 0)
    with pytest.raises(OSError, match=re.escape(wanted.members[-1])):
        wanted.fetch()
