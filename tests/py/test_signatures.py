"""The calls that move bytes have the same keywords: same order, defaults, types and documentation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import tent
from tent.terms import MEANING, documented, terms

pytestmark = pytest.mark.interpreter

MOVING = ("write", "read", "write_ranges", "read_ranges", "write_pages", "read_pages", "batch")
READS = ("read", "read_ranges", "read_pages")
ADDING = ("write", "read", "write_ranges", "read_ranges", "write_pages", "read_pages")

TERMS = inspect.signature(terms).parameters


def keywords(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters that go by keyword alone."""
    found = inspect.signature(function).parameters
    return {name: p for name, p in found.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def test_each_keyword_has_one_meaning() -> None:
    assert set(MEANING) == set(TERMS)
    for meaning in MEANING.values():
        assert meaning.endswith(".") and len(meaning) < 110


@pytest.mark.parametrize("name", MOVING)
def test_the_keywords_of_a_moving_call(name: str) -> None:
    function = getattr(tent.Engine, name)
    found = {key: p for key, p in keywords(function).items() if key in TERMS}
    assert list(found) == [key for key in TERMS if not (name in READS and key == "durability")]
    for key, parameter in found.items():
        assert parameter.default == TERMS[key].default, key
        assert parameter.annotation == TERMS[key].annotation, key
        assert f"    {key}: {MEANING[key]}" in (inspect.getdoc(function) or ""), key
    assert set(keywords(function)) - set(TERMS) <= {"page_bytes"}


@pytest.mark.parametrize("name", ADDING)
def test_a_batch_takes_the_operands_of_the_engine(name: str) -> None:
    adds = inspect.signature(getattr(tent.Batch, name)).parameters
    moves = inspect.signature(getattr(tent.Engine, name)).parameters
    for key, parameter in adds.items():
        assert key in moves, key
        if key not in TERMS:
            assert (parameter.kind, parameter.default) == (moves[key].kind, moves[key].default), key
            assert parameter.annotation == moves[key].annotation, key
    assert [key for key in adds if key not in TERMS] == [key for key in moves if key not in TERMS]
    own = [key for key in adds if key in TERMS]
    assert own == [key for key in TERMS if key in own]


def test_writes_and_reads_differ_by_durability_alone() -> None:
    for write, read in (("write", "read"), ("write_ranges", "read_ranges"), ("write_pages", "read_pages")):
        left, right = (inspect.signature(getattr(tent.Engine, name)).parameters for name in (write, read))
        assert [str(p) for p in left.values() if p.name != "durability"] == [str(p) for p in right.values()]


def test_every_way_to_open_takes_the_same_keywords() -> None:
    opens = keywords(tent.Engine.open)
    assert {name: str(p) for name, p in keywords(tent.Engine.open_async).items()} == {
        name: str(p) for name, p in opens.items()
    }
    of_files = {name: str(p) for name, p in opens.items() if name not in ("timeout", "wait")}  # it has no limit
    assert {name: str(p) for name, p in keywords(tent.TransferEngine.open_segment).items()} == of_files


def test_documentation_is_appended_where_there_is_some() -> None:
    def bare(*, priority: int = 0) -> None: ...

    def spoken(*, priority: int = 0, page_bytes: int = 0) -> None:
        """Says something."""

    assert documented(bare).__doc__ is None
    assert inspect.getdoc(documented(spoken)) == f"Says something.\n\nArgs:\n    priority: {MEANING['priority']}"
