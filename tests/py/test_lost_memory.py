"""Memory that a user gave back without unregistering it fails the transfers that need it.

It does so at either end, in the process and the thread that asked; nothing else happens to either. Each case has
processes of its own: a mistake would end them.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

# Ways to lose `size` bytes of memory that stays registered; each leaves its addresses to nobody else.
COMMON = """
    import contextlib, ctypes, faulthandler, mmap, os, sys, tempfile, threading
    import tent

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]

    class Memory:
        def __init__(self, size):
            self.file = tempfile.TemporaryFile()
            self.file.truncate(size)
            self.map, self.size = mmap.mmap(self.file.fileno(), size), size
            self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
            self.pair = self.address, size

        def lose(self, way):
            if way == "unmapped":
                assert libc.mprotect(self.address, self.size, 0) == 0
            elif way == "cut short":
                self.file.truncate(0)
            else:
                raise AssertionError(way)

    def only(transport):
        return {f"transports/{name}/enable": name == transport for name in ("shm", "tcp")}

    def refused(transfer, side):
        try:
            transfer.result(30)
        except tent.TransferError as e:
            assert e.code == "ADDRESS_NOT_REGISTERED" and e.side == side, (e.code, e.side, e)
        else:
            raise AssertionError("moved what is not there")
"""

# Threads move pieces of lost and of good memory beside each other.
HERE = """
    SIZE = 1 << 20
    if "faulthandler first" in sys.argv:
        faulthandler.enable()
    settings = only(sys.argv[1])
    with tent.Engine(settings) as near, tent.Engine(settings) as far:
        memory = [Memory(SIZE) for _ in range(3)]
        good, lost = near.register(memory[0].pair), near.register(memory[1].pair)
        kv = far.register(memory[2].pair, name="kv")
        with near.open(far.address) as peer:
            near.write(good, peer["kv"]).result(20)
            memory[1].lose(sys.argv[2])

            def rounds() -> None:
                for size in 1, 64, 4096, SIZE:
                    for move in near.write, near.read:
                        for integrity in None, "crc32c" if sys.argv[1] == "tcp" else None:
                            refused(move(lost[:size], peer["kv"][:size], integrity=integrity), "local")
                            move(good[:size], peer["kv"][:size], integrity=integrity).result(20)
                for move in near.write_pages, near.read_pages:
                    refused(move(lost, [0, 3], peer["kv"], [2, 1], page_bytes=70_000), "local")
                    move(good, [0, 3], peer["kv"], [2, 1], page_bytes=70_000).result(20)
                ended.append(threading.current_thread().name)

            ended = []
            threads = [threading.Thread(target=rounds) for _ in range(3)]
            for thread in threads:
                thread.start()
            rounds()
            for thread in threads:
                thread.join()
            assert len(ended) == 4, ended
        for region in good, lost, kv:
            region.close()
"""

# The owner of the lost memory is another process, which must live. Another engine moves meanwhile, and notices nothing.
OWNER = """
    lost, good = Memory(64 << 20), Memory(1 << 20)
    with tent.Engine(only(sys.argv[1])) as engine:
        with engine.register(lost.pair, name="lost"), engine.register(good.pair, name="good"):
            print(engine.address, flush=True)
            assert sys.stdin.readline() == "lose\\n"
            lost.lose(sys.argv[2])
            print("lost", flush=True)
            assert sys.stdin.readline() == "end\\n"
    print("ended", flush=True)
