"""The border to Go: arguments of the wrappers, and calls that stop no other thread."""

from __future__ import annotations

import json
import threading
from array import array
from collections.abc import Callable

import pytest

import tent
from tent.testing import PeerProcess

pytestmark = pytest.mark.interpreter


def test_arguments_are_taken_by_position_and_checked(engine: tent.Engine) -> None:
    library = engine._library
    ids = array("Q", [0] * 4)
    address, n = ids.buffer_info()
    assert library.pybind_Drain(engine._id, address, n) == 0
    for wrong in ((), (engine._id, address), (engine._id, address, n, 0)):
        with pytest.raises(TypeError, match="3 arguments"):
            library.pybind_Drain(*wrong)
    with pytest.raises(TypeError):
        library.pybind_Drain(engine._id, address, 1.5)
    with pytest.raises(TypeError):
        library.pybind_Drain("0", address, n)
    with pytest.raises(OverflowError):
        library.pybind_Drain(1 << 64, address, n)


def test_an_error_of_the_engine_is_raised_with_and_without_the_lock(engine: tent.Engine) -> None:
    library = engine._library
    for call in (lambda: library.pybind_Drain(1 << 20, 0, 0), lambda: library.pybind_Progress(1 << 20)):
        with pytest.raises(RuntimeError) as caught:
            call()
        assert json.loads(str(caught.value))["code"]


def test_other_threads_run_while_a_call_waits(engine: tent.Engine) -> None:
    got: list[tent.Notification] = []
    waiting = threading.Thread(target=lambda: got.append(engine.notifications.get(timeout=30)))
    waiting.start()
    with engine.open("") as own:
        engine.notify(own, "go").result(30)  # only a waiter that gave the lock back lets this happen
    waiting.join(30)
    assert [note.name for note in got] == ["go"]


def test_batches_of_small_transfers_are_given_back(
    engines: Callable[..., tent.Engine], peers: Callable[..., PeerProcess]
) -> None:
    engine, peer = engines(max_batches=16), peers(size=1 << 16)
    with engine.allocate(1 << 16) as local, engine.open(peer.address) as segment:
        remote = segment["kv"]
        for _ in range(100):
            assert engine.write(local[0:64], remote[0:64]).result(30) == 64
        held = [engine.write(local[0:64], remote[0:64]) for _ in range(12)]
        assert all(transfer.result(30) == 64 for transfer in held)


def test_explain_says_which_route_is_taken(
    engines: Callable[..., tent.Engine], peers: Callable[..., PeerProcess]
) -> None:
    engine, peer = engines(**{"transports/shm/enable": False}), peers(size=1 << 16)
    with engine.allocate(1 << 16) as local, engine.open(peer.address) as segment:
        engine.write(local[0:64], segment["kv"][0:64]).result(30)
        told = engine.explain(local[0:64], segment["kv"][0:64])
        assert told["taken"] == "tcp"
        assert [route["transport"] for route in told["routes"]] == ["tcp"]
        assert "transports/shm/enable" in {r["transport"]: r["reason"] for r in told["rejected"]}["shm"]
