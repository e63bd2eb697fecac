"""Memory that was deregistered and registered again at its address is reached by a peer that knew it before."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy
import pytest

import tent
from tent.compat.mooncake import TransferEngine
from tent.compat.nixl import nixl_agent

SIZE = 1 << 16


@pytest.fixture(params=["shm", "tcp"])
def options(request: pytest.FixtureRequest) -> dict[str, object]:
    off = "tcp" if request.param == "shm" else "shm"
    return {"config": {"log_level": "error", "transports": {off: {"enable": False}}}}


@pytest.fixture
def both(options: dict[str, object]) -> Iterator[tuple[TransferEngine, int, TransferEngine, int]]:
    """Two engines of Mooncake's, each with the address of a buffer."""
    one, two = TransferEngine(options=options), TransferEngine(options=options)
    for engine in (one, two):
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    source, target = numpy.full(SIZE, 7, numpy.uint8), numpy.zeros(SIZE, numpy.uint8)
    yield one, source.ctypes.data, two, target.ctypes.data
    one.close()
    two.close()


def test_mooncake(both: tuple[TransferEngine, int, TransferEngine, int]) -> None:
    one, here, two, there = both
    peer = f"127.0.0.1:{two.get_rpc_port()}"
    assert one.register_memory(here, SIZE) == 0
    results = []
    for _ in range(3):
        assert two.register_memory(there, SIZE) == 0
        results.append(one.transfer_sync_write(peer, here, there, SIZE))
        assert two.unregister_memory(there) == 0
    assert results == [0, 0, 0]


def test_mooncake_twice_registered(both: tuple[TransferEngine, int, TransferEngine, int]) -> None:
    """A range that was registered twice stays until it was taken back twice (mooncake_memory.Memory)."""
    one, here, two, there = both
    peer = f"127.0.0.1:{two.get_rpc_port()}"
    assert one.register_memory(here, SIZE) == two.register_memory(there, SIZE) == two.register_memory(there, SIZE) == 0
    before = one.transfer_sync_write(peer, here, there, SIZE)
    assert two.unregister_memory(there) == 0
    after = one.transfer_sync_write(peer, here, there, SIZE)
    assert (before, after) == (0, 0)


@pytest.mark.parametrize("metadata", ["once", "again"])
def test_nixl(options: dict[str, object], metadata: str) -> None:
    one, two = nixl_agent("one", options=options), nixl_agent("two", options=options)
    source, target = numpy.full(SIZE, 7, numpy.uint8), numpy.zeros(SIZE, numpy.uint8)
    mine, theirs = [(source.ctypes.data, SIZE, 0)], [(target.ctypes.data, SIZE, 0)]
    one.register_memory([(*mine[0], "")], "DRAM")
    states, blobs = [], set()
    for i in range(3):
        registered = two.register_memory([(*theirs[0], "")], "DRAM")
        blobs.add(two.get_agent_metadata())
        if i == 0 or metadata == "again":
            one.add_remote_agent(two.get_agent_metadata())
        local, remote = one.prep_xfer_dlist("", mine, "DRAM"), one.prep_xfer_dlist("two", theirs, "DRAM")
        handle = one.make_prepped_xfer("WRITE", local, [0], remote, [0])
        one.transfer(handle)
        limit = time.monotonic() + 10
        while (state := one.check_xfer_state(handle)) == "PROC" and time.monotonic() < limit:
            pass
        states.append(state)
        one.release_xfer_handle(handle)
        two.deregister_memory(registered)
    one.close()
    two.close()
    assert states == ["DONE"] * 3
    assert len(blobs) == 3, "vLLM's servers shake hands again after a sleep only if the metadata has changed"


def test_plain_addresses_of_the_engine() -> None:
    source, target = numpy.full(SIZE, 7, numpy.uint8), numpy.zeros(SIZE, numpy.uint8)
    with tent.Engine() as one, tent.Engine() as two, one.register(source):
        peer, outcomes = None, []
        for _ in range(3):
            with two.register(target, name="kv"):
                peer = peer or one.open_peer(two.address, timeout=10)
                transfer = one.write_ranges(one, [source.ctypes.data], peer, [target.ctypes.data], [SIZE])
                outcomes.append(transfer.exception(timeout=10))
        assert outcomes == [None] * 3
        assert (target == 7).all()


@pytest.mark.parametrize("whose", ["own", "a peer's"])
def test_addresses_in_a_region_that_is_gone_and_in_one_that_nobody_has_seen(whose: str) -> None:
    """The second range has the regions asked for. That of the first one is another one behind that."""
    source, target = numpy.full(SIZE, 7, numpy.uint8), numpy.zeros(3 * SIZE, numpy.uint8)
    with tent.Engine() as one, tent.Engine() as two, one.register(source):
        owner = one if whose == "own" else two
        with one.open("") if whose == "own" else one.open(two.address, timeout=10) as peer:
            here, there = source.ctypes.data, target.ctypes.data
            with owner.register(target[SIZE:], name="before"):
                assert one.write_ranges(one, [here], peer, [there + SIZE], [8]).result(10) == 8
            with owner.register(target[: 2 * SIZE], name="behind"):
                moved = one.write_ranges(one, [here, here], peer, [there + SIZE + 100, there + 100], [64, 64])
                assert moved.result(10) == 128
    expected = numpy.zeros(3 * SIZE, numpy.uint8)
    expected[SIZE : SIZE + 8] = expected[SIZE + 100 : SIZE + 164] = expected[100:164] = 7
    assert (target == expected).all()


@pytest.mark.parametrize("known", ["by an end", "by a call"])
def test_a_name_that_its_owner_gave_to_other_memory(known: str) -> None:
    """A segment learns from a move that fails that a region is gone, and asks when the name comes again."""
    with tent.Engine() as one, tent.Engine() as two, one.allocate(SIZE) as here, one.open(two.address) as peer:
        here.view[:] = b"k" * SIZE
        pages = one.pages(here, SIZE)
        for begin in (
            lambda: one.write(here[:SIZE], peer["kv"][:SIZE]),
            lambda: one.write(here, peer["kv"]),
            lambda: one.write_ranges(here, [0], peer["kv"], [0], [SIZE]),
            lambda: one.write_pages(here, [0], peer["kv"], [0], page_bytes=SIZE),
            lambda: one.write_pages(pages, [0], peer.pages(peer["kv"], SIZE), [0]),
        ):
            with two.allocate(SIZE, name="kv"):
                assert begin().result(10) == SIZE
            with two.allocate(SIZE, name="kv") as there:
                if known == "by a call":
                    one.open(two.address).close()
                with pytest.raises(tent.TentError) as caught:
                    begin().result(10)
                assert caught.value.code == "ADDRESS_NOT_REGISTERED"
                assert isinstance(caught.value, LookupError) == (known == "by a call")
                assert begin().result(10) == SIZE
                assert there.view == here.view
            with pytest.raises(tent.TentError):
                begin().result(10)
            assert "kv" not in peer
