"""Calls that ask a peer for its regions: they can be interrupted, and a move that asks nobody starts no thread."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import traceback
import weakref
from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import peer_side
import pytest
from conftest import Pair

import tent
from tent import _native
from tent.testing import PeerProcess

UNKNOWN = 4096  # an address that no process has mapped


def interrupted(call: Callable[[], object]) -> bool:
    """Sends SIGINT to the main thread once it waits for another one to make the call. Whether that ended the wait."""
    main, over = threading.main_thread().ident or 0, threading.Event()

    def watch() -> None:
        while not over.is_set():
            steps = [step.name for step in traceback.extract_stack(sys._current_frames()[main])]
            if steps[-1] == "wait" and "call_long" in steps:
                signal.pthread_kill(main, signal.SIGINT)
                return

    watcher = threading.Thread(target=watch)
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        watcher.start()
        call()
        return False
    except KeyboardInterrupt:
        return any(thread.name == "tent-call" for thread in threading.enumerate())
    except tent.TentError:
        return False
    finally:
        over.set()
        watcher.join()
        signal.signal(signal.SIGINT, old)


def join_calls() -> None:
    """Waits for the calls that go on behind an interruption."""
    for thread in threading.enumerate():
        if thread.name == "tent-call":
            thread.join()


@pytest.mark.interpreter
def test_ctrl_c_ends_every_call_that_asks_a_silent_peer(
    peers: Callable[..., PeerProcess], keep: Callable[[Any], Any]
) -> None:
    there = peers()
    with tent.TransferEngine() as upstream:
        engine = upstream.engine
        local = keep(engine.allocate(4096))
        peer, batch = engine.open(there.address), upstream.allocate_transfer_batch(1)
        handle = upstream.open_segment(there.address)
        unknown = peer.memory(UNKNOWN, 10)
        request = tent.Request(tent.OpCode.WRITE, local.address, handle, UNKNOWN, 10)
        there.stop()
        calls: dict[str, Callable[[], Any]] = {
            "refresh": peer.refresh,
            "[]": lambda: peer["other"],
            "in": lambda: "other" in peer,
            "addresses": lambda: peer.addresses([(UNKNOWN, 10)]),
            "get_segment_info": lambda: upstream.get_segment_info(handle),
            "write": lambda: engine.write(local[0:10], unknown),
            "write a region": lambda: engine.write(local, peer.memory(UNKNOWN, 4096)),
            "read with terms": lambda: engine.read(local[0:10], unknown, hint="tcp"),
            "write_ranges": lambda: engine.write_ranges(local, [0], peer, [UNKNOWN], [10]),
            "explain": lambda: engine.explain(local[0:10], unknown),
            "batch": lambda: engine.batch().write(local[0:10], unknown),
            "submit_transfer": lambda: upstream.submit_transfer(batch, [request]),
            "transfer_sync": lambda: upstream.transfer_sync([request]),
        }
        waited = [name for name, call in calls.items() if not interrupted(call)]
        there.resume()
        assert not waited


@pytest.mark.interpreter
def test_what_opens_behind_ctrl_c_is_closed_again(peers: Callable[..., PeerProcess]) -> None:
    there = peers()
    with tent.TransferEngine() as upstream:
        engine = upstream.engine
        there.stop()
        for call in (engine.open, engine.open_peer, upstream.open_segment):
            assert interrupted(partial(call, there.address))
        there.resume()
        join_calls()
        assert not any(peer.open for peer in engine.peers())


@pytest.mark.interpreter
def test_what_a_handler_keeps_from_its_caller_is_closed_again(
    engine: tent.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "file"
    path.touch()
    with engine.allocate(4096, name="pool") as pool, engine.open("") as own:
        monkeypatch.setattr("tent.region.Lease", raises)
        monkeypatch.setattr("tent.engine.Segment", raises)
        for call in (partial(pool.share, pool[0:64], "lease"), partial(engine.open, path)):
            with pytest.raises(KeyboardInterrupt):
                call()
        assert own.refresh().keys() == {"pool"}
        assert str(path) not in map(os.path.realpath, Path("/proc/self/fd").iterdir())


@pytest.mark.interpreter
def test_a_call_that_goes_on_behind_ctrl_c_still_has_its_numbers(
    peers: Callable[..., PeerProcess], engine: tent.Engine
) -> None:
    there = peers()
    peer = engine.open(there.address)
    numbers = [array("Q", [UNKNOWN]) * 9, array("Q", [1]) * 9]
    kept = [weakref.ref(each) for each in numbers]
    there.stop()
    assert interrupted(lambda: peer.addresses(*numbers))
    numbers.clear()
    gc.collect()
    assert all(each() is not None for each in kept)
    there.resume()
    join_calls()
    gc.collect()
    assert not any(each() is not None for each in kept)


@pytest.mark.interpreter
def test_ctrl_c_ends_the_first_use_of_a_blob(
    peers: Callable[..., PeerProcess], engine: tent.Engine, keep: Callable[[Any], Any]
) -> None:
    there = peers()
    local = keep(engine.allocate(4096))
    peer = engine.open(bytes.fromhex(there.run(peer_side.export)))
    kv = peer["kv"]
    there.stop()
    assert interrupted(lambda: engine.write(local[0:10], kv[0:10]))
    assert interrupted(lambda: engine.write_pages(local, [0], kv, [0], page_bytes=64))
    assert interrupted(lambda: engine.notify(peer, "name"))
    there.resume()
    assert engine.write(local[0:10], kv[0:10]).result(timeout=30) == 10
    assert engine.notify(peer, "name").result(timeout=30) == 0


def test_a_move_that_asks_nobody_starts_no_thread(pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    both = pair(1 << 16)
    own, there = both.near.open(""), both.peer.memory(both.remote.address, 10)

    def call_long(*_: object) -> None:
        raise AssertionError("a call was made on another thread")

    monkeypatch.setattr(_native, "call_long", call_long)
    moves = [
        both.near.read(both.local[0:10], both.remote[0:10]),
        both.near.read(both.local[0:10], there),
        both.near.read(both.local[200:210], own.memory(both.local.address + 100, 10)),
        both.near.read_ranges(both.local, [0], both.peer, [both.remote.address], [10]),
        both.near.read_pages(both.local, [0], both.remote, [0], page_bytes=64),
        both.near.notify(both.peer, "name"),
    ]
    monkeypatch.undo()
    tent.wait(moves, timeout=30)
    both.mine.expect(0, both.theirs.expected[:64])
    both.mine.expect(200, both.mine.expected[100:110])


def test_a_request_that_no_region_holds_is_named_behind_the_question(
    pair: Callable[..., Pair], keep: Callable[[Any], Any]
) -> None:
    both = pair(1 << 16)
    with tent.TransferEngine() as upstream:
        address, handle = upstream.allocate_local_memory(4096), upstream.open_segment(both.far.address)
        late = keep(both.far.allocate(4096, name="late"))  # behind the opening: the peer has to be asked
        at = [both.remote.address, late.address, UNKNOWN]
        requests = [tent.Request(tent.OpCode.READ, address, handle, there, 10) for there in at]
        batch = upstream.allocate_transfer_batch(3)
        with pytest.raises(tent.AddressNotRegisteredError, match=r"\[2\].*not inside a region that"):
            upstream.submit_transfer(batch, requests)
        assert upstream.get_transfer_status_list(batch) == []
        assert upstream.transfer_sync(requests[:2], timeout=30).bytes == 20
