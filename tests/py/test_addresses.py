"""Ranges by plain address over many regions on both sides, and lists of them that are posted by index."""

from __future__ import annotations

import copy
import pickle
import random
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from conftest import NO_DEVICES, Pair

import tent
from tent.testing import Memory

Engines = Callable[..., tent.Engine]

LAYERS, BLOCKS, BYTES = 6, 32, 512


class Cache:
    """A KV cache of one region a layer on both sides, and where its blocks are."""

    def __init__(self, engines: Engines, keep: Any, seed: int) -> None:
        self.near, self.far = engines(), engines()
        self.mine = [Memory(BLOCKS * BYTES, seed + i) for i in range(LAYERS)]
        self.theirs = [Memory(BLOCKS * BYTES, seed + 100 + i) for i in range(LAYERS)]
        self.ours = [keep(self.near.register(m.view)) for m in self.mine]
        for i, memory in enumerate(self.theirs):
            keep(self.far.register(memory.view, name=f"layer{i}"))
        self.peer = self.near.open(self.far.address)
        self.here = [region.address + b * BYTES for region in self.ours for b in range(BLOCKS)]
        regions = [self.peer[f"layer{i}"] for i in range(LAYERS)]
        self.there = [region.address + b * BYTES for region in regions for b in range(BLOCKS)]

    def expect(self, source: list[Memory], i: int, target: list[Memory], j: int, n: int = BYTES) -> None:
        at = i % BLOCKS * BYTES
        target[j // BLOCKS].expect(j % BLOCKS * BYTES, source[i // BLOCKS].expected[at : at + n])

    def check(self) -> None:
        for memory in self.mine + self.theirs:
            memory.check()


@pytest.fixture
def cache(engines: Engines, keep: Any, seed: int) -> Cache:
    return Cache(engines, keep, seed)


def test_a_list_is_posted_by_indexes(cache: Cache, seed: int) -> None:
    draw = random.Random(seed)
    here = cache.near.addresses([(address, BYTES) for address in cache.here])
    there = cache.peer.addresses(array("Q", cache.there), BYTES)
    assert (len(here), len(there), there.remote) == (LAYERS * BLOCKS, LAYERS * BLOCKS, True)
    assert repr(here) == f"<Addresses local: {LAYERS * BLOCKS} ranges>"
    assert repr(there) == f"<Addresses of {cache.far.address}: {LAYERS * BLOCKS} ranges>"
    src, dst = draw.sample(range(len(here)), 60), draw.sample(range(len(here)), 60)
    with here, there:
        written = cache.near.write_pages(here, src, there, array("I", dst), notify=("kv", "60"))
        assert written.result(30) == written.total_bytes == 60 * BYTES
        for i, j in zip(src, dst):
            cache.expect(cache.mine, i, cache.theirs, j)
        cache.check()
        back, from_ = draw.sample(range(len(here)), 40), draw.sample(range(len(here)), 40)
        assert cache.near.read_pages(here, back, there, from_, integrity="crc32c").result(30) == 40 * BYTES
        for i, j in zip(back, from_):
            cache.expect(cache.theirs, j, cache.mine, i)
        cache.check()
    note = cache.far.notifications.get(10)
    assert (note.name, note.message) == ("kv", "60")


def test_ranges_are_addresses_in_an_engine_and_a_whole_peer(cache: Cache, seed: int) -> None:
    draw = random.Random(seed)
    src, dst = draw.sample(range(len(cache.here)), 50), draw.sample(range(len(cache.here)), 50)
    lengths = [draw.randint(1, BYTES) for _ in src]
    addresses = [cache.here[i] for i in src], [cache.there[j] for j in dst]
    transfer = cache.near.write_ranges(cache.near, addresses[0], cache.peer, array("Q", addresses[1]), lengths)
    assert transfer.result(30) == sum(lengths)
    for i, j, n in zip(src, dst, lengths):
        cache.expect(cache.mine, i, cache.theirs, j, n)
    cache.check()
    # One side by address, the other one an operand.
    region = cache.ours[2]
    assert cache.near.read_ranges(region, [0, 64], cache.peer, [cache.there[7], cache.there[90]], [64, 32]).result(30)
    cache.mine[2].expect(0, cache.theirs[0].expected[7 * BYTES :][:64])
    cache.mine[2].expect(64, cache.theirs[2].expected[26 * BYTES :][:32])
    cache.check()
    assert cache.near.read_ranges(cache.near, [cache.here[3]], cache.peer["layer4"], [BYTES], [BYTES]).result(30)
    cache.mine[0].expect(3 * BYTES, cache.theirs[4].expected[BYTES:][:BYTES])
    cache.check()


def test_lists_go_into_batches_and_over_own_memory(cache: Cache) -> None:
    here = cache.near.addresses(cache.here, BYTES)
    there = cache.peer.addresses([(address, BYTES) for address in cache.there])
    with cache.near.batch() as batch:
        batch.write_pages(here, [0, 40], there, [41, 1])
        batch.write_ranges(cache.near, [cache.here[100]], cache.peer, [cache.there[100]], [5])
        assert batch.submit().result(30) == 2 * BYTES + 5
    cache.expect(cache.mine, 0, cache.theirs, 41)
    cache.expect(cache.mine, 40, cache.theirs, 1)
    cache.expect(cache.mine, 100, cache.theirs, 100, 5)
    cache.check()
    with cache.near.open("") as own:
        itself = own.addresses(cache.here, BYTES)
        cache.near.write_pages(here, [9], itself, [70]).result(30)
    cache.expect(cache.mine, 9, cache.mine, 70)
    cache.check()


def test_ranges_by_address_go_to_their_own_peer_behind_moves_to_another(
    cache: Cache, engines: Engines, keep: Any, seed: int
) -> None:
    third, memory = engines(), Memory(BLOCKS * BYTES, seed + 200)
    other = keep(third.register(memory.view, name="other"))
    with cache.near.open(third.address) as peer, cache.near.batch() as batch:
        batch.write(cache.ours[0][0:64], cache.peer["layer0"][0:64])
        batch.write_ranges(cache.near, [cache.here[40]], cache.peer, [cache.there[41]], [BYTES])
        batch.write_ranges(cache.near, [cache.here[70]], peer, [other.address + 3 * BYTES], [BYTES])
        assert batch.submit().result(30) == 64 + 2 * BYTES
    cache.expect(cache.mine, 0, cache.theirs, 0, 64)
    cache.expect(cache.mine, 40, cache.theirs, 41)
    memory.expect(3 * BYTES, cache.mine[2].expected[6 * BYTES :][:BYTES])
    memory.check()
    cache.check()


def test_numpy_tables_are_read_as_they_stand(cache: Cache) -> None:
    numpy = pytest.importorskip("numpy")
    table = numpy.zeros((len(cache.there), 3), numpy.uint64)  # as NIXL has them: address, length, device
    table[:, 0], table[:, 1] = cache.there, BYTES
    there = cache.peer.addresses(table)
    here = cache.near.addresses(numpy.array(cache.here, numpy.uint64)[::-1], numpy.full(len(table), BYTES))
    cache.near.write_pages(here, numpy.array([0, 1]), there, numpy.array([5, 6], numpy.int32)).result(30)
    cache.expect(cache.mine, len(table) - 1, cache.theirs, 5)
    cache.expect(cache.mine, len(table) - 2, cache.theirs, 6)
    cache.check()


def test_failed_tasks_are_indexes_of_the_call(engines: Engines, keep: Any, seed: int) -> None:
    cache = Cache(lambda: engines(transports={"shm": {"enable": False}}), keep, seed)
    extra = Memory(BYTES, seed + 7)
    lease = cache.far.register(extra.view, name="lease")
    here = cache.near.addresses([(address, BYTES) for address in cache.here])
    with cache.near.open(cache.far.address) as peer:
        there = peer.addresses([*((address, BYTES) for address in cache.there), (peer["lease"].address, BYTES)])
        last = len(cache.there)
        lease.close()  # the list does not know it yet
        with pytest.raises(tent.TentError) as caught:
            cache.near.write_pages(here, [3, 4, 5, 6], there, [last, 40, last, 7]).result(30)
    if isinstance(caught.value, tent.TransferError):
        assert caught.value.failed_tasks == [0, 2]
        cache.expect(cache.mine, 4, cache.theirs, 40)
        cache.expect(cache.mine, 6, cache.theirs, 7)
    else:  # this side had heard of it when the call was made: nothing moved
        assert caught.value.code == "ADDRESS_NOT_REGISTERED"
    cache.check()
    extra.check()


def test_wrong_lists_are_refused(cache: Cache) -> None:
    good = [(cache.here[0], 8)]
    for wrong, words in [
        ([(1, 2, 3)], "is no pair"),
        ([cache.here[0]], "is no pair"),
        ([(cache.here[0], 0)], "at least 1 byte"),
        ([(5, 5)], "no registered region holds 5 bytes"),
        ([*good, (cache.here[BLOCKS - 1], BYTES + 1)], r"\[1\].*leave the region"),
        ([], "1 to 16777216"),
        ("abc", "integers are needed"),
        (b"abcd", "dimensions|shape"),
    ]:
        with pytest.raises(tent.TentError, match=words):
            cache.near.addresses(wrong)
    with pytest.raises(tent.InvalidArgumentError, match="2 addresses and 1 lengths"):
        cache.near.addresses(cache.here[:2], [4])
    with pytest.raises(tent.AddressNotRegisteredError, match="not inside a region"):
        cache.peer.addresses([(5, 5)])
    here, there = cache.near.addresses(good), cache.peer.addresses([(cache.there[0], 9)])
    with pytest.raises(tent.InvalidArgumentError, match="8 bytes here and 9 bytes there"):
        cache.near.write_pages(here, [0], there, [0])
    with pytest.raises(tent.InvalidArgumentError, match="is 1, the grid has pages 0 to 0"):
        cache.near.write_pages(here, [1], there, [0])
    with pytest.raises(tent.InvalidArgumentError, match="is local"):
        cache.near.write_pages(here, [0], here, [0])
    with pytest.raises(tent.InvalidArgumentError, match="is remote"):
        cache.near.write_pages(there, [0], there, [0])
    with pytest.raises(tent.InvalidArgumentError, match="an address list goes with an address list"):
        cache.near.write_pages(cache.near.pages(cache.ours[0], 8), [0], there, [0])
    here.close()
    with pytest.raises(tent.InvalidEntryError):
        cache.near.write_pages(here, [0], there, [0])
    with pytest.raises(tent.TentError, match=r"\[1\]"):
        cache.near.write_ranges(cache.near, [cache.here[0], 7], cache.peer, cache.there[:2], [4, 4])


def test_a_blob_connects_ahead(engines: Engines, keep: Any) -> None:
    near, far = engines(), engines()
    memory = Memory(4096, 1)
    keep(far.register(memory.view, name="kv"))
    with near.open(far.export()) as peer:
        peer.connect(timeout=10)
        peer.connect(timeout=10)  # again: at once
        local = keep(near.register(Memory(4096, 2).view))
        assert near.read(local, peer["kv"]).result(10) == 4096
    blob = far.export()
    far.close()
    with near.open(blob) as gone, pytest.raises(tent.PeerUnreachableError):
        gone.connect(timeout=2)


def test_a_peer_that_no_transport_reaches_is_told_at_once(engines: Engines) -> None:
    off = {"transports/tcp/enable": False, "transports/shm/enable": False}
    near, far = engines(config=NO_DEVICES | off), engines()
    with near.open(memoryview(far.export())) as peer:
        with pytest.raises(tent.PeerUnreachableError, match=r"can carry bytes.*transports/tcp/enable is false"):
            peer.connect(timeout=60)  # rails for orders between engines are none


def test_the_end_of_a_copy_is_not_that_of_the_original(pair: Callable[..., Pair]) -> None:
    """A copy would have the engine's number of the original, and forget it when it is dropped."""
    both = pair(4096)
    grid, there = both.near.pages(both.local, 1024), both.peer.pages(both.remote, 1024)
    listed = both.near.addresses([(both.local.address, 1024)])
    with both.near.batch() as batch:
        batch.write(both.local[0:64], both.remote[0:64])
        for thing in (grid, there, listed, batch):
            for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match="belongs to its engine"):
                    attempt(thing)
        assert batch.submit().result(10) == 64
    assert both.near.write_pages(grid, [1], there, [1]).result(10) == 1024
    both.theirs.expect(0, both.mine.expected[:64])
    both.theirs.expect(1024, both.mine.expected[1024:2048])
    both.check()
