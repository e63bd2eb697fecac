"""Files as segments: every byte gets where it belongs, also beside other users of the file, and nothing stays open."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tent
from tent.testing import Memory, pattern

MIB = 1 << 20


# Every byte


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_size_at_any_place(data: st.DataObject, engine: tent.Engine, folder: Path, keep: Any) -> None:
    """Ranges of any alignment, several at once: the file holds the right bytes by everybody's account."""
    size = data.draw(st.integers(1, 300_000), "size")
    path = folder / "any.bin"
    path.unlink(missing_ok=True)
    mine, back = Memory(size, 3, data.draw(st.integers(0, 4095), "alignment")), Memory(size, 4)
    with (
        engine.register(mine.view) as local,
        engine.register(back.view) as target,
        engine.open(path, create=True, size=size) as file,
    ):
        model = bytearray(size)
        cut = sorted(data.draw(st.sets(st.integers(1, max(1, size - 1)), max_size=8), "cuts"))
        bounds = [0, *[c for c in cut if c < size], size]
        order = data.draw(st.permutations(range(len(bounds) - 1)), "order")
        ranges = [(bounds[i], bounds[i + 1] - bounds[i]) for i in order if i % 3 != 2 or data.draw(st.booleans())]
        for start, n in ranges:
            model[start : start + n] = pattern(3, start, n)
        starts, lengths = [start for start, _ in ranges], [n for _, n in ranges]
        if ranges:
            moved = engine.write_ranges(local, starts, file, starts, lengths).result(30)
            assert moved == sum(lengths)
        assert path.read_bytes() == model
        assert engine.read(target, file).result(30) == size
        back.expect(0, model)
        back.check()
        mine.check()


def test_pages_go_out_and_come_back_in_another_order(engine: tent.Engine, folder: Path, seed: int) -> None:
    page, n = 65536, 64
    dice = random.Random(seed)
    mine, back = Memory(page * n, seed % 1000), Memory(page * n, seed % 1000 + 1)
    places, order = dice.sample(range(n), n), dice.sample(range(n), n)
    with engine.register(mine.view) as local, engine.register(back.view) as target:
        with engine.open(folder / "kv.bin", create=True, size=page * n) as file:
            done = engine.write_pages(local, list(range(n)), file, places, page_bytes=page, durability="data")
            assert done.result(30) == page * n
            for i in range(n):
                at = places[i] * page
                assert (folder / "kv.bin").read_bytes()[at : at + page] == mine.expected[i * page : (i + 1) * page]
        with engine.open(folder / "kv.bin", readonly=True) as file:
            grid = file.pages(file, page)
            assert engine.read_pages(target, order, grid, [places[i] for i in range(n)], page_bytes=page).result(30)
        for i in range(n):
            back.expect(order[i] * page, mine.expected[i * page : (i + 1) * page])
        back.check()
        mine.check()


def test_one_batch_writes_two_files_and_a_peer(pair: Callable[..., Any], tmp_path: Path) -> None:
    both = pair(256 << 10)
    half = both.mine.size // 2
    with (
        both.near.open(tmp_path / "a", create=True, size=half) as a,
        both.near.open(tmp_path / "b", create=True, size=half, durability="data") as b,
        both.near.batch(durability="data", notify=("saved", "1"), priority=tent.PRIO_LOW) as batch,
    ):
        batch.write(both.local[:half], a)
        batch.write(both.local[half:], b)
        batch.write(both.local[:100], both.remote[:100])
        assert batch.submit().result(30) == both.mine.size + 100
    assert both.far.notifications.get(timeout=10).name == "saved"
    assert (tmp_path / "a").read_bytes() + (tmp_path / "b").read_bytes() == both.mine.expected
    both.theirs.expect(0, both.mine.expected[:100])
    both.check()


def test_every_priority_and_a_deadline(engine: tent.Engine, folder: Path) -> None:
    mine = Memory(4 * MIB, 5)
    with engine.register(mine.view) as local, engine.open(folder / "f", create=True, size=4 * MIB) as file:
        moves = [
            engine.write(local[i * MIB : (i + 1) * MIB], file[i * MIB : (i + 1) * MIB], priority=i % 3, timeout=30)
            for i in range(4)
        ]
        assert [move.result(30) for move in moves] == [MIB] * 4
        assert (folder / "f").read_bytes() == mine.expected
        late = engine.write(local[:MIB], file[:MIB], timeout=0)
        with pytest.raises(tent.TransferTimeoutError):
            late.result(30)
        mine.check()


