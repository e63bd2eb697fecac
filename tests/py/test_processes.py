"""Peers are processes: they are killed, stopped, resumed and started again at the same address."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import peer_side
import pytest

import tent
from tent.testing import Memory, PeerProcess

pytestmark = pytest.mark.clock  # limits of a second

BIG = 64 << 20

Start = Callable[..., PeerProcess]
Open = Callable[..., tent.Engine]


def test_kill_in_mid_transfer_names_the_peer_within_a_second(engines: Open, peers: Start, keep: Any) -> None:
    engine, victim, other = engines(), peers(size=BIG), peers(size=1 << 20, seed=9)
    memory = Memory(BIG, 3)
    local = keep(engine.register(memory.view))
    there, elsewhere = engine.open(victim.address), engine.open(other.address)
    remote = there["kv"]
    engine.write(local[0:10], remote[0:10]).result(10)
    victim.stop()  # so that it is surely in the middle
    transfers = [engine.write(local, remote), engine.write(local[0:4096], remote[0:4096], notify=("n", ""))]
    with engine.batch() as batch:
        for i in range(50):
            batch.write(local[i : i + 100], remote[i : i + 100])
        transfers.append(batch.submit())
    victim.kill()
    killed = time.monotonic()
    fine = engine.write(local[0 : 1 << 20], elsewhere["kv"])  # another peer does not notice
    for transfer in transfers:
        with pytest.raises(tent.TransferError) as caught:
            transfer.result(10)
        assert caught.value.peer == victim.address or victim.address in str(caught.value)
        assert transfer.state == tent.TransferStatusEnum.FAILED
    assert time.monotonic() - killed < 1
    for call in (lambda: engine.write(local, remote).result(10), lambda: there.refresh()):
        began = time.monotonic()
        with pytest.raises(tent.TentError) as error:
            call()
        assert victim.address in str(error.value)
        assert time.monotonic() - began < 1
    assert there.alive(timeout=1) is False
    assert fine.result(10) == 1 << 20
    assert other.run(peer_side.check, written=[[0, 1 << 20, 3, 0]]) == ""
    memory.check()


@pytest.mark.parametrize("direction", ["write", "read"])
def test_a_stopped_peer_costs_the_time_out_and_no_more(engines: Open, peers: Start, keep: Any, direction: str) -> None:
    engine, peer = engines(), peers(size=BIG, seed=7)
    memory = Memory(BIG, 3)
    local = keep(engine.register(memory.view))
    with engine.open(peer.address) as segment:
        remote, move = segment["kv"], getattr(engine, direction)
        move(local[0:10], remote[0:10]).result(10)
        if direction == "read":
            memory.expect(0, Memory(10, 7).expected)
        peer.stop()
        began = time.monotonic()
        transfer = move(local, remote, timeout=0.3)
        with pytest.raises(tent.TransferTimeoutError) as caught:
            transfer.result(10)
        assert 0.25 < time.monotonic() - began < 2.5
        assert caught.value.failed_tasks == [0]
        # The memory is ours again. Bytes written there now must not travel, bytes that arrive now must not land.
        memory.view[:] = bytes(BIG)
        memory.expect(0, bytes(BIG))
        peer.resume()
        assert segment.alive(timeout=10)
        remote = segment["kv"]
        engine.write(local[0:10], remote[BIG - 10 : BIG]).result(30)
        memory.check()
        arrived = engine.allocate(BIG)
        engine.read(arrived, remote).result(60)
        theirs, mine = Memory(BIG, 7), Memory(BIG, 3)
        theirs.expect(BIG - 10, bytes(10))
        view = arrived.view
        for at in range(0, BIG, 1 << 16):
            piece = bytes(view[at : at + (1 << 16)])
            old, new = bytes(theirs.expected[at : at + (1 << 16)]), bytes(mine.expected[at : at + (1 << 16)])
            if piece not in (old, new):
                assert all(a in (b, c) for a, b, c in zip(piece, old, new)), f"new bytes travelled, near {at}"
        arrived.close()
        del view
        memory.check()


def test_a_peer_that_may_still_write_is_left_alone_under_its_other_address_too(engines: Open, peers: Start) -> None:
    engine, peer = engines(), peers()
    local = engine.allocate(4096)
    segment, other = engine.open(peer.address), engine.open(peer.address.replace("127.0.0.1", "localhost"))
    for remote in segment["kv"], other["kv"]:
        engine.write(local, remote[0:4096]).result(10)
    peer.stop()
    local.view[:] = b"1" * 4096
    old = engine.write(local, segment["kv"][0:4096], timeout=0.1)
    with pytest.raises(tent.TransferTimeoutError) as caught:
        old.result(10)
    assert caught.value.dirty
    local.view[:] = b"2" * 4096
    new = engine.write(local, other["kv"][0:4096])
    assert not new.done()
    assert new.attempts == 0, "nothing of it was sent"
    peer.resume()
    assert new.result(30) == 4096
    arrived = engine.allocate(4096)
    engine.read(arrived, segment["kv"][0:4096]).result(30)
    assert bytes(arrived.view) == b"2" * 4096


def test_every_wait_ends_at_its_time_out_while_the_peer_is_stopped(engines: Open, peers: Start) -> None:
    engine, peer = engines(), peers()
    segment = engine.open(peer.address)
    local = engine.allocate(1 << 20)
    engine.write(local, segment["kv"]).result(10)
    peer.stop()
    going = engine.write(local, segment["kv"])
    for call in (
        lambda: going.result(0.2),
        lambda: segment.alive(timeout=0.2),
        lambda: engine.open(peer.address, timeout=0.2),
        lambda: local.fence(timeout=5),
        lambda: tent.wait([going], timeout=0.2),
        lambda: list(tent.as_completed([going], timeout=0.2)),
    ):
        began = time.monotonic()
        try:
            call()
        except (TimeoutError, tent.TentError):
            pass
        assert time.monotonic() - began < 2
    peer.resume()
    assert going.result(30) == 1 << 20
    local.close()


def test_a_paused_peer_is_silent_and_then_back(engines: Open, peers: Start) -> None:
    engine, peer = engines(), peers()
    segment, local = engine.open(peer.address), engine.allocate(1 << 20)
    engine.write(local, segment["kv"]).result(10)
    with engine.events() as events:
        peer.stop()
        going = engine.write(local, segment["kv"])
        silent = events.wait_for(lambda e: e.kind == "peer_silent", timeout=10)
        assert silent.peer == peer.address and silent.took >= 0.5
        began = time.monotonic()
        assert not segment.alive(timeout=30)
        assert time.monotonic() - began < 10, "one that is silent is not waited for"
        assert not going.done()
        peer.resume()
        assert going.result(30) == 1 << 20
        back = events.wait_for(lambda e: e.kind == "peer_back", timeout=10)
        assert back.took >= silent.took
    assert segment.alive(timeout=10)
    local.close()


def test_restarted_at_the_same_address(engines: Open, peers: Start, keep: Any, port: int) -> None:
    engine, first = engines(), peers(seed=7, settings={"rpc_server_port": port})
    memory = Memory(1 << 20, 3)
    local = keep(engine.register(memory.view))
    old = engine.open(first.address)
    remote = old["kv"]
    engine.write(local, remote).result(10)
    first.kill()
    second = peers(seed=8, settings={"rpc_server_port": port})  # gets its old port at once
    assert second.address == first.address
    with pytest.raises(tent.TentError) as caught:
        engine.write(local, remote).result(10)
    assert caught.value.code in ("PEER_RESTARTED", "PEER_UNREACHABLE")
    assert second.run(peer_side.check) == ""  # nothing has landed in the new one
    with engine.open(second.address) as new:
        assert new.peer_id != old.peer_id
        engine.write(local[0:100], new["kv"][5:105]).result(10)
    assert second.run(peer_side.check, written=[[5, 100, 3, 0]]) == ""
    with pytest.raises((tent.PeerRestartedError, tent.PeerUnreachableError), match=first.address):
        old.refresh()  # which of the two, depends on whether the end was noticed before the restart
    assert old.alive(timeout=5) is False


def test_blobs_open_without_a_word_and_refuse_another_incarnation(engines: Open, peers: Start, port: int) -> None:
    engine, first = engines(), peers(settings={"rpc_server_port": port})
    blob = bytes.fromhex(first.run(peer_side.export))
    assert len(blob) < 1024
    with engine.open(blob) as peer, engine.allocate(4096) as local:
        assert list(peer.regions) == ["kv"]
        engine.read(local, peer["kv"][0:4096]).result(10)
        assert bytes(local.view) == bytes(Memory(4096, 7).view)
    first.kill()
    engine.open(blob).close()  # nobody is asked
    peers(settings={"rpc_server_port": port})
    with engine.allocate(4096) as local, engine.open(blob) as stale, pytest.raises(tent.TentError) as caught:
        engine.read(local, stale["kv"][0:4096]).result(10)
    assert caught.value.code in ("PEER_RESTARTED", "PEER_UNREACHABLE")


def test_several_peers_write_to_each_other_at_once(engines: Open, peers: Start, keep: Any) -> None:
    engine = engines()
    memory = Memory(1 << 20, 1)
    keep(engine.register(memory.view, name="kv"))
    others = [peers(size=1 << 20, seed=20 + i) for i in range(3)]
    for i, peer in enumerate(others):
        assert peer.run(peer_side.write, target=engine.address, offset=0, n=300_000, at=i * 300_000) == 300_000
        memory.expect(i * 300_000, Memory(300_000, 20 + i).expected)
    for i, peer in enumerate(others):
        assert others[i - 1].run(peer_side.write, target=peer.address, offset=5000, n=1000, at=7) == 1000
    for i, peer in enumerate(others):
        assert peer.run(peer_side.check, written=[[7, 1000, 20 + (i - 1) % 3, 5000]]) == ""
    memory.check()


WAYS = {
    "tcp": {"transports/shm/trust": "none"},
    "shm": {"transports/shm/trust": "same-uid", "transports/tcp/enable": False},
    "both": {"transports/shm/trust": "same-uid"},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_sender_that_was_stopped_writes_nothing_after_a_fence(
    engines: Open, peers: Start, keep: Any, way: str
) -> None:
    owner, sender = engines(**WAYS[way]), peers(size=BIG, seed=7, settings=WAYS[way])
    memory = Memory(BIG, 3)
    region = keep(owner.register(memory.view, name="kv"))
    sender.run(peer_side.begin, target=owner.address, transfers=4)
    sender.stop()
    try:
        region.fence(timeout=1)  # asks nobody
        memory.fill(50)
        sender.resume()
    except TimeoutError as stopped:  # inside a copy into shared memory: only when it goes on is anything proved
        assert f"process {sender.process.pid} (stopped) is inside a copy" in str(stopped)
        sender.resume()
        region.fence()
        memory.fill(50)
    errors = sender.run(peer_side.ended)
    assert all(code in ("", "ADDRESS_NOT_REGISTERED") for code, _ in errors), errors
    assert errors[-1][0], "the last of them has hardly begun"
    for code, text in errors:
        assert not code or ("kv" in text and "fenced" in text)
    memory.check()
    sender.run(peer_side.write, target=owner.address, offset=100, n=4096, at=200)  # it knows of the fence by now
    memory.expect(200, Memory(BIG, 7).expected[100 : 100 + 4096])
    memory.check()


def test_a_region_that_its_owner_fences_or_closes(engines: Open, peers: Start, keep: Any) -> None:
    engine, peer = engines(), peers(size=BIG)
    memory = Memory(BIG, 3)
    local = keep(engine.register(memory.view))
    with engine.open(peer.address) as segment:
        remote = segment["kv"]
        going = [engine.write(local, remote) for _ in range(2)]
        peer.fence("kv")
        peer.fill("kv", seed=50)
        engine.write(local[0:10], remote[0:10]).result(30)  # at once: it began afterwards
        for transfer in going[1:]:
            error = transfer.exception(30)
            assert isinstance(error, tent.TransferError)
            assert error.code == "ADDRESS_NOT_REGISTERED"
            assert "kv" in str(error) and "fenced" in str(error)
        tent.wait(going, timeout=30)
        assert peer.run(peer_side.check, written=[[0, 10, 3, 0]]) == "", "a write landed after fence() had returned"
        engine.write(local, remote).result(30)  # the region stays open
        assert peer.run(peer_side.check, written=[[0, BIG, 3, 0]]) == ""
        going = [engine.write(local, remote) for _ in range(2)]
        peer.close_region("kv")
        peer.fill("kv", seed=51)
        tent.wait(going, timeout=30)
        assert peer.run(peer_side.check) == "", "a write landed after close() had returned"
        with pytest.raises(tent.TentError):
            engine.write(local[0:10], remote[0:10]).result(10)
    memory.check()
