"""Programs of tests in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence


def run(
    program: str, *arguments: object, flags: Sequence[str] = (), timeout: float = 60, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a text in Python with flags, and with variables beside those of this process."""
    return subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ | variables,
    )


def passes(program: str, *arguments: object, flags: Sequence[str] = ("-X", "faulthandler"), **variables: str) -> str:
    """Runs a program that ends well, and returns its output."""
    done = run(program, *arguments, flags=flags, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout
