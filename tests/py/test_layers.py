"""Imports inside tent go down one list of modules: there is no ring, also not of imports for type checkers alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import tent

PACKAGE = Path(tent.__file__).parent

# From the bottom up. A module imports modules above it in this list, also where it does so late, inside a function.
ORDER = """
_version _settings _variables _lazy _empty _html _text _transports enums _members page errors quantities rights
gpu_stream _abi _gotent _native buffers settings explanation traffic loop tail memory handle local_memory callback aio
_aio operands transfer region files stream closing records request_array indexes metrics_server grid addresses
notifications events segment moving terms packing batch moves spans admission engine torch transfer_engine __init__
"""
LAYERS = ORDER.split()

# Imports for type checkers alone that go up, each with its reason.
UPWARDS = {
    ("callback", "transfer"): "a callback is called with its transfer, which makes it",
    ("region", "segment"): "fence() takes a peer, and a peer's regions are sliced as own ones are",
    ("region", "admission"): "fence() takes a row of Engine.peers()",
    ("aio", "stream"): "the bridge to asyncio waits for items; streams load it at the first await",
    ("aio", "transfer"): "the bridge to asyncio waits for transfers; they load it at the first await",
}


def imports(source: str) -> Iterator[tuple[str, bool]]:
    """The modules of tent that a module imports, each with whether only type checkers see it."""
    tree = ast.parse(source)
    typing = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for part in node.body
        for inner in ast.walk(part)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            for name in [node.module] if node.module else [alias.name for alias in node.names]:
                yield str(name).partition(".")[0], node in typing
        elif isinstance(node, ast.Import) and any(alias.name.partition(".")[0] == "tent" for alias in node.names):
            yield "__init__", node in typing


def upwards(sources: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The imports that do not go down the list, but for those of the table."""
    for module, source in sources.items():
        for imported, for_types in imports(source):
            down = LAYERS.index(imported) < LAYERS.index(module)
            if not down and not (for_types and (module, imported) in UPWARDS):
                yield module, imported


def sources() -> dict[str, str]:
    """The modules of the package proper; the command, tent.demos and tent.testing are users of it."""
    return {path.stem: path.read_text() for path in PACKAGE.glob("*.py") if path.stem != "__main__"}


def test_every_import_goes_down() -> None:
    assert set(sources()) | {"_gotent"} == set(LAYERS), "LAYERS lists every module once"
    assert len(LAYERS) == len(set(LAYERS))
    assert sorted(upwards(sources())) == []


def test_every_exception_is_needed() -> None:
    found = {(module, name) for module, text in sources().items() for name, for_types in imports(text) if for_types}
    assert set(UPWARDS) <= found


def test_a_ring_is_found() -> None:
    late = "def look():\n    from .engine import Engine\n"
    for wrong in ("from .engine import Engine", "from . import engine", late, "if TYPE_CHECKING:\n    import tent\n"):
        assert list(upwards({"errors": wrong})), wrong
    assert list(upwards({"region": "from .segment import Segment"})) == [("region", "segment")]
    assert not list(upwards({"region": "if TYPE_CHECKING:\n    from .segment import Segment\n"}))
