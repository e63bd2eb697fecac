"""Files that tools write from tables and sources: written where they are old, or only compared."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def renew(texts: Mapping[Path, str], cure: str, *, check: bool) -> int:
    """Writes files that differ from their texts, or with `check` names them and the cure; returns the exit status."""
    old = [path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in old:
        if check:
            print(f"{path.relative_to(ROOT)} is not what its tool writes: {cure}", file=sys.stderr)
        else:
            path.write_text(texts[path], encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return int(check and bool(old))