"""

CALLER = """
    SIZE = 64 << 20
    with tent.Engine(only(sys.argv[1])) as engine:
        local, stop, moved = engine.allocate(SIZE), threading.Event(), threading.Event()
        with engine.open(sys.argv[3]) as peer:
            engine.write(local, peer["lost"]).result(30)

            def neighbour():
                with tent.Engine(only(sys.argv[1])) as other, other.allocate(1 << 20) as mine:
                    with other.open(sys.argv[3]) as same:
                        while not stop.is_set():
                            other.write(mine, same["good"], timeout=20).result(30)
                            moved.set()

            thread = threading.Thread(target=neighbour)
            thread.start()
            assert moved.wait(20)
            print("ready", flush=True)
            assert sys.stdin.readline() == "lost\\n"
            events = engine.events()
            events.drain()
            for size in 64, 4096, 1 << 20, SIZE:
                for move in engine.write, engine.read:
                    for integrity in None, "crc32c" if sys.argv[1] == "tcp" else None:
                        refused(move(local[:size], peer["lost"][:size], integrity=integrity), "remote")
                        few = min(size, 1 << 20)
                        move(local[:few], peer["good"][:few], integrity=integrity).result(20)
            moved.clear()
            assert moved.wait(20), "the neighbour moves no more"
            stop.set()
            thread.join()
            blamed = {"rail_down", "rail_condemned", "rail_paused", "link_down", "peer_gone", "dirty"}
            told = [e for e in events.drain() if e.kind in blamed]
            assert not told, told
        local.close()
"""


def run(program: str, *arguments: str) -> subprocess.Popen[str]:
    source = textwrap.dedent(COMMON) + textwrap.dedent(program)
    command = [sys.executable, "-W", "error", "-c", source, *arguments]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


def ended(process: subprocess.Popen[str]) -> None:
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err[-3000:]


@pytest.mark.interpreter
@pytest.mark.parametrize("when", ["plain", "faulthandler first"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("way", ["unmapped", "cut short"])
def test_lost_memory_fails_its_transfers_only(transport: str, way: str, when: str) -> None:
    ended(run(HERE, transport, way, when))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("way", ["unmapped", "cut short"])
def test_lost_memory_of_a_peer_fails_its_transfers_only(transport: str, way: str) -> None:
    owner = run(OWNER, transport, way)
    assert owner.stdin is not None and owner.stdout is not None
    address = owner.stdout.readline().strip()
    caller = run(CALLER, transport, way, address)
    assert caller.stdin is not None and caller.stdout is not None
    assert caller.stdout.readline() == "ready\n"
    print("lose", file=owner.stdin, flush=True)
    assert owner.stdout.readline() == "lost\n"
    print("lost", file=caller.stdin, flush=True)
    ended(caller)
    print("end", file=owner.stdin, flush=True)
    ended(owner)


# faulthandler installs its handler after Go's, and gets every fault first from then on.
LATE = """
    import logging

    class Put(logging.Handler):
        def emit(self, record):
            if "put behind ours" in record.getMessage():
                seen.set()

    seen = threading.Event()
    logging.getLogger("tent").addHandler(Put())
    logging.getLogger("tent").setLevel(logging.INFO)
    settings = only(sys.argv[1])
    with tent.Engine(settings, log_level="info") as near, tent.Engine(settings) as far:
        mine, theirs = Memory(1 << 20), Memory(1 << 20)
        lost, kv = near.register(mine.pair), far.register(theirs.pair, name="kv")
        with near.open(far.address) as peer:
            faulthandler.enable()
            if sys.argv[2] != "within a second":
                near.register(bytearray(10)).close()
            assert seen.wait(20)
            if sys.argv[2] == "again and again":
                for _ in range(20):
                    faulthandler.disable()
                    near.register(bytearray(10)).close()
                    faulthandler.enable()
                    near.register(bytearray(10)).close()
            mine.lose("unmapped")
            for _ in range(3):
                refused(near.write(lost, peer["kv"], integrity="crc32c"), "local")
        print("guarded", flush=True)
        if sys.argv[3] == "crash":
            ctypes.string_at(1)
        lost.close()
        kv.close()
"""


@pytest.mark.interpreter
@pytest.mark.parametrize("crash", ["quiet", "crash"])
@pytest.mark.parametrize("when", ["at a registration", "within a second", "again and again"])
def test_a_handler_that_comes_later_takes_nothing_away(when: str, crash: str) -> None:
    """Memory that is gone stays an error, and a real crash of other code is still faulthandler's to report."""
    child = run(LATE, "tcp", when, crash)
    out, err = child.communicate(timeout=120)
    assert out == "guarded\n", err[-3000:]
    if crash == "crash":
        assert child.returncode < 0
        assert "Fatal Python error: Segmentation fault" in err
        assert "string_at" in err, "the traceback of Python"
    else:
        assert child.returncode == 0, err[-3000:]
