"""Puts the tables of docs/performance/*.json into docs/performance/index.md, each between its two markers.

    docs_tables.py           # writes the page
    docs_tables.py --check   # exits with 1 if the page is old

The prose around the tables is written by hand. A benchmark writes its JSON file with --json (Go: -json).
"""

from __future__ import annotations

import re
import sys

import generated

ROOT = generated.ROOT
sys.path.insert(0, str(ROOT / "tests" / "bench"))

import table  # noqa: E402

FOLDER = ROOT / "docs" / "performance"
PAGE = FOLDER / "index.md"
MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->\n)", re.S)


def filled(text: str) -> str:
    """The page with every table as its JSON file has it."""
    return MARKED.sub(lambda m: f"{m[1]}\n{table.read(FOLDER / f'{m[2]}.json').markdown()}\n\n{m[3]}", text)


def main(arguments: list[str]) -> int:
    page = filled(PAGE.read_text(encoding="utf-8"))
    return generated.renew({PAGE: page}, "make docs-reference", check="--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
