"""`make` prints each target of the Makefile with its description."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def phony() -> list[str]:
    """The targets that are names and not files."""
    line = re.search(r"^\.PHONY: (.*)$", MAKEFILE, flags=re.M)
    assert line
    return line[1].split()


def test_make_lists_each_target_with_its_description() -> None:
    done = subprocess.run(["make", "--no-print-directory", "-C", str(ROOT)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    listed = dict(re.findall(r"^  make (\S+) +(\S.*)$", done.stdout, flags=re.M))
    assert len(listed) == len(done.stdout.splitlines()), done.stdout
    assert sorted(listed) == sorted(phony())
    for target, description in listed.items():
        (rule,) = re.findall(rf"^{re.escape(target)}:.*$", MAKEFILE, flags=re.M)
        assert rule.endswith(f"## {description}"), f"make {target} is described by {description!r}"
