"""The counters find their places, and no number is above its bound."""

from __future__ import annotations

import counters
import pytest


@pytest.mark.parametrize("name", counters.COUNTERS)
def test_number_is_within_its_bound(name: str) -> None:
    counter = counters.COUNTERS[name]
    places = counter.places()
    if counter.bound is not None:
        assert len(places) <= counter.bound, "\n".join([f"{name}: {len(places)}", *places[:20]])


def test_comments_of_go_are_found() -> None:
    text = 'x := "http://who" // who\n/* what */\n\t// what is\ny := `// whose`\nz := \'"\' // whatever\n'
    assert list(counters.go_comments(text)) == [(1, "// who"), (3, "// what is"), (5, "// whatever")]


def test_comments_of_python_are_found() -> None:
    text = '"""What\nwho."""\nx = "who"  # whose\n\n\ndef f():\n    """It."""\n    return "what"\n'
    assert sorted(counters.python_comments(text)) == [(1, "What"), (2, "who."), (3, "# whose"), (7, "It.")]


def test_clauses_are_words() -> None:
    assert counters.CLAUSE.search("// Whoever holds it")
    assert not counters.CLAUSE.search("// the whole, somewhat")


def test_thinner_comments_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = counters.packages()
    folder = "gocore/dispatch"
    monkeypatch.setattr(counters, "packages", lambda: {**kept, folder: kept[folder] * 0.5})
    assert folder in [line.split(":")[0] for line in counters.thinned()]