def test_after_a_cancel_nothing_is_written_any_more(engine: tent.Engine, folder: Path, seed: int) -> None:
    dice = random.Random(seed)
    size = 8 * MIB
    path = folder / "f"
    mine = Memory(size, 6)
    ends = set()
    with engine.register(mine.view) as local, engine.open(path, create=True, size=size) as file:
        for round in range(12):
            move = engine.write(local, file)
            while move.bytes * 12 < size * dice.random() and not move.done():
                pass
            move.cancel()
            ends.add(move.wait(30))
            mine.view[:] = pattern(100 + round, 0, size)  # the memory is ours again
            before = path.read_bytes()
            assert engine.write(local[:1], file[:1]).result(30) == 1
            assert path.read_bytes()[1:] == before[1:]
            mine.expected[:] = mine.view
    assert ends <= {tent.TransferStatusEnum.CANCELED, tent.TransferStatusEnum.COMPLETED}


# Files that change


def test_a_read_past_the_end_fails_whole_and_says_where(engine: tent.Engine, folder: Path) -> None:
    path = folder / "f"
    path.write_bytes(pattern(9, 0, 100_000))
    back = Memory(100_000, 1)
    with engine.register(back.view) as local, engine.open(path) as file:
        os.truncate(path, 65_000)
        move = engine.read(local[60_000:70_000], file[60_000:70_000])
        with pytest.raises(tent.TransferError, match="60000") as caught:
            move.result(30)
        assert caught.value.code == "ADDRESS_NOT_REGISTERED"
        assert caught.value.failed_tasks == [0]
        assert engine.read(local[:60_000], file[:60_000]).result(30) == 60_000
    back.expect(0, pattern(9, 0, 60_000))
    assert back.view[:60_000] == back.expected[:60_000] and back.view[70_000:] == back.expected[70_000:]


def test_a_file_without_a_name_is_still_the_open_one(engine: tent.Engine, folder: Path) -> None:
    path = folder / "f"
    path.write_bytes(b"a" * 8192)
    memory = bytearray(8192)
    with engine.register(memory) as local, engine.open(path) as file:
        assert engine.read(local, file).result(30) == 8192  # its descriptors are open from here on
        path.unlink()
        path.write_bytes(b"b" * 8192)
        memory[:] = bytes(8192)
        assert engine.read(local, file).result(30) == 8192
        assert memory == b"a" * 8192


# Many at one file

STRIPES = """
import sys, tent
from tent.testing import pattern
path, index, of, size, stripe = sys.argv[1], *map(int, sys.argv[2:])
with tent.Engine() as engine, engine.open("file://" + path, durability="data") as file:
    data = bytearray(pattern(7, 0, size))
    with engine.register(data) as local:
        starts = list(range(index * stripe, size, of * stripe))
        lengths = [min(stripe, size - start) for start in starts]
        engine.write_ranges(local, starts, file, starts, lengths).result(60)
"""


def test_processes_write_stripes_of_one_file(engine: tent.Engine, folder: Path) -> None:
    """Odd stripes, so that neighbours share blocks of the file system: nobody loses anybody's bytes."""
    path, size, stripe, of = folder / "f", 3 * MIB + 777, 12_345, 3
    with engine.open(path, create=True, size=size):
        pass
    command = [sys.executable, "-W", "error", "-c", STRIPES, str(path)]
    writers = [
        subprocess.Popen([*command, *map(str, (i, of, size, stripe))], stderr=subprocess.PIPE, text=True)
        for i in range(of)
    ]
    for writer in writers:
        _, error = writer.communicate(timeout=90)
        assert writer.returncode == 0, error
    assert path.read_bytes() == pattern(7, 0, size)


def test_threads_and_engines_share_a_file(engines: Callable[..., tent.Engine], folder: Path) -> None:
    size, stripe = 2 * MIB + 5, 7_777
    path = folder / "f"
    both = [engines(), engines()]
    with both[0].open(path, create=True, size=size) as first, both[1].open(path) as second:
        files = [first, second]
        memories = [Memory(size, 8), Memory(size, 8)]
        regions = [engine.register(memory.view) for engine, memory in zip(both, memories)]
        errors: list[BaseException] = []

        def work(who: int) -> None:
            try:
                region, file = regions[who % 2], files[who % 2]
                moves = [
                    both[who % 2].write(
                        region[start : min(start + stripe, size)], file[start : min(start + stripe, size)]
                    )
                    for start in range(who * stripe, size, 4 * stripe)
                ]
                for move in moves:
                    move.result(60)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not errors
        assert path.read_bytes() == memories[0].expected
        for region, memory in zip(regions, memories):
            region.close()
            memory.check()


# Beginnings and ends


def test_closing_waits_for_transfers_under_way(engine: tent.Engine, folder: Path) -> None:
    mine = Memory(16 * MIB, 2)
    path = folder / "f"
    with engine.register(mine.view) as local:
        with engine.open(path, create=True, size=16 * MIB) as file:
            move = engine.write(local, file, durability="data")
        assert move.result(60) == 16 * MIB
    assert path.read_bytes() == mine.expected
    assert repr(file).endswith("closed>")


