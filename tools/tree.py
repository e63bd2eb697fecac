"""The files of the project: those that git knows or would add. Where there is no git, or no repository, as in an sdist
that was unpacked, they are all that .gitignore would leave in."""

from __future__ import annotations

import os
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The lines of .gitignore, which an sdist has not: a folder ends in a slash.
IGNORED = (
    "build/", "dist/", "*.egg-info/", "*.so", "__pycache__/", ".venv/", "venv/", "env/", ".venv-*/", ".pytest_cache/",
    ".mypy_cache/", ".ruff_cache/", ".hypothesis/", ".ipynb_checkpoints/", ".cache/", "*.test", "*.prof",
)  # fmt: skip


def files(*patterns: str, root: Path = ROOT, added: bool = False) -> list[str]:
    """Their paths by git's patterns, in which a star stands for slashes too; all without patterns. `added` leaves out
    those that git does not know yet."""
    others = [] if added else ["--others", "--exclude-standard"]
    command = ["git", "ls-files", "--cached", *others, "--", *patterns]
    try:
        if not (root / ".git").exists():
            raise FileNotFoundError
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):  # no git, or one that does not trust the folder's owner
        listed = [name for name in walk(root) if not patterns or any(fnmatchcase(name, each) for each in patterns)]
    return [name for name in listed if (root / name).is_file()]


def walk(root: Path = ROOT) -> list[str]:
    """The paths of all files that are not ignored."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name != ".git" and not ignored(name + "/"))
        found += [os.path.relpath(os.path.join(folder, name), root) for name in sorted(names) if not ignored(name)]
    return found


def ignored(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in IGNORED)
