"""Wrong arguments of the calls that look or prepare: an error that names them, and a repr of everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conftest import Pair

import tent

INVALID = tent.InvalidArgumentError

# By the first words of the error.
CALLS: dict[str, Callable[[Pair], object]] = {
    "regions is 7: it must be regions of this engine": lambda p: p.near.pages(7, 64),  # type: ignore[arg-type]
    "regions is 7: it must be regions of": lambda p: p.peer.pages(7, 64),  # type: ignore[arg-type]
    "indexes is 7: it must be integers": lambda p: p.local.pages(7, 64),  # type: ignore[arg-type]
    "index [1] is 'x'": lambda p: p.local.pages([0, "x"], 64),  # type: ignore[list-item]
    "regions is 7: it must be regions or names": lambda p: p.near.export(7),  # type: ignore[arg-type]
    "7 is neither a Region nor a name": lambda p: p.near.export([7]),  # type: ignore[list-item]
    "priority is 'x'": lambda p: p.near.explain(p.local, p.remote, priority="x"),  # type: ignore[arg-type]
    "priority is True": lambda p: p.near.explain(p.local, p.remote, priority=True),
    "opcode is 1.5": lambda p: p.near.explain(p.local, p.remote, op=1.5),  # type: ignore[arg-type]
    "intent_type is 18446744073709551616": lambda p: p.near.explain(p.local, p.remote, intent=1 << 64),  # type: ignore[arg-type]
    "hint True names no transport": lambda p: p.near.write(p.local, p.remote, hint=True),
    "hint 1.0 names no transport": lambda p: p.near.write(p.local, p.remote, hint=1.0),  # type: ignore[arg-type]
    "permission is True": lambda p: p.near.allocate(64, permission=True),  # type: ignore[arg-type]
    "permission is False": lambda p: p.local.share(p.local[0:64], permission=False),  # type: ignore[arg-type]
    "segment: these 0 bytes are not an exported description": lambda p: p.near.open(b""),
    "segment: these 4 bytes are not an exported description": lambda p: p.near.open(memoryview(b"junk")),
    "function is 7": lambda p: p.near.write(p.local, p.local).add_done_callback(7),  # type: ignore[arg-type]
    "transfers is 7": lambda p: tent.wait(7),  # type: ignore[arg-type]
    "max is 'x'": lambda p: p.near.notifications.drain("x"),  # type: ignore[arg-type]
    "max is -1": lambda p: p.near.events().drain(-1),
    "message is 7: it must be str or bytes": lambda p: tent.Notification("n", 7),  # type: ignore[arg-type]
    "engine is None": lambda p: tent.serve_metrics(None),  # type: ignore[arg-type]
    "host is None": lambda p: tent.serve_metrics(p.near, host=None),  # type: ignore[arg-type]
    "RequestArray(9223372036854775808)": lambda p: tent.RequestArray(1 << 63),
}


@pytest.mark.parametrize("words", CALLS)
def test_a_wrong_argument_is_named_and_has_its_value(pair: Callable[..., Pair], words: str) -> None:
    with pytest.raises(INVALID) as caught:
        CALLS[words](pair(4096))
    assert str(caught.value).startswith(words)


def test_a_region_of_another_engine_is_not_exported_by_its_name(pair: Callable[..., Pair], keep: Any) -> None:
    both = pair(4096)
    keep(both.near.allocate(4096, name=both.offered.name))
    with pytest.raises(INVALID, match="belongs to another engine"):
        both.near.export([both.offered])
    with pytest.raises(INVALID, match="has no name"):
        both.near.export([keep(both.near.allocate(4096))])


@pytest.mark.interpreter
def test_every_repr_shows_wrong_values_and_ends() -> None:
    assert repr(tent.MemoryOptions(perm=7)) == "MemoryOptions(location='*', perm=7)"  # type: ignore[arg-type]
    assert repr(tent.Request(5, None, [], "x")).startswith("Request(5, source=None, target_id=[], target_offset='x'")  # type: ignore[arg-type]
    with tent.Engine() as engine, engine.allocate(4096) as region:
        grid, addresses = engine.pages(region, 64), engine.addresses([region.address], 64)
        with tent.serve_metrics(engine) as server:
            assert not any("closed" in repr(thing) for thing in (grid, addresses, server))
        grid.close()
        addresses.close()
        assert all(repr(thing).endswith(" closed>") for thing in (grid, addresses, server))
        left = engine.pages(region, 32), tent.serve_metrics(engine)
    assert all(repr(thing).endswith(" closed>") for thing in left)
