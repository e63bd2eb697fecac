"""Tests that qemu-user cannot run are named, and exist."""

from __future__ import annotations

import re
from pathlib import Path

import arm64

ROOT = Path(__file__).resolve().parents[2]


def test_every_exception_is_a_test_of_the_suite() -> None:
    folders = [ROOT / package.removeprefix("./").removesuffix("/...") for package in arm64.PACKAGES_OF_GO]
    text = "\n".join(p.read_text(encoding="utf-8") for folder in folders for p in folder.rglob("*_test.go"))
    for reason, names in arm64.EXCEPTIONS.items():
        for name in names:
            assert re.search(rf"^func {name}\(", text, re.M), f"remove {name} ({reason}) from tools/arm64.py"
