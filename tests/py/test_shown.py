"""Wrong values in the errors about them."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest
from conftest import Pair

import tent
from tent._text import shown


@pytest.mark.interpreter
def test_large_values_are_named_and_small_ones_shown() -> None:
    for small in (7, None, "kv", b"kv", (), (1,), [1, (2, "3")], {"a": 1}, object):
        assert shown(small) == repr(small)
    for large in ("x" * 201, b"x" * 201, bytearray(201), array("B", bytes(201))):
        assert shown(large) == f"a {type(large).__name__} of 201 items"
    assert shown((b"x" * 300, 5)) == "(a bytes of 300 items, 5)"
    assert shown(list(range(9))) == "[0, 1, 2, 3, 4, 5, 6, 7, ...]"


def test_a_cache_in_the_place_of_its_address_is_named_and_not_shown(pair: Callable[..., Pair]) -> None:
    """Its bytes as text would take four times its memory, and bring its contents into the log."""
    both = pair(4096)
    cache, engine = bytearray(b"secret" * 10_000), both.near
    numbers = tent.TransferEngine()
    for call in (
        lambda: engine.register((cache, 4096)),
        lambda: engine.register(cache, name=bytes(cache)),
        lambda: engine.allocate(cache),
        lambda: engine.open_peer(bytes(cache)),
        lambda: engine.write(both.local, both.remote, notify=cache),
        lambda: engine.write(both.local, both.remote, timeout=cache),
        lambda: engine.write(both.local, both.remote, priority=cache),
        lambda: both.peer.memory(cache, 4096),
        lambda: both.remote[cache],
        lambda: numbers.register_local_memory(cache, 4096),
        lambda: numbers.submit_transfer(1, [tent.Request(tent.OpCode.READ, cache, 0, 0, 8)]),
    ):
        with pytest.raises(tent.InvalidArgumentError, match=r"a byte(s|array) of 60000 items") as refused:
            call()
        assert "secret" not in str(refused.value)
    with pytest.raises(tent.InvalidArgumentError, match=r"\[0, 1, 2, 3, 4, 5, 6, 7, \.\.\.\]"):
        engine.allocate(list(range(1 << 16)))
    numbers.close()
