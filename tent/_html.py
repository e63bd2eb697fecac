"""Tables for notebooks: the `_repr_html_` of traffic, events, explanations and settings."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """An HTML table. Every text is escaped: some of it comes from peers."""

    def row(cells: Sequence[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{title}{row(head, 'th')}{''.join(row(cells, 'td') for cells in rows)}</table>"
