"""Memory of a GPU that goes through pools of host memory: to a peer by TCP, and to files. The driver is emulated."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from gpu import COMMON, ORACLE, driver, passes

__all__ = ["driver"]  # the fixture `library`

# Settings of both engines. No pages are shared between them, and a transfer has more pieces than the pool has slots.
SETTINGS = """
    size = 400_003
    SETTINGS = {"transports/shm/enable": False, "transports/nvlink/trust": "none",
                "staging/slots": 3, "staging/slot_bytes": 64 << 10}
"""

# A process with memory of the host: it says its address, and shows all its bytes at each line.
OWNER = """
    import sys

    memory = bytearray(pattern(2, size + 2 * BAND))
    with tent.Engine(SETTINGS) as engine, engine.register(memoryview(memory)[BAND:-BAND], name="cache"):
        print(engine.address, flush=True)
        for line in sys.stdin:
            print(memory.hex(), flush=True)
"""

# The asker: its memory is a GPU's. A hold stops all copies of the driver, so an end surely comes in the middle.
ASKER = """
    import subprocess, sys, time

    address = allocate(0, size + 2 * BAND)
    mine, theirs = pattern(1, size + 2 * BAND), pattern(2, size + 2 * BAND)
    poke(address, mine)

    def joined(outside, inside):
        return outside[:BAND] + inside[BAND:-BAND] + outside[-BAND:]

    class Owner:
        def __init__(self):
            pipe = subprocess.PIPE
            self.process = subprocess.Popen([sys.executable, OWNER], stdin=pipe, stdout=pipe, text=True)
            self.address = self.process.stdout.readline().strip()
        def bytes(self):
            print(file=self.process.stdin, flush=True)
            return bytes.fromhex(self.process.stdout.readline())
        def kill(self):
            self.process.kill()
            self.process.wait(timeout=30)
        def close(self):
            self.process.stdin.close()
            assert self.process.wait(timeout=30) == 0

    def slots_come_back(engine):
        limit = time.monotonic() + 30
        while True:
            now = engine.metrics()
            if now["tent_staging_slots"] == now["tent_staging_slots_free"] > 0:
                return
            assert time.monotonic() < limit, now

    def staged(engine, region, remote):
        first = engine.explain(region, remote)["routes"][0]
        assert "staged through host memory: 3 slots of 64 KiB" in str(first), first
        return first["transport"]
"""


def asks(library: str, folder: Path, program: str, **settings: str) -> None:
    """Runs an asker, and the owner of the peer's memory where it starts one."""
    owner = folder / "owner.py"
    owner.write_text("".join(map(textwrap.dedent, (COMMON, ORACLE, SETTINGS, OWNER))))
    named = f"\n    OWNER, FOLDER = {str(owner)!r}, {str(folder)!r}\n"
    passes(library, "".join(map(textwrap.dedent, (ORACLE, SETTINGS, named, ASKER, program))), **settings)


def test_memory_of_a_gpu_is_staged_to_a_peer_and_back(library: str, tmp_path: Path) -> None:
    asks(
        library,
        tmp_path,
        """
    owner = Owner()
    with tent.Engine(SETTINGS) as engine, engine.register((address + BAND, size)) as own:
        with engine.open(owner.address) as segment:
            there = segment["cache"]
            assert staged(engine, own, there[0:size]) == "tcp"
            assert engine.write(own, there[0:size]).result(timeout=30) == size
            assert owner.bytes() == joined(theirs, mine)
            poke(address, pattern(3, len(mine)))
            assert engine.read(own, there[0:size]).result(timeout=30) == size
            assert peek(address, len(mine)) == joined(pattern(3, len(mine)), mine)
            slots_come_back(engine)
    owner.close()
    """,
        DELAY_US="100",
    )


def test_memory_of_a_gpu_is_staged_to_a_file_and_back(library: str, tmp_path: Path) -> None:
    asks(
        library,
        tmp_path,
        """
    path = Path(FOLDER) / "kv.bin"
    with tent.Engine(SETTINGS) as engine, engine.register((address + BAND, size)) as own:
        with engine.open(path, create=True, size=size + 5000) as file:
            assert staged(engine, own, file[777 : 777 + size]) in ("io-uring", "buf-io")
            assert engine.write(own, file[777 : 777 + size], durability="data").result(timeout=30) == size
            content = path.read_bytes()
            assert content[777 : 777 + size] == mine[BAND:-BAND]
            assert not any(content[:777]) and not any(content[777 + size :])
            poke(address, pattern(3, len(mine)))
            assert engine.read(own, file[777 : 777 + size]).result(timeout=30) == size
            assert peek(address, len(mine)) == joined(pattern(3, len(mine)), mine)
            slots_come_back(engine)
    """,
        DELAY_US="100",
    )


@pytest.mark.parametrize("move", ["write", "read"])
def test_a_cancelled_transfer_gives_its_slots_back(library: str, tmp_path: Path, move: str) -> None:
    """It writes nothing after its end, and the next transfer passes."""
    asks(
        library,
        tmp_path,
        f"""
    owner = Owner()
    with tent.Engine(SETTINGS) as engine, engine.register((address + BAND, size)) as own:
        with engine.open(owner.address) as segment:
            there = segment["cache"][0:size]
            gpu.fakecuda_hold(1)
            transfer = engine.{move}(own, there)
            assert transfer.cancel(), "no copy has been carried out"
            gpu.fakecuda_hold(0)
            assert isinstance(transfer.exception(timeout=30), tent.TransferError) and transfer.cancelled()
            slots_come_back(engine)
            ours, left = peek(address, len(mine)), owner.bytes()
            assert ours == joined(mine, ours) and left == joined(theirs, left), "the bands"
            assert engine.{move}(own, there).result(timeout=30) == size
            wrote = {move!r} == "write"
            assert owner.bytes() == (joined(theirs, mine) if wrote else theirs)
            assert peek(address, len(mine)) == (mine if wrote else joined(mine, theirs))
            slots_come_back(engine)
    owner.close()
    """,
    )


@pytest.mark.parametrize("move", ["write", "read"])
def test_a_killed_peer_costs_no_slots(library: str, tmp_path: Path, move: str) -> None:
    """The error names it, and no byte outside the region has changed."""
    asks(
        library,
        tmp_path,
        f"""
    with tent.Engine(SETTINGS) as engine, engine.register((address + BAND, size)) as own:
        owner = Owner()
        with engine.open(owner.address) as segment:
            gpu.fakecuda_hold(1)
            transfer = engine.{move}(own, segment["cache"][0:size])
            owner.kill()
            gpu.fakecuda_hold(0)
            error = transfer.exception(timeout=30)
            assert isinstance(error, ConnectionError) and error.peer == owner.address, repr(error)
            slots_come_back(engine)
            now = peek(address, len(mine))
            assert now == joined(mine, now), "the bands"
    """,
    )
