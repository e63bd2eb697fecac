"""Memory of Ascend NPUs, with emulated libraries: tests/fakes/ascend, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import apart
import pytest
from npu import COMMON, Libraries, built, passes

__all__ = ["built"]  # the fixture `libraries`


def test_memory_of_an_npu_is_found_by_its_address(libraries: Libraries) -> None:
    """The word of the caller does not count; a range of two places is refused, and the thread's device stays."""
    passes(
        libraries,
        """
    address = allocate(1, SIZE)
    with tent.Engine() as engine:
        for location in ("*", "npu:1", "npu"):
            with engine.register((address, SIZE), location=location) as region:
                assert region.location == "npu:1", region
        for location in ("npu:0", "cpu:0"):
            try:
                engine.register((address, SIZE), location=location)
            except tent.InvalidArgumentError as error:
                assert "memory of npu:1" in str(error), error
            else:
                raise AssertionError(location)
        try:
            engine.register((address - 4096, SIZE))
        except tent.TentError as error:
            assert "npu:1 has" in str(error) or "cannot all be read" in str(error), error
        else:
            raise AssertionError("two places")
    assert npu.fakeacl_current() == 1
    """,
    )


def test_allocated_memory_is_zeroed_and_given_back(libraries: Libraries) -> None:
    passes(
        libraries,
        """
    assert npu.fakeacl_current() == -1
    with tent.Engine() as engine:
        with engine.allocate(SIZE, location="npu:1") as region:
            assert region.location == "npu:1"
            assert peek(region.address, SIZE) == bytes(SIZE)
            address = region.address
        del region
        try:
            engine.allocate(SIZE, location="npu:2")
        except tent.DeviceNotFoundError as error:
            assert "2 devices" in str(error), error
        else:
            raise AssertionError("there are two")
    assert npu.fakeacl_current() == -1, "a thread without a device got one"
    data = ctypes.create_string_buffer(1)
    kind = npu.fakeacl_kind(ctypes.c_uint64(address), ctypes.c_uint64(1), ctypes.byref(ctypes.c_int()))
    assert kind == -1, "it was freed"
    """,
    )


def test_pages_move_between_npus_and_the_host(libraries: Libraries) -> None:
    """Inside of a process the platform copies; HIXL is not needed."""
    passes(
        Libraries(libraries.runtime, "", ""),
        """
    first, second, page = allocate(0, SIZE), allocate(1, SIZE), 4096
    made = os.urandom(SIZE)
    poke(first, made)
    order = [(7 * i + 3) % (SIZE // page) for i in range(SIZE // page)]
    host = bytearray(SIZE)
    with tent.Engine() as engine, tent.Engine() as peer:
        regions = [peer.register(host, name="host"), peer.register((second, SIZE), name="second")]
        own = engine.pages([engine.register((first, SIZE))], page)
        with engine.open(peer.address) as segment:
            for name in ("host", "second"):
                theirs = segment.pages([segment[name]], page)
                engine.write_pages(own, range(SIZE // page), theirs, order).result(timeout=20)
    want = bytearray(SIZE)
    for source, target in enumerate(order):
        want[page * target : page * (target + 1)] = made[page * source : page * (source + 1)]
    assert host == want and peek(second, SIZE) == bytes(want)
    """,
    )


# The owner of memory in a process of its own: it says its address, and shows its bytes when it is asked.
OWNER = """
    import sys

    address = allocate(0, SIZE)
    with tent.Engine() as engine, engine.register((address + 4096, SIZE - 8192), name="cache"):
        print(engine.address, flush=True)
        for line in sys.stdin:
            print(peek(address, SIZE).hex(), flush=True)
"""


