"""The documentation in the code: every public name has some, its first sentence is short, and its examples run.

An example is the block below "Example:". It may use `engine`, `region` (1 MiB of it), `segment` (another
engine's, with the region "kv" of 1 MiB), `other` (that engine), `address` (of it) and `folder`.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tent
import tent.testing

WORDS_MAX = 25


def public() -> Iterator[tuple[str, Any]]:
    """Public classes, functions, methods and properties with their dotted names."""
    for package in (tent, tent.testing):
        for name in package.__all__:
            thing = getattr(package, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                yield f"{package.__name__}.{name}", thing
            if inspect.isclass(thing):
                for member, value in inspect.getmembers(thing):
                    if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                        yield f"{package.__name__}.{name}.{member}", value


def examples(doc: str) -> list[str]:
    """The indented blocks below "Example:"."""
    blocks = re.findall(r"^Example:\n((?: {4}.*\n|\n)+)", doc + "\n", re.M)
    return [inspect.cleandoc("\n" + block) for block in blocks]


DOCUMENTED = {name: inspect.getdoc(thing) or "" for name, thing in public()}
EXAMPLES = {
    f"{name}-{i}": text
    for name, doc in DOCUMENTED.items()
    if not name.startswith("tent.testing.")  # those are whole tests, which test_plugin.py runs
    for i, text in enumerate(examples(doc))
}

NEEDED = {"tent.Lease.array-0": "numpy", "tent.Region.array-0": "numpy", "tent.instrument-0": "opentelemetry"}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_public_name_is_documented_in_a_short_first_sentence(name: str) -> None:
    first = re.split(r"(?<=[.!?])\s", DOCUMENTED[name].partition("\n\n")[0].replace("\n", " "))[0]
    assert first, f"{name} has no docstring"
    assert len(first.split()) <= WORDS_MAX, first


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs(name: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDED.get(name, "tent"))
    with tent.Engine(log_level="error") as engine, tent.Engine(log_level="error") as other:
        with engine.allocate(1 << 20) as region, other.allocate(1 << 20, name="kv"):
            with engine.open(other.address) as segment:
                names = {"tent": tent, "engine": engine, "region": region, "segment": segment, "other": other}
                names |= {"address": other.address, "folder": tmp_path, "print": lambda *what: None}
                code = compile(EXAMPLES[name], name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                if inspect.iscoroutine(running := eval(code, names)):
                    asyncio.run(running)
                names.clear()


def test_every_method_of_the_objects_has_an_example() -> None:
    shown = "\n".join(EXAMPLES.values())
    objects = (tent.Engine, tent.Transfer, tent.Batch, tent.Region, tent.Segment, tent.Grid, tent.Events)
    missing = [
        f"{cls.__name__}.{name}"
        for cls in (*objects, tent.Notifications)
        for name, value in inspect.getmembers(cls)
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
        if not re.search(rf"\.{name}\b", shown) and not re.search(rf"\b{name}\(\)", DOCUMENTED[f"tent.{cls.__name__}"])
    ]
    assert not missing


def test_an_example_is_found() -> None:
    doc = "Says something.\n\nExample:\n    one()\n\n    two()\n\nArgs:\n    priority: none\n"
    assert examples(doc) == ["one()\n\ntwo()"]
