"""The text of the package's page on PyPI: README.md, with links that lead somewhere from there.

A relative link of the README leads to the file in the repository, and a picture to its bytes.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = "https://github.com/tent-engine/tent/blob/main/"
FILES = "https://raw.githubusercontent.com/tent-engine/tent/main/"

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?://|#|mailto:)([^)\s]+)\)")


def text() -> str:
    """README.md as PyPI shows it."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return LINK.sub(lambda m: f"{m[1]}[{m[2]}]({(FILES if m[1] else PAGES) + m[3]})", readme)
