"""Injections: the faults of a test, with the engines that got each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from .faults import Struck

Gone = Callable[[], bool]  # whether an engine cannot be asked any more


def _statements(text: str) -> list[str]:
    """The statements of a text in the language of `transports/faulty`, each as its faults are called."""
    lines = (line.partition("#")[0] for line in text.split("\n"))
    return [statement.strip() for line in lines for statement in line.split(";") if statement.strip()]


class Injections:
    """Those of one side, the engines of this process or the peers."""

    def __init__(self) -> None:
        self._got: dict[str, list[Sequence[Gone]]] = {}  # by statement, in their order

    def add(self, text: str, engines: Sequence[Gone]) -> None:
        """Notes that these engines, all that were open, have taken a text."""
        for statement in _statements(text):
            self._got.setdefault(statement, []).append(engines)

    def unused(self, counts: Sequence[Sequence[Struck]], some_gone: bool) -> list[str]:
        """The faults that have struck none of the engines with these counts, and no other one can have had. `some_gone`
        decides about faults that came past this object."""
        # A text that was injected again is another fault. An engine that came later lacks the first ones, so those of
        # one text are numbered from the last.
        hits: Counter[tuple[str, int]] = Counter()
        most: Counter[str] = Counter()
        for engine in counts:
            again: Counter[str] = Counter()
            for fault in reversed(engine):
                again[fault.text] += 1
                hits[fault.text, again[fault.text]] += fault.hits + fault.unused_ok
            most |= again

        def unknown(text: str, n: int) -> bool:
            got = self._got.get(text, [])
            return some_gone if most[text] > len(got) else any(gone() for gone in got[-n])

        return [text for (text, n), struck in reversed(hits.items()) if not struck and not unknown(text, n)]
