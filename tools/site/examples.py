"""A griffe extension for the site: an "Example:" of a docstring becomes a block of Python."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

EXAMPLE = re.compile(r"^(Examples?):\n\n?((?: {4}.*\n?|\n)+)", re.M)


def fenced(text: str) -> str:
    """The docstring with each indented example as a fenced block."""

    def fence(found: re.Match[str]) -> str:
        return f"{found[1]}:\n\n```python\n{textwrap.dedent(found[2]).strip()}\n```\n\n"

    return EXAMPLE.sub(fence, text)


class Examples(griffe.Extension):
    """Rewrites the docstring of every object while griffe reads the package."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
