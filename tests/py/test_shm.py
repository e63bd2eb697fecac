"""Two processes of one host: their memory is moved without a socket, of either owner, and explain says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peer_side
import pytest

import tent
from tent.testing import Memory, PeerProcess

Start = Callable[..., PeerProcess]
SIZE = 1 << 20


@pytest.mark.parametrize("kind", ["allocated", "the user's"])
def test_processes_move_bytes_without_a_socket(
    engines: Callable[..., tent.Engine], peers: Start, keep: Any, kind: str
) -> None:
    engine = engines(**{"transports/tcp/enable": False})
    peer = peers(size=SIZE, seed=7, settings={"transports/shm/trust": "same-uid"})
    memory = Memory(SIZE, 3)
    if kind == "allocated":
        local = keep(engine.allocate(SIZE))
        local.view[:] = memory.view
    else:
        local = keep(engine.register(memory.view))
    with engine.open(peer.address) as segment:
        transfer = engine.write(local, segment["kv"])
        assert transfer.result(20) == SIZE
        assert transfer.transports == ("shm",)
        assert peer.run(peer_side.check, written=[[0, SIZE, 3, 0]]) == ""
        peer.fill("kv", seed=9)
        peer.stop()  # nobody has to wake up there
        engine.read(local, segment["kv"]).result(20)
        peer.resume()
        assert bytes(local.view) == bytes(Memory(SIZE, 9).view)
        assert [route["transport"] for route in engine.explain(local, segment["kv"])["routes"]] == ["shm"]


def test_explain_says_why_memory_is_not_shared(engines: Callable[..., tent.Engine], peers: Start, keep: Any) -> None:
    peer = peers(size=SIZE, seed=7)  # trusts nobody
    for settings, why in (
        ({}, "the peer's log has the reason"),
        ({"transports/shm/trust": "none"}, "trust is none here"),
    ):
        engine = engines(**settings)
        local = keep(engine.allocate(SIZE))
        with engine.open(peer.address) as segment:
            assert engine.write(local, segment["kv"]).result(20) == SIZE
            found = engine.explain(local, segment["kv"])
            assert [route["transport"] for route in found["routes"]] == ["tcp"]
            (reason,) = [other["reason"] for other in found["rejected"] if other["transport"] == "shm"]
            assert why in reason


def test_high_does_not_wait_for_a_long_low_copy(engines: Callable[..., tent.Engine], keep: Any) -> None:
    """If it did, HIGH would end after LOW in every round; a round in which this thread slept proves nothing."""
    near, far = engines(**{"transports/tcp/enable": False}), engines(**{"transports/tcp/enable": False})
    size, rounds = 256 << 20, 8
    target, source = keep(far.allocate(size, name="kv")), keep(near.allocate(size))
    urgent = Memory(4096, 5)
    small = keep(near.allocate(4096))
    small.view[:] = urgent.view
    remote = keep(near.open(far.address))["kv"]
    overtook = 0
    for _ in range(rounds):
        low = near.write(source[4096:size], remote[4096:size], priority=tent.PRIO_LOW)
        near.write(small, remote[0:4096], priority=tent.PRIO_HIGH).result(30)
        overtook += not low.done()
        assert low.result(30) == size - 4096
    assert overtook > 0
    assert target.view[:4096].tobytes() == urgent.view.tobytes()
    assert not any(target.view[4096:8192])  # LOW moved zeros, and HIGH nothing beyond its range
