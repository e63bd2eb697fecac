"""Bytes arrive: every size, alignment, form and direction, every byte right and nothing outside touched."""

from __future__ import annotations

import os
import random
import threading
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Pair
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tent
from tent.testing import Memory

SIZES = [1, 2, 7, 8, 63, 64, 511, 4095, 4096, 4097, 65_535, 65_536, 1 << 20, (1 << 20) + 1, 5_000_011]
LARGE = [16 << 20, (64 << 20) - 3]


@pytest.mark.parametrize("size", [*SIZES, LARGE[0], pytest.param(LARGE[1], marks=pytest.mark.long)])
@pytest.mark.parametrize("alignment", [0, 1, 61])
def test_write_and_read_bring_every_byte(pair: Callable[..., Pair], size: int, alignment: int) -> None:
    if size in LARGE and alignment == 61:
        pytest.skip("one odd alignment is enough at this size")
    both = pair(size + 300, alignment)
    assert both.near.write(both.local[100 : 100 + size], both.remote[37 : 37 + size]).result(60) == size
    both.theirs.expect(37, both.mine.expected[100 : 100 + size])
    both.check()
    # Back, to another place, so that a READ that did nothing would show.
    assert both.near.read(both.local[7 : 7 + size], both.remote[37 : 37 + size]).result(60) == size
    both.mine.expect(7, both.theirs.expected[37 : 37 + size])
    both.check()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_one_gibibyte(engines: Callable[..., tent.Engine], keep: Any) -> None:
    size = 1 << 30
    near, far = engines(), engines()
    mine, theirs = Memory(size, 3), Memory(size, 4)
    local, _ = keep(near.register(mine.view)), keep(far.register(theirs.view, name="kv"))
    peer = near.open(far.address)
    assert near.write(local, peer["kv"]).result(120) == size
    assert theirs.wrong(3) == ""
    mine.check()


def test_a_loose_buffer_inside_a_region_is_a_local_operand(pair: Callable[..., Pair]) -> None:
    both = pair(4096)
    inside = both.mine.view[1000:3000]
    assert both.near.write(inside, both.remote[0:2000]).result(10) == 2000
    both.theirs.expect(0, both.mine.expected[1000:3000])
    both.check()


def test_whole_regions_and_addresses(pair: Callable[..., Pair]) -> None:
    both = pair(8192)
    both.near.write(both.local, both.remote).result(10)
    both.theirs.expect(0, both.mine.expected)
    both.check()
    by_address = both.peer.memory(both.remote.address + 5, 100)
    both.near.read(both.local[0:100], by_address).result(10)
    both.mine.expect(0, both.theirs.expected[5:105])
    both.check()


def test_a_segment_of_one_region_is_sliced_directly(pair: Callable[..., Pair]) -> None:
    both = pair(4096)
    with both.near.open(both.far.address + "/kv") as kv:
        both.near.write(both.local[0:16], kv[4080:4096]).result(10)
        both.theirs.expect(4080, both.mine.expected[0:16])
    both.check()


def test_own_memory_is_a_peer_too(engines: Callable[..., tent.Engine], keep: Any, seed: int) -> None:
    engine = engines()
    here, there = Memory(10_000, seed), Memory(10_000, seed + 1)
    source, target = keep(engine.register(here.view)), keep(engine.register(there.view, name="target"))
    engine.write(source[10:5010], target[20:5020]).result(10)
    there.expect(20, here.expected[10:5010])
    with engine.open("") as self_segment:
        engine.read(source[0:10], self_segment["target"][20:30]).result(10)
    here.expect(0, there.expected[20:30])
    engine.write_pages(source, [3], target, [9], page_bytes=1000).result(10)
    there.expect(9000, here.expected[3000:4000])
    here.check()
    there.check()


@pytest.mark.interpreter
def test_allocated_memory_moves(engines: Callable[..., tent.Engine]) -> None:
    near, far = engines(), engines()
    with near.allocate(1 << 20) as local, far.allocate(1 << 20, name="kv") as offered:
        local.view[:] = os.urandom(1 << 20)
        with near.open(far.address) as peer:
            near.write(local, peer["kv"]).result(10)
            assert offered.view == local.view
            assert local.view[:4096] != bytes(4096)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_ranges_in_any_order(pair: Callable[..., Pair], data: st.DataObject) -> None:
    size = 1 << 16
    both = pair(size)
    n = data.draw(st.integers(1, 60))
    # Destinations must not overlap, or the order would matter: cut the target into n pieces.
    cuts = sorted({0, *(data.draw(st.integers(1, size - 1)) for _ in range(n))})
    there = [(a, data.draw(st.integers(1, b - a))) for a, b in zip(cuts, [*cuts[1:], size])]
    here = [data.draw(st.integers(0, size - length)) for _, length in there]
    lengths = [length for _, length in there]
    transfer = both.near.write_ranges(both.local, here, both.remote, array("I", [a for a, _ in there]), lengths)
    assert transfer.result(30) == sum(lengths)
    for (at, length), source in zip(there, here):
        both.theirs.expect(at, both.mine.expected[source : source + length])
    both.check()
    back = both.near.read_ranges(both.local, [a for a, _ in there], both.remote, [a for a, _ in there], lengths)
    assert back.result(30) == sum(lengths)
    for at, length in there:
        both.mine.expect(at, both.theirs.expected[at : at + length])
    both.check()
    both.near.close()
    both.far.close()