@pytest.mark.parametrize("way", ["ascend_direct", "delegate"])
def test_memory_of_another_process_is_written_and_read(libraries: Libraries, tmp_path: Path, way: str) -> None:
    """By HIXL, and by way of the host where the libraries of it are missing."""
    if way == "ascend_direct" and not libraries.shim:
        pytest.skip("no g++: the shim of HIXL and the emulated library are C++")
    if way == "delegate":
        libraries = Libraries(libraries.runtime, "", "")
    owner = tmp_path / "owner.py"
    owner.write_text(textwrap.dedent(COMMON) + textwrap.dedent(OWNER))
    passes(
        libraries,
        f"""
    import subprocess, sys

    pipe = subprocess.PIPE
    owner = subprocess.Popen([sys.executable, {str(owner)!r}], stdin=pipe, stdout=pipe, text=True)
    where = owner.stdout.readline().strip()
    n = SIZE - 8192
    address, made = allocate(0, SIZE), bytes(i * 7 % 251 for i in range(n))
    poke(address + 4096, made)
    with tent.Engine() as engine, engine.register((address + 4096, n)) as own, engine.open(where) as segment:
        there = segment["cache"][0:n]
        if {way!r} != "delegate":  # which may be up before it
            engine.events().wait_for(lambda e: e.kind == "link_up" and e.transport == {way!r}, timeout=10)
        assert engine.explain(own, there)["taken"] == {way!r}, engine.explain(own, there)
        engine.write(own, there).result(timeout=10)
        print(file=owner.stdin, flush=True)
        seen = bytes.fromhex(owner.stdout.readline())
        assert seen[4096:-4096] == made and seen[:4096] == seen[-4096:] == b"\\xc3" * 4096
        poke(address + 4096, bytes(n))
        engine.read(own, there).result(timeout=10)
        assert peek(address, SIZE) == b"\\xc3" * 4096 + made + b"\\xc3" * 4096
    owner.stdin.close()
    assert owner.wait(timeout=20) == 0
    """,
    )


def test_a_setting_of_upstream_that_hixl_would_refuse_is_an_error(libraries: Libraries) -> None:
    if not libraries.shim:
        pytest.skip("no g++: the shim of HIXL and the emulated library are C++")
    passes(
        libraries,
        """
    for key, value in (("rdma_tc", "133"), ("rdma_sl", "8"), ("auto_connect", "yes")):
        try:
            tent.Engine({f"transports/ascend_direct/{key}": value})
        except tent.InvalidArgumentError as error:
            assert f"transports/ascend_direct/{key}" in str(error), error
        else:
            raise AssertionError(key)
    """,
    )


def test_doctor_and_topo_list_npus_or_the_reason(libraries: Libraries) -> None:
    def command(*words: str, **variables: str) -> str:
        env = os.environ | libraries.environment() | variables
        done = subprocess.run(
            [sys.executable, "-m", "tent", *words], capture_output=True, text=True, timeout=60, env=env
        )
        assert done.stdout, (done.returncode, done.stderr)
        return done.stdout

    text = command("doctor")
    assert "devices of acl" in text and "npu:1: Emulated910, PCI face:5b:00.0" in text
    missing = command("doctor", TENT_LIBASCENDCL="/nonexistent/libascendcl.so")
    assert "no CANN runtime: /nonexistent/libascendcl.so" in missing
    assert "memory of its devices is not recognised" in missing
    no_shim = {"TENT_LIBMETADEF": "libm.so.6", "TENT_LIBHIXL": "libm.so.6", "TENT_LIBASCEND": "/nonexistent/shim.so"}
    without = command("doctor", **no_shim)
    assert "/nonexistent/shim.so" in without and "make ascend-shim" in without
    assert "npu:1: Emulated910" in without, "the platform needs no HIXL"
    assert "Emulated910" in command("topo", "--table")


def test_an_import_loads_no_library(libraries: Libraries) -> None:
    program = """
import tent
maps = open("/proc/self/maps").read()
print([name for name in ("libascendcl", "hixl", "tent_ascend") if name in maps])
"""
    assert apart.passes(program, **libraries.environment(), LD_BIND_NOW="1").strip() == "[]"


def test_a_forked_process_may_not_use_the_library(libraries: Libraries) -> None:
    passes(
        libraries,
        """
    address = allocate(0, SIZE)
    with tent.Engine() as engine, engine.register((address, SIZE)):
        if (child := os.fork()) == 0:
            try:
                engine.register((address, SIZE))
            except tent.TentError:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """,
    )


def test_without_cann_the_error_says_what_is_missing() -> None:
    """Memory of the host stays memory of the host then, and moves."""
    program = """
import tent

ours, theirs = bytearray(b"x" * 4096), bytearray(4096)
with tent.Engine() as engine, tent.Engine() as peer:
    for call in (lambda: engine.register(ours, location="npu:0"), lambda: engine.allocate(4096, location="npu:0")):
        try:
            call()
        except tent.DeviceNotFoundError as error:
            assert '"npu:0"' in str(error) and "no CANN runtime: /nonexistent.so" in str(error), error
        else:
            raise AssertionError("npu:0")
    with peer.register(theirs, name="page"), engine.open(peer.address) as segment, engine.register(ours) as own:
        engine.write(own, segment["page"][0:4096]).result(timeout=10)
assert theirs == ours
"""
    apart.passes(program, TENT_LIBASCENDCL="/nonexistent.so")