def descriptors_of(path: Path) -> int:
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{fd}").startswith(str(path))
        except OSError:
            pass
    return found


def test_nothing_stays_open(folder: Path) -> None:
    with tent.Engine() as engine, engine.register(bytearray(4096)) as local:
        for i in range(40):
            with engine.open(folder / f"f{i % 4}", create=True, size=4096) as file:
                engine.write(local, file).result(30)
        dropped = engine.open(folder / "dropped", create=True, size=4096)
        engine.write(local, dropped).result(30)
        del dropped, file
        gc.collect()
        kept = engine.open(folder / "kept", create=True, size=4096)
        engine.write(local, kept).result(30)
        assert descriptors_of(folder / "f") == descriptors_of(folder / "dropped") == 0
        assert descriptors_of(folder / "kept") > 0
    assert descriptors_of(folder) == 0


def test_in_an_event_loop(engine: tent.Engine, folder: Path) -> None:
    async def run() -> None:
        async with await engine.open_async(folder / "f", create=True, size=4096, durability="data") as file:
            with engine.register(bytearray(b"z" * 4096)) as local:
                assert await engine.write(local, file) == 4096

    asyncio.run(run())
    assert (folder / "f").read_bytes() == b"z" * 4096


def test_the_integer_level(folder: Path) -> None:
    path = folder / "f"
    with tent.TransferEngine() as engine, engine.allocate_memory_guard(8192) as memory:
        segment = engine.open_segment(f"file://{path}", create=True, size=8192)
        info = engine.get_segment_info(segment)
        assert info.type is tent.SegmentInfoType.File
        assert info.buffers == [tent.SegmentInfoBuffer(0, 8192, "file")]
        bytes_of = tent.page.bytes_at(memory.address, 8192)  # type: ignore[attr-defined]
        bytes_of[:] = pattern(3, 0, 8192)
        write = [tent.Request(tent.OpCode.WRITE, memory.address + 100, segment, 1000, 3000)]
        engine.transfer_sync(write, 30)
        assert path.read_bytes() == bytes(1000) + pattern(3, 100, 3000) + bytes(4192)
        engine.transfer_sync([tent.Request(tent.OpCode.READ, memory.address, segment, 999, 10)], 30)
        assert bytes_of[:11] == b"\0" + pattern(3, 100, 9) + pattern(3, 10, 1)
        with pytest.raises(tent.InvalidArgumentError, match="8192"):
            engine.transfer_sync([tent.Request(tent.OpCode.READ, memory.address, segment, 8192, 1)], 30)
        assert engine.probe_peer_alive(segment)
        engine.close_segment(segment)
        with pytest.raises(tent.InvalidEntryError):
            engine.transfer_sync(write, 30)
        again = engine.open_segment(f"file://{path}")
        assert again != segment
        bytes_of.release()


def test_a_file_may_be_opened_for_the_page_cache(engine: tent.Engine, folder: Path) -> None:
    path = folder / "f"
    with engine.allocate(8192) as local, engine.open(path, create=True, size=8192, cached=True) as file:
        routes = engine.explain(local, file)["routes"]
        assert routes[0]["transport"] == "buf-io" and "cached=True" not in routes[0]["detail"]
        local.view[:] = bytes(range(256)) * 32
        written = engine.write(local, file)
        assert written.result(timeout=30) == 8192 and written.transports == ("buf-io",)
        local.view[:] = bytes(8192)
        assert engine.read(local, file).result(timeout=30) == 8192
        assert bytes(local.view) == path.read_bytes() == bytes(range(256)) * 32
    with pytest.raises(tent.InvalidArgumentError, match="cached= is for files"):
        engine.open(engine.address, cached=True)


def test_explain_and_metrics_know_files(engine: tent.Engine, folder: Path) -> None:
    with engine.register(bytearray(65536)) as local, engine.open(folder / "f", create=True, size=65536) as file:
        said = engine.explain(local, file)
        names = [route["transport"] for route in said["routes"]]
        reasons = {entry["transport"]: entry["reason"] for entry in said["rejected"]}
        assert names[-1] == "buf-io"
        assert reasons["tcp"] == "the segment is a file"
        assert "io-uring" in names or reasons["io-uring"]
        assert str(folder / "f") in said["routes"][0]["detail"]
        move = engine.write(local, file)
        move.result(30)
        assert move.transports == (names[0],)
        for hint in names:
            assert engine.write(local, file, hint=hint).transports in ((), (hint,))
        metrics = engine.metrics()
        assert metrics[f'tent_write_bytes_total{{transport="{names[0]}",class="high"}}'] >= 65536
        with pytest.raises(tent.InvalidArgumentError, match="the segment is a file"):
            engine.write(local, file, hint="tcp")