@pytest.mark.parametrize("n", [1, 16, 1024])
def test_pages_land_where_the_table_says(pair: Callable[..., Pair], n: int, seed: int) -> None:
    page = 640
    both = pair(n * page)
    source, target = list(range(n)), list(range(n))
    random.Random(seed).shuffle(target)
    assert both.near.write_pages(both.local, source, both.remote, target, page_bytes=page).result(30) == n * page
    for a, b in zip(source, target):
        both.theirs.expect(b * page, both.mine.expected[a * page : (a + 1) * page])
    both.check()
    random.Random(seed + 1).shuffle(source)
    both.near.read_pages(both.local, source, both.remote, target, page_bytes=page).result(30)
    for a, b in zip(source, target):
        both.mine.expect(a * page, both.theirs.expected[b * page : (b + 1) * page])
    both.check()


@pytest.mark.parametrize("end", ["region", "slice", "buffer", "array"])
def test_pages_count_from_the_begin_of_their_operand(pair: Callable[..., Pair], end: str) -> None:
    both = pair(1 << 16)
    at, view = 1000, memoryview(both.mine.view)
    operands: dict[str, Callable[[], Any]] = {
        "region": lambda: both.local,
        "slice": lambda: both.local[at:9000],
        "buffer": lambda: view[at:9000],
        "array": lambda: pytest.importorskip("numpy").frombuffer(view, "uint8")[at:9000],
    }
    local, begin = operands[end](), 0 if end == "region" else at
    write = both.near.write_pages(local, [3, 1], both.remote[500:9000], [0, 2], page_bytes=512)
    assert write.result(timeout=30) == 1024
    for src, dst in ((3, 0), (1, 2)):
        there, here = 500 + 512 * dst, begin + 512 * src
        both.theirs.expect(there, both.mine.expected[here : here + 512])
    both.near.read_pages(local, [5], both.remote, [7], page_bytes=512).result(timeout=30)
    both.mine.expect(begin + 5 * 512, both.theirs.expected[7 * 512 : 8 * 512])
    own = both.near.write_pages(local, [0], both.local[20_000:30_000], [2], page_bytes=512)
    assert own.result(timeout=30) == 512
    both.mine.expect(20_000 + 2 * 512, both.mine.expected[begin : begin + 512])
    with both.near.batch() as batch:
        batch.write_pages(local, [0], both.remote[500:9000], [15], page_bytes=512)
        assert batch.submit().result(timeout=30) == 512
    both.theirs.expect(500 + 15 * 512, both.mine.expected[begin : begin + 512])
    with pytest.raises(tent.InvalidArgumentError, match=r"pages 0 to 15"):
        both.near.write_pages(local, [0], both.remote[500:9000], [16], page_bytes=512)


def test_own_memory_is_a_remote_operand_in_any_number_of_page_sizes(pair: Callable[..., Pair]) -> None:
    both = pair(1 << 16)
    for k in range(1, 20):  # more than a region remembers
        assert both.near.write_pages(both.local, [1], both.local, [0], page_bytes=64 * k).result(timeout=30) == 64 * k
        both.mine.expect(0, both.mine.expected[64 * k : 128 * k])


def test_a_grid_moves_the_same_page_of_every_layer(engines: Callable[..., tent.Engine], keep: Any, seed: int) -> None:
    layers, pages, page = 6, 32, 512
    near, far = engines(), engines()
    mine = [Memory(pages * page, seed + i) for i in range(layers)]
    theirs = [Memory(pages * page, seed + 100 + i) for i in range(layers)]
    local = near.pages([keep(near.register(m.view)) for m in mine], page)
    for i, m in enumerate(theirs):
        keep(far.register(m.view, name=f"layer{i}"))
    with near.open(far.address) as peer:
        remote = peer.pages([peer[f"layer{i}"] for i in range(layers)], page)
        assert (len(local), len(remote)) == (pages, pages)
        transfer = near.write_pages(local, [1, 2, 3], remote, [30, 0, 7], notify=("layers", "all"))
        assert transfer.result(30) == 3 * layers * page == transfer.total_bytes
        for m, t in zip(mine, theirs):
            for a, b in ((1, 30), (2, 0), (3, 7)):
                t.expect(b * page, m.expected[a * page : (a + 1) * page])
            t.check()
            m.check()
    assert far.notifications.get(10).name == "layers"
    assert far.notifications.drain() == []


