"""Files when something breaks: a transport, a disk, a process. Faults are injected by TENT_FAULTS' language."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tent
from tent import buffers
from tent.testing import Memory, pattern

MIB = 1 << 20


def test_the_next_transport_takes_over(engines: Callable[..., tent.Engine], folder: Path) -> None:
    engine = engines(allow_faults=True, faults="transport=io-uring reject scope=link after_slices=2")
    mine, back = Memory(8 * MIB, 3), Memory(8 * MIB, 4)
    with (
        engine.register(mine.view) as local,
        engine.register(back.view) as target,
        engine.open(folder / "f", create=True, size=8 * MIB) as file,
    ):
        first = engine.explain(local, file)["routes"][0]["transport"]
        move = engine.write(local, file, durability="data")
        assert move.result(30) == 8 * MIB
        assert move.transports[-1] == "buf-io"
        if first == "io-uring":  # only where the file system takes O_DIRECT
            assert move.failovers == 1 and move.transports == ("io-uring", "buf-io")
            assert engine.metrics()['tent_transport_failover_total{from="io-uring",to="buf-io"}'] == 1
        assert (folder / "f").read_bytes() == mine.expected
        assert engine.read(target, file).result(30) == 8 * MIB
        back.expect(0, mine.expected)
    mine.check()
    back.check()


def test_a_disk_that_loses_its_bytes(engines: Callable[..., tent.Engine], folder: Path) -> None:
    engine = engines(allow_faults=True, faults="fail_sync")
    with engine.register(bytearray(8192)) as local, engine.open(folder / "f", create=True, size=8192) as file:
        assert engine.write(local, file).result(30) == 8192  # handed to the kernel, as always
        move = engine.write_ranges(local, [0, 4096], file, [0, 4096], [100, 100], durability="data")
        with pytest.raises(tent.TransferError, match="fail_sync") as caught:
            move.result(30)
        assert caught.value.code == "STORAGE_ERROR"
        assert caught.value.state is tent.TransferStatusEnum.FAILED
        assert caught.value.failed_tasks == [0, 1], "what was written may be gone after a crash"
    with engine.open(folder / "g", create=True, size=8192, durability="data") as file:
        with engine.register(bytearray(8192)) as local, engine.batch() as batch:
            batch.write(local, file)
            with pytest.raises(tent.TransferError, match="fail_sync"):
                batch.submit().result(30)


def test_memory_that_the_kernel_keeps_outlives_its_region(folder: Path) -> None:
    """A slice that nothing brings back: the transfer ends dirty, and its buffer stays until the engine has ended."""

    class Buffer(bytearray):
        gone = False

        def __del__(self) -> None:
            Buffer.gone = True

    settings = {"allow_faults": True, "fence_timeout_file_ms": 50, "faults": "op=WRITE blackhole silent"}
    with tent.Engine(settings) as engine:
        local = engine.register(Buffer(65536))
        with engine.open(folder / "f", create=True, size=65536) as file:
            move = engine.write(local, file)
            move.cancel()
            with pytest.raises(tent.TransferCanceledError) as caught:
                move.result(30)
            assert caught.value.dirty
        local.close()
        del local, move, caught, file
        gc.collect()
        assert not Buffer.gone
    del engine
    gc.collect()
    assert Buffer.gone
    assert (folder / "f").read_bytes() == bytes(65536)


@pytest.mark.parametrize("level", ["region", "integers"])
def test_memory_that_only_the_program_keeps_is_not_given_back_while_the_kernel_has_it(folder: Path, level: str) -> None:
    memory = Memory(65536, 5)
    pair = buffers.address_of(memory.view), memory.size
    settings = {"allow_faults": True, "fence_timeout_file_ms": 50, "faults": "op=WRITE blackhole silent"}
    with tent.TransferEngine(settings) as te, te.engine.open(folder / "f", create=True, size=65536) as file:
        if level == "region":
            region = te.engine.register(pair)
            ends: list[Callable[[], None]] = [region.close, region.close]
        else:
            te.register_local_memory(*pair)
            ends = [lambda: te.unregister_local_memory(*pair), lambda: te.unregister_local_memory(pair[0])]
        batch = te.allocate_transfer_batch(1)
        te.submit_transfer(batch, [tent.Request(tent.OpCode.WRITE, pair[0], file._handle, 0, 65536)])
        te.cancel_transfer(batch, 0)
        assert te.wait(batch, 30).state == tent.TransferStatusEnum.CANCELED
        for end in ends:  # the record stays, so that it can be asked again
            with pytest.raises(TimeoutError, match="kernel may still use"):
                end()
    memory.check()


WRITER = """
import sys, tent
from tent.testing import pattern
data = bytearray(pattern(11, 0, 8 << 20))
with tent.Engine() as engine, engine.register(data) as local:
    file = engine.open("file://" + sys.argv[1], create=True, size=len(data))
    engine.write(local[: 1 << 20], file[: 1 << 20], durability="data").result(30)
    print("durable", flush=True)
    while True:
        engine.write(local[1 << 20 :], file[1 << 20 :]).result(30)
"""


def test_kill_in_mid_write(folder: Path) -> None:
    """Every byte that was reported durable is there, every other byte is old or new, and no other file has changed."""
    other = folder / "other"
    other.write_bytes(pattern(12, 0, MIB))
    path = folder / "f"
    writer = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", WRITER, str(path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert writer.stdout
        assert writer.stdout.readline() == "durable\n"
        while path.stat().st_blocks == 0 or path.read_bytes()[MIB : MIB + 1] == b"\0":
            assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()
        if writer.stdout:
            writer.stdout.close()
    found, new = path.read_bytes(), pattern(11, 0, 8 * MIB)
    assert found[:MIB] == new[:MIB]
    for at in range(MIB, 8 * MIB, 4096):
        assert found[at : at + 4096] in (bytes(4096), new[at : at + 4096]), at
    assert other.read_bytes() == pattern(12, 0, MIB)
    assert sorted(os.listdir(folder)) == ["f", "other"]
