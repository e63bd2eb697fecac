"""Two processes with different transports talk over any that both have, and a text from outside opens only engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peer_side
import pytest
from conftest import NO_DEVICES

import tent
from tent.testing import Memory, PeerProcess

SIZE = 1 << 20
SHM, TCP = "transports/shm/enable", "transports/tcp/enable"

Start = Callable[..., PeerProcess]
Open = Callable[..., tent.Engine]


@pytest.mark.parametrize(
    ("theirs", "ours", "taken"),
    [
        ({SHM: False}, {}, "tcp"),
        ({}, {SHM: False}, "tcp"),
        ({"transports/shm/trust": "none"}, {}, "tcp"),
        ({TCP: False}, {}, "shm"),
        ({}, {TCP: False}, "shm"),
        ({TCP: False}, {SHM: False}, ""),
        ({SHM: False}, {TCP: False}, ""),
    ],
)
def test_peers_talk_over_any_transport_that_both_have(
    engines: Open, peers: Start, keep: Any, theirs: dict[str, Any], ours: dict[str, Any], taken: str
) -> None:
    engine = engines(config=ours)
    peer = peers(size=SIZE, seed=7, settings={"transports/shm/trust": "same-uid", **theirs})
    memory = Memory(SIZE, 3)
    local = keep(engine.register(memory.view))
    if not taken:
        with pytest.raises(tent.TentError, match="no transport can carry") as caught:
            engine.write(local, engine.open(peer.address)["kv"]).result(10)
        assert not isinstance(caught.value, NotImplementedError)
        return
    with engine.events() as events, engine.open(peer.address) as segment:
        assert engine.write(local, segment["kv"]).result(10) == SIZE
        assert peer.run(peer_side.check, written=[[0, SIZE, 3, 0]]) == ""
        assert engine.read(local, segment["kv"]).result(10) == SIZE
        explained = engine.explain(local, segment["kv"])
        assert explained["taken"] == taken
        assert all(route["reason"] for route in explained["rejected"])
        assert segment.alive(timeout=5)
        assert "peer_gone" not in [event.kind for event in events.drain()]


def test_open_names_the_settings_that_leave_no_way(engines: Open) -> None:
    owner = engines(config=NO_DEVICES | {SHM: False})
    engine = engines(config=NO_DEVICES | {SHM: False, TCP: False})
    with pytest.raises(tent.PeerUnreachableError, match=r"bytes to this peer: .*tcp: transports/tcp/enable is false"):
        engine.open(owner.address)
    half = engines(config=NO_DEVICES | {TCP: False})
    words = r"bytes to this peer: shm: the peer has it switched off, .*tcp: transports/tcp/enable is false"
    with pytest.raises(tent.PeerUnreachableError, match=words):
        half.open(owner.address)


def test_a_text_from_outside_opens_only_other_engines(engines: Open, tmp_path: Any) -> None:
    engine, other = engines(), engines()
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 4096)
    for text in ("", secret.as_uri(), engine.address):
        with pytest.raises(tent.InvalidArgumentError, match="is not another engine"):
            engine.open_peer(text)
    with pytest.raises(tent.InvalidArgumentError, match="is needed"):
        engine.open_peer(secret)
    with engine.open_peer(other.address, timeout=5) as peer:
        assert peer.alive()