def test_slices_of_one_region_are_parts_of_a_grid(pair: Callable[..., Pair]) -> None:
    """Layers are often slices of one allocation: each is a region of the grid, and its neighbours are not touched."""
    layer, page = 4096, 512
    both = pair(4 * layer)
    sources, targets = (3, 0, 1), (1, 2, 0)
    here = both.near.pages([both.local[i * layer : (i + 1) * layer] for i in sources], page)
    there = both.peer.pages([both.remote[i * layer : (i + 1) * layer] for i in targets], page)
    assert len(both.peer.pages(both.remote[layer : 2 * layer], page)) == len(here) == len(there) == layer // page
    both.near.write_pages(here, [0, 7], there, [5, 2]).result(10)
    for source, target in zip(sources, targets):
        for a, b in ((0, 5), (7, 2)):
            at = source * layer + a * page
            both.theirs.expect(target * layer + b * page, both.mine.expected[at : at + page])
    both.check()


def test_a_strided_grid_takes_rows_out_of_wider_ones(pair: Callable[..., Pair]) -> None:
    both = pair(64 * 64)
    grid = both.near.pages(both.local, 8, stride=8, rows=4, row_stride=64, offset=512)
    remote = both.peer.pages(both.remote, 8, stride=32, rows=4, row_stride=8)
    both.near.write_pages(grid, [2], remote, [5]).result(10)
    for row in range(4):
        at = 512 + 2 * 8 + row * 64
        both.theirs.expect(5 * 32 + row * 8, both.mine.expected[at : at + 8])
    both.check()


@pytest.mark.timeout(240)
def test_a_hundred_thousand_pages_in_one_call(pair: Callable[..., Pair], seed: int) -> None:
    n, page = 100_000, 64
    both = pair(n * page)
    target = list(range(n))
    random.Random(seed).shuffle(target)
    transfer = both.near.write_pages(both.local, range(n), both.remote, target, page_bytes=page)
    assert transfer.result(120) == n * page
    for a, b in enumerate(target):
        both.theirs.expected[b * page : (b + 1) * page] = both.mine.expected[a * page : (a + 1) * page]
    both.check()


@pytest.mark.interpreter
@pytest.mark.parametrize("n", [1, 2, 100, 4096])
def test_a_batch_moves_all_of_its_requests(pair: Callable[..., Pair], n: int) -> None:
    both = pair(n * 32)
    with both.near.batch(notify=("batch", str(n))) as batch:
        for i in range(n):
            j = n - 1 - i
            batch.write(both.local[i * 32 : i * 32 + 31], both.remote[j * 32 : j * 32 + 31])
            both.theirs.expect(j * 32, both.mine.expected[i * 32 : i * 32 + 31])
        assert len(batch) == n
        assert batch.submit().result(60) == n * 31
    assert both.far.notifications.get(10).message == str(n)
    both.check()


def test_a_batch_counts_the_requests_of_every_shape(pair: Callable[..., Pair]) -> None:
    both = pair(1 << 12)
    own, theirs = both.local.address, both.remote.address
    with (
        both.near.addresses([(own, 64), (own + 64, 64)]) as here,
        both.peer.addresses([(theirs + 1024, 64), (theirs + 2048, 64)]) as there,
        both.near.batch() as batch,
    ):
        batch.write_pages(here, iter([0, 1]), there, [0, 1])
        assert len(batch) == 2, "two ranges of addresses"
        batch.write_ranges(both.local, iter([256, 512]), both.remote, iter([0, 64]), iter([8, 16]))
        assert len(batch) == 4, "two ranges, of iterators"
        batch.write_pages(both.local, [3], both.remote, (i for i in [3]), page_bytes=1024)
        assert len(batch) == 5, "a page of regions"
        for there_at, here_at, n in ((1024, 0, 64), (2048, 64, 64), (0, 256, 8), (64, 512, 16), (3072, 3072, 1024)):
            both.theirs.expect(there_at, both.mine.expected[here_at : here_at + n])
        assert batch.submit().result(30) == 2 * 64 + 8 + 16 + 1024
    both.check()


