"""The parts that a commit's message must have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import commit_message
import pytest

ROOT = Path(__file__).resolve().parents[2]
GOOD = "rail: halve the rate once\n\nIt was halved for each slice of a step; a step is one event, so once is right.\n"


@pytest.mark.parametrize(
    "message",
    [
        GOOD,
        f"# a comment\n\n{GOOD}# Please enter the commit message\n",
        f"{GOOD}Signed-off-by: A B <a@b.example>\n",
        "gocore/rail, dispatch: halve the rate once\n\nIt was halved for each slice of a step, which is one event.\n",
        'Revert "rail: halve the rate once"\n',
        "Merge branch 'x'\n",
    ],
)
def test_good_messages_pass(message: str) -> None:
    assert commit_message.faults(message) == []


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("", "the subject is"),
        ("fix things\n\nThey were broken in many ways, and now they are not any more.\n", "the subject is"),
        ("rail: halve the rate once.\n\nIt was halved for each slice of a step, which is one event.\n", "full stop"),
        ("rail: halve the rate once\n", "the body says"),
        ("rail: halve the rate once\n\nSigned-off-by: A Long Name of Many Words Here <a@b.example>\n", "the body says"),
        ("rail: halve the rate once\n\nbecause\n", "the body says"),
        ("rail: halve the rate once\nIt was halved for each slice of a step, which is one event.\n", "an empty line"),
        (GOOD.replace("once", "once " * 30, 1), "more than 110"),
    ],
)
def test_bad_messages_are_told_why(message: str, fault: str) -> None:
    assert any(fault in said for said in commit_message.faults(message)), commit_message.faults(message)


def test_the_hook_refuses_a_commit(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "commit_message.py")]
    for text, code in ((GOOD, 0), ("wip\n", 1)):
        message = tmp_path / "COMMIT_EDITMSG"
        message.write_text(text, encoding="utf-8")
        assert subprocess.run([*command, str(message)], capture_output=True).returncode == code
