"""Mistakes and limits about memory of GPUs: each error names the GPUs, the cause and a cure. The driver is emulated."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from gpu import COMMON, ORACLE, driver, passes

__all__ = ["driver"]  # the fixture `library`

RAISES = """
    def raises(kind, call, *words):
        try:
            call()
        except kind as error:
            for word in words:
                assert word in str(error), error
        else:
            raise AssertionError("it passed")
"""

# The owner of memory of cuda:1 in a process of its own: it says its address, and shows its bytes at each line.
OWNER = """
    import sys

    address = allocate(1, SIZE + 2 * BAND)
    poke(address, pattern(2, SIZE + 2 * BAND))
    with tent.Engine() as engine, engine.register((address + BAND, SIZE), name="cache"):
        print(engine.address, flush=True)
        for line in sys.stdin:
            print(peek(address, SIZE + 2 * BAND).hex(), flush=True)
"""

# Both ends of the pair, in another process and in this one.
PAIR = """
    import subprocess, sys
    from contextlib import contextmanager

    BOTH = ("cuda:0 (PCI face:1a:00.0) has no peer access to cuda:1 (PCI face:1b:00.0)", "cuDeviceCanAccessPeer says 0",
            "staging/enable", "nvidia-smi topo -p2p r")
    mine, theirs = pattern(1, SIZE + 2 * BAND), pattern(2, SIZE + 2 * BAND)
    address = allocate(0, SIZE + 2 * BAND)
    poke(address, mine)

    @contextmanager
    def elsewhere(engine):
        pipe = subprocess.PIPE
        owner = subprocess.Popen([sys.executable, OWNER], stdin=pipe, stdout=pipe, text=True)
        def content():
            print(file=owner.stdin, flush=True)
            return bytes.fromhex(owner.stdout.readline())
        with engine.open(owner.stdout.readline().strip()) as peer:
            yield peer["cache"][0:SIZE], content
        owner.stdin.close()
        assert owner.wait(timeout=20) == 0

    @contextmanager
    def here(engine):
        there = allocate(1, SIZE + 2 * BAND)
        poke(there, theirs)
        with engine.register((there + BAND, SIZE)) as region:
            yield region[0:SIZE], lambda: peek(there, SIZE + 2 * BAND)

    def reason(engine, own, there):
        return next(r["reason"] for r in engine.explain(own, there)["rejected"] if r["transport"] == "nvlink")
"""


def pair(library: str, folder: Path, program: str) -> None:
    owner = folder / "owner.py"
    owner.write_text("".join(map(textwrap.dedent, (COMMON, ORACLE, OWNER))))
    named = f"\nOWNER = {str(owner)!r}\n"
    passes(library, "".join(map(textwrap.dedent, (ORACLE, named, RAISES, PAIR, program))), APART="0-1")


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_gpus_without_peer_access_are_staged_and_explain_says_why(library: str, tmp_path: Path, where: str) -> None:
    """Every byte arrives, also where nvlink alone was demanded: it carries both hops."""
    pair(
        library,
        tmp_path,
        f"""
    with tent.Engine() as engine, engine.register((address + BAND, SIZE)) as own, {where}(engine) as (there, content):
        said = engine.explain(own, there)
        assert "staged through host memory" in said["routes"][0]["staged"], said
        for word in BOTH:
            assert word in reason(engine, own, there), said
        engine.write(own, there).result(timeout=20)
        arrived = theirs[:BAND] + mine[BAND:-BAND] + theirs[-BAND:]
        assert content() == arrived and peek(address, len(mine)) == mine
        for terms in (dict(require="nvlink"), dict(hint="nvlink")):
            poke(address, pattern(3, len(mine)))
            engine.read(own, there, **terms).result(timeout=20)
            outside = pattern(3, len(mine))
            assert peek(address, len(mine)) == outside[:BAND] + mine[BAND:-BAND] + outside[-BAND:], terms
            assert content() == arrived
    """,
    )


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_gpus_without_peer_access_are_named_where_nothing_else_leads_there(
    library: str, tmp_path: Path, where: str
) -> None:
    pair(
        library,
        tmp_path,
        f"""
    with tent.Engine({{"staging/enable": False}}) as engine, engine.register((address + BAND, SIZE)) as own:
        with {where}(engine) as (there, content):
            for terms in ({{}}, dict(require="nvlink"), dict(hint="nvlink")):
                raises(tent.TentError, lambda: engine.write(own, there, **terms).result(timeout=20), *BOTH)
            assert content() == theirs and peek(address, len(mine)) == mine
    """,
    )


def test_a_view_of_a_tensor_with_gaps_is_refused(library: str) -> None:
    passes(
        library,
        RAISES
        + """
    address = allocate(0, SIZE)

    class Interface:  # every other row of 256 bytes
        __cuda_array_interface__ = {"shape": (8, 256), "typestr": "|u1", "data": (address, False), "version": 3,
                                    "strides": (512, 1)}

    with tent.Engine() as engine:
        raises(tent.InvalidArgumentError, lambda: engine.register(Interface()), "not contiguous", "strides (512, 1)")
    """,
    )


def test_a_range_over_two_gpus_is_refused(library: str) -> None:
    """Chunks of two GPUs lie side by side in one reservation, as a framework may map them."""
    passes(
        library,
        RAISES
        + """
    chunk = 2 << 20
    address, size = ctypes.c_uint64(), ctypes.c_size_t
    assert gpu.cuMemAddressReserve(ctypes.byref(address), size(2 * chunk), size(0), ctypes.c_uint64(0), 0) == 0
    for device in (0, 1):
        handle, made = ctypes.c_void_p(), (ctypes.c_int * 8)(1, 1, 1, device)  # CUmemAllocationProp
        access, at = (ctypes.c_int * 3)(1, device, 3), ctypes.c_uint64(address.value + device * chunk)
        assert gpu.cuMemCreate(ctypes.byref(handle), size(chunk), made, ctypes.c_uint64(0)) == 0
        assert gpu.cuMemMap(at, size(chunk), size(0), handle, ctypes.c_uint64(0)) == 0
        assert gpu.cuMemSetAccess(at, size(chunk), access, size(1)) == 0
    with tent.Engine() as engine:
        both = (address.value + chunk - 4096, 8192)
        raises(tent.InvalidArgumentError, lambda: engine.register(both), "cuda:0", "cuda:1", "a region of its own")
        for device in (0, 1):
            with engine.register((address.value + device * chunk, chunk)) as region:
                assert region.location == f"cuda:{device}"
    """,
        devices=2,
    )