def test_a_batch_reaches_several_peers_or_nobody(engines: Callable[..., tent.Engine], keep: Any, seed: int) -> None:
    near, others = engines(), [engines() for _ in range(3)]
    mine = Memory(4096, seed)
    local = keep(near.register(mine.view))
    theirs = [Memory(4096, seed + 1 + i) for i in range(3)]
    for engine, memory in zip(others, theirs):
        keep(engine.register(memory.view, name="kv"))
    segments = [near.open(engine.address) for engine in others]
    with near.batch() as batch:
        for i, segment in enumerate(segments):
            batch.write(local[i : i + 1000], segment["kv"][2000:3000])
        assert batch.submit().result(30) == 3000
    for i, memory in enumerate(theirs):
        memory.expect(2000, mine.expected[i : i + 1000])
        memory.check()
    with near.batch() as batch:  # left without submit: nothing moves
        batch.write(local[0:10], segments[0]["kv"][0:10])
    theirs[0].check()
    with pytest.raises(tent.InvalidArgumentError):
        batch.submit()


@pytest.mark.interpreter
def test_many_threads_many_transfers_both_directions(pair: Callable[..., Pair]) -> None:
    threads, rounds, size = 4, 25, 3000
    both = pair(2 * threads * rounds * size)
    back = both.far.open(both.near.address)
    mine_named = both.near.register(both.mine.view, name="mine")
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for i in range(rounds):
                at = (thread * rounds + i) * size
                forth = both.near.write(both.local[at : at + size], both.remote[at : at + size])
                other = both.mine.size // 2 + at
                over = both.far.write(both.offered[other : other + size], back["mine"][other : other + size])
                assert forth.result(60) == over.result(60) == size
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert failures == []
    half = both.mine.size // 2
    both.theirs.expect(0, both.mine.expected[:half])
    both.mine.expect(half, both.theirs.expected[half:])
    both.check()
    mine_named.close()


def test_every_class_and_hint_moves_bytes(pair: Callable[..., Pair]) -> None:
    both = pair(4096)
    name = both.near.write(both.local, both.remote).transports or ("",)
    for i, priority in enumerate((tent.PRIO_HIGH, tent.PRIO_MEDIUM, tent.PRIO_LOW)):
        both.near.write(both.local[i : i + 1], both.remote[i : i + 1], priority=priority, timeout=10).result(10)
    both.theirs.expect(0, both.mine.expected)
    if name[0] == "tcp":
        for hint in ("tcp", tent.TransportType.TCP, 7):
            both.near.write(both.local, both.remote, hint=hint).result(10)
    both.check()


def test_bytes_with_checksums_arrive_in_every_form(pair: Callable[..., Pair]) -> None:
    both = pair(1 << 20)
    page, checked = 4096, {"integrity": "crc32c"}
    src, dst = [3, 200, 17], [40, 41, 99]
    moves = [
        both.near.write(both.local[0:70_001], both.remote[0:70_001], **checked),
        both.near.write_pages(both.local, src, both.remote, dst, page_bytes=page, **checked),
        both.near.write_ranges(both.local, [5], both.remote, [900_000], [1234], **checked),
    ]
    with both.near.batch(**checked) as batch:
        batch.write(both.local[0:10], both.remote[800_000:800_010])
        moves.append(batch.submit())
    assert [move.result(10) for move in moves] == [70_001, 3 * page, 1234, 10]
    both.theirs.expect(0, both.mine.expected[0:70_001])
    for s, d in zip(src, dst):
        both.theirs.expect(d * page, both.mine.expected[s * page : (s + 1) * page])
    both.theirs.expect(900_000, both.mine.expected[5:1239])
    both.theirs.expect(800_000, both.mine.expected[0:10])
    both.check()
    moves.append(both.near.read(both.local[:], both.remote[:], **checked))
    assert moves[-1].result(10) == 1 << 20
    both.mine.expect(0, both.theirs.expected)
    both.check()
    assert {move.transports for move in moves} == {("tcp",)}, "shm carries no checksums"


def test_an_own_region_that_peers_may_not_touch_is_a_remote_operand_here(
    engines: Callable[..., tent.Engine], keep: Any
) -> None:
    near = engines()
    mine, theirs = Memory(10_000, 1), Memory(10_000, 2)
    here, there = keep(near.register(mine.view)), keep(near.register(theirs.view))
    assert near.write(here[0:9000], there[1000:10_000]).result(10) == 9000
    theirs.expect(1000, mine.expected[0:9000])
    theirs.check()
    mine.check()
