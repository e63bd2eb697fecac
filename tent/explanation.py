"""The answer of Engine.explain(): the routes of a move, and why not the others."""

from __future__ import annotations

from typing import Any

from . import _html


class Explanation(dict[str, Any]):
    """A dict: `taken`, the `routes` in their order with `why` each but the first comes later, and those `rejected`.

    As text it has a line for each transport, in a notebook a table.
    """

    def _rows(self) -> list[tuple[str, str, str]]:
        rows = []
        for i, route in enumerate(self.get("routes") or ()):
            why = route.get("why") or route.get("detail", "").partition("\n")[0]
            words = [*(route.get("rails") or ()), route.get("staged"), route.get("keys"), route.get("near"), why]
            rows.append((f"{i + 1}", route["transport"], "; ".join(filter(None, words))))
        rows += [("no", rejected["transport"], rejected["reason"]) for rejected in self.get("rejected") or ()]
        return rows

    def __str__(self) -> str:
        return "\n".join(f"{order:2} {transport:10} {text}" for order, transport, text in self._rows())

    def _repr_html_(self) -> str:
        return _html.table(("", "transport", "why"), self._rows(), f"taken: {self.get('taken', '')}")
