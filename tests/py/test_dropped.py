"""Transfers that the program has dropped take no room: max_batches counts those that it holds or that are under way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import tent
from tent.testing import PeerProcess

BATCHES = 16
LIMIT = 20

Begin = Callable[[tent.Engine, tent.Region, Any], object]


def in_a_batch(engine: tent.Engine, local: tent.Region, remote: Any) -> object:
    with engine.batch() as batch:
        batch.write(local, remote)
        return batch.submit()


WAYS: dict[str, Begin] = {
    "write": lambda engine, local, remote: engine.write(local[0:64], remote[0:64]),
    "whole": lambda engine, local, remote: engine.write(local, remote, priority=tent.PRIO_LOW),
    "pages": lambda engine, local, remote: engine.write_pages(local, [0], remote, [0], page_bytes=4096),
    "ranges": lambda engine, local, remote: engine.write_ranges(local, [0], remote, [0], [64]),
    "notify": lambda engine, local, remote: engine.notify(remote.segment, "n"),
    "batch": in_a_batch,
}


def full(engine: tent.Engine, begin: Callable[[], tent.Transfer], dropped: int) -> list[tent.Transfer]:
    """Fills an engine with transfers that have ended, of which it returns all but some."""
    kept = [begin() for _ in range(BATCHES)]
    for transfer in kept:
        transfer.result(LIMIT)
    del transfer
    del kept[:dropped]
    return kept


@pytest.mark.parametrize("way", WAYS)
def test_a_dropped_transfer_gives_its_place_to_the_next_one(way: str, engines: Callable[..., tent.Engine]) -> None:
    engine, far = engines(max_batches=BATCHES), engines()
    local, offered = engine.allocate(8192), far.allocate(8192, name="kv")
    with engine.open(far.address) as peer:
        remote = peer["kv"]
        kept = full(engine, lambda: engine.write(local, remote), dropped=1)
        assert len(engine._spent) == 1, "it waits to be given back with others"
        kept.append(WAYS[way](engine, local, remote))  # type: ignore[arg-type]
        assert kept[-1].wait(LIMIT) == tent.TransferStatusEnum.COMPLETED
        with pytest.raises(tent.TooManyRequestsError, match="max_batches"):
            WAYS[way](engine, local, remote)
        del kept[-1]
        WAYS[way](engine, local, remote)
    local.close()
    offered.close()


def test_a_batch_of_integers_takes_the_place_too(engines: Callable[..., tent.Engine]) -> None:
    with tent.TransferEngine({"max_batches": BATCHES}) as te:
        engine = te.engine
        with engine.allocate(64) as a, engine.allocate(64) as b:
            kept = full(engine, lambda: engine.write(a, b), dropped=1)
            te.free_transfer_batch(te.allocate_transfer_batch(1))
            del kept


def test_transfers_that_end_behind_the_back_of_the_thread_make_room(
    engines: Callable[..., tent.Engine], peers: Callable[..., PeerProcess]
) -> None:
    """They were dropped while they were under way, and tent's thread, which gives them back, is busy."""
    engine, process = engines(max_batches=BATCHES), peers(size=16 << 20)
    local = engine.allocate(16 << 20)
    busy, goes_on = threading.Event(), threading.Event()

    def blocks(_: tent.Transfer) -> None:
        busy.set()
        goes_on.wait(LIMIT)

    with engine.open(process.address) as peer:
        engine.write(local[0:64], peer["kv"][0:64]).add_done_callback(blocks)
        assert busy.wait(LIMIT)
        process.stop()
        begun = [engine.write(local, peer["kv"], hint="tcp") for _ in range(BATCHES - 1)]
        assert not any(transfer.done() for transfer in begun)
        del begun
        process.resume()
        while engine._under_way():
            engine.metrics()
        assert len(engine._ended()) == BATCHES
        transfer = engine.write(local[0:64], peer["kv"][0:64])
        goes_on.set()
        assert transfer.result(LIMIT) == 64
        local.close()
