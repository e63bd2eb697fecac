"""Memory that a user gave back without unregistering it fails the transfers that need it.

It does so in the process and the thread that asked; nothing else happens to either.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import ctypes, faulthandler, mmap, sys, threading
    if "faulthandler" in sys.argv:
        faulthandler.enable()
    import tent

    SIZE = 1 << 20
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]

    settings = {"transports/shm/enable": True, "transports/tcp/enable": False}
    with tent.Engine(settings) as near, tent.Engine(settings) as far:
        memory = [mmap.mmap(-1, SIZE) for _ in range(3)]
        address = [ctypes.addressof(ctypes.c_char.from_buffer(m)) for m in memory]
        good, lost = near.register((address[0], SIZE)), near.register((address[1], SIZE))
        kv = far.register((address[2], SIZE), name="kv")
        with near.open(far.address) as peer:
            near.write(good, peer["kv"]).result(20)
            # As munmap does, but the address is nobody else's meanwhile.
            assert libc.mprotect(address[1], SIZE, 0) == 0

            def rounds() -> None:
                for size in 1, 4096, SIZE:
                    for move in near.write, near.read:
                        try:
                            move(lost[:size], peer["kv"][:size]).result(20)
                        except tent.TransferError as e:
                            assert e.code == "ADDRESS_NOT_REGISTERED", e
                        else:
                            raise AssertionError("moved what is not there")
                        move(good[:size], peer["kv"][:size]).result(20)
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


@pytest.mark.interpreter
@pytest.mark.parametrize("argument", ["plain", "faulthandler"])
def test_lost_memory_fails_its_transfers_only(argument: str) -> None:
    program = textwrap.dedent(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, argument], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-3000:]
