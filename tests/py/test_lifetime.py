"""Beginnings and ends: import, fork, Ctrl-C, the interpreter's exit, leaks, idleness, things dropped unclosed."""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import apart
import pytest
from conftest import Pair

import tent
import tent.testing
from tent import _native, loop
from tent.testing import PeerProcess

pytestmark = pytest.mark.clock  # limits of time, and an idle process


run = partial(apart.run, flags=("-W", "error"))  # warnings are errors


def begun(program: str, *arguments: str) -> subprocess.Popen[str]:
    """A program in a process of its own, with pipes to it."""
    command, pipe = [sys.executable, "-c", textwrap.dedent(program), *arguments], subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.interpreter
def test_import_is_light_and_starts_nothing() -> None:
    program = """
        import sys, threading, time
        before = set(sys.modules)
        began = time.perf_counter()
        import tent
        took = time.perf_counter() - began
        new = set(sys.modules) - before
        heavy = {"numpy", "torch", "asyncio", "ctypes", "json", "logging", "threading", "tent._gotent", "tent.engine"}
        heavy &= new
        assert not heavy, heavy
        assert threading.active_count() == 1
        print(took)
        tent.Engine, tent.Request, tent.PRIO_LOW
        assert "tent._gotent" not in sys.modules and "asyncio" not in sys.modules and "numpy" not in sys.modules
    """
    took = []
    for _ in range(5):
        done = run(program)
        assert done.returncode == 0, done.stderr
        took.append(float(done.stdout))
    assert min(took) < 0.01, took


@pytest.mark.interpreter
def test_every_public_name_is_there() -> None:
    for package in (tent, tent.testing):
        names: dict[str, Any] = {}
        exec(f"from {package.__name__} import *", names)
        assert set(package.__all__) <= set(names)
        assert set(package.__all__) <= set(dir(package))
    assert "NotImplementedError" not in tent.__all__, "it would shadow the builtin"
    assert issubclass(tent.NotImplementedError, NotImplementedError)
    with pytest.raises(AttributeError):
        tent.nothing  # type: ignore[attr-defined]  # noqa: B018
    assert tent.__version__.count(".") >= 1


@pytest.mark.interpreter
def test_the_interpreter_ends_with_transfers_under_way(peers: Callable[..., PeerProcess]) -> None:
    peer = peers(size=64 << 20)
    program = """
        import sys, time, tent
        engine = tent.Engine()
        local = engine.allocate(64 << 20)
        peer = engine.open(sys.argv[1])
        engine.write(local[0:1], peer["kv"][0:1]).result(10)
        print("ready", flush=True)
        sys.stdin.readline()
        transfers = [engine.write(local, peer["kv"]) for _ in range(8)]
        transfers[1].add_done_callback(print)
        del transfers[0]
        print(time.monotonic(), flush=True)
    """
    with begun(program, peer.address) as process:
        assert process.stdin and process.stdout and process.stderr
        assert process.stdout.readline() == "ready\n"
        peer.stop()  # nothing can end by itself
        import time

        out, err = process.communicate("\n", timeout=30)
        took = time.monotonic() - float(out.split()[0])
        assert process.returncode == 0, err
        assert "Traceback" not in err and "Exception ignored" not in err, err
        assert took < 5, took


@pytest.mark.interpreter
def test_ctrl_c_ends_every_wait(peers: Callable[..., PeerProcess]) -> None:
    peer = peers(size=64 << 20)
    program = """
        import os, signal, sys, threading, time, tent

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would we

        def interrupt():
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        def interrupted(call):
            try:
                threading.Timer(0.1, interrupt).start()
                call()
            except KeyboardInterrupt:
                took = time.monotonic() - sent.pop()
                assert took < 20, took
                return
            raise AssertionError("no KeyboardInterrupt")

        sent = []
        engine = tent.Engine()
        local = engine.allocate(64 << 20)
        peer = engine.open(sys.argv[1])
        engine.write(local[0:1], peer["kv"][0:1]).result(10)
        print("ready", flush=True)
        sys.stdin.readline()
        going = engine.write(local, peer["kv"])
        interrupted(going.result)
        interrupted(lambda: going.wait(30))
        interrupted(lambda: tent.wait([going]))
        interrupted(lambda: list(tent.as_completed([going])))
        interrupted(engine.notifications.get)
        interrupted(lambda: engine.open("127.0.0.1:1", wait=True, timeout=30))
        interrupted(lambda: engine.close())
        assert engine.closed and going.state == tent.TransferStatusEnum.CANCELED
        print("fine")
    """
    with begun(program, peer.address) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        peer.stop()
        out, err = process.communicate("\n", timeout=100)
        assert out == "fine\n", err


@pytest.mark.interpreter
def test_a_signal_that_ends_no_wait_is_handled_during_a_long_call() -> None:
    """A signal that comes just before the main thread begins to wait, or on another thread, does not end that wait."""
    caught, ended = threading.Event(), threading.Event()

    def waiting() -> bool:
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        steps = [step.name for step in traceback.extract_stack(frame)]
        inside = steps[steps.index("call_long") :]
        return "start" not in inside and ("wait" in inside or "join" in inside)

    def call() -> None:
        while not waiting():
            pass
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        if not caught.wait(timeout=20):
            ended.set()

    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            _native.call_long(call)
        caught.set()
    finally:
        signal.signal(signal.SIGINT, old)
    assert not ended.is_set()


@pytest.mark.interpreter
def test_a_forked_child_gets_an_error_never_a_hang(pair: Callable[..., Pair]) -> None:
    both = pair(1 << 20)
    transfer = both.near.write(both.local, both.remote)
    transfer.result(10)
    both.theirs.expect(0, both.mine.expected)
    calls: list[Callable[[], object]] = [
        lambda: tent.Engine(),
        lambda: both.near.write(both.local, both.remote),
        lambda: both.near.register(bytearray(8)),
        lambda: both.near.metrics(),
        lambda: both.near.close(),
        lambda: both.near.notifications.get(1),
        lambda: both.near.batch(),
        lambda: both.local.close(),
        lambda: both.local.fence(),
        lambda: both.local.view,
        lambda: both.peer.alive(),
        lambda: both.peer["other"],
        lambda: transfer.done(),
        lambda: transfer.result(1),
        lambda: transfer.state,
        lambda: transfer.bytes,
        lambda: tent.wait([transfer]),
        lambda: transfer.add_done_callback(print),
        lambda: transfer.remove_done_callback(print),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: fork of a process with threads
        pid = os.fork()
    if pid == 0:  # the child: nothing but os._exit may leave this block
        wrong = len(calls)
        try:
            for call in calls:
                try:
                    call()
                except tent.ForkError as error:
                    wrong -= "spawn" in str(error)
            repr(both.near), repr(transfer), repr(both.local)
            del transfer
            gc.collect()
        finally:
            os._exit(wrong)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    both.near.read(both.local, both.remote).result(10)  # the parent is as before
    both.check()


@pytest.mark.interpreter
def test_a_child_that_exits_normally_is_silent() -> None:
    done = run("""
        import os, sys, warnings, tent
        warnings.simplefilter("ignore")
        engine = tent.Engine()
        region = engine.allocate(4096, name="own")
        transfer = engine.write(region[0:8], region[8:16])
        transfer.result(10)
        pid = os.fork()
        if pid == 0:
            sys.exit(7)  # runs atexit and finalizers
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        region.close()
        engine.close()
    """)
    assert (done.returncode, done.stderr) == (0, "")


def _in_pool(_: int) -> bool:
    with tent.Engine() as engine, engine.allocate(64, name="own") as region:
        return engine.write(region[0:8], region[8:16]).result(10) == 8


@pytest.mark.interpreter
def test_an_end_that_clears_modules_before_objects_is_silent() -> None:
    """The interpreter clears modules that somebody holds, the latest import first. Objects of the program's own module
    are collected last, when the names of tent's modules are None. vLLM's processes end so."""
    program = """
        import ctypes, importlib.util, sys
        import tent

        engine, other = tent.Engine(), tent.Engine()
        ours, theirs = bytearray(4096), bytearray(4096)
        region, offered = engine.register(ours, name="ours"), other.register(theirs, name="theirs")
        peer = engine.open(other.address)
        moved, moving = engine.write(region, peer["theirs"]), engine.write(region, peer["theirs"])
        assert moved.result(10) == 4096
        grid, batch, memory = engine.pages([region], 1024), engine.batch(), engine.allocate(4096)
        events = engine.events()
        if importlib.util.find_spec("numpy"):
            from tent.compat.nixl import nixl_agent

            agent = nixl_agent("one")
            descs = agent.register_memory([(ctypes.addressof(ctypes.c_char.from_buffer(ours)), 4096, 0, "")], "DRAM")
            agent.add_remote_agent(agent.get_agent_metadata())
            handle = agent.initialize_xfer("WRITE", descs.trim(), descs.trim(), "one")
            agent.transfer(handle)
        held = list(sys.modules.values())
        for module in held:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
    """
    done = apart.run(program)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.interpreter
def test_importing_then_forking_works_and_spawn_always_does() -> None:
    done = run("""
        import multiprocessing, tent
        def work(_):
            with tent.Engine() as engine, engine.allocate(64, name="own") as region:
                return engine.write(region[0:8], region[8:16]).result(10)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(work, range(4)) == [8] * 4
            pool.close()
            pool.join()
    """)
    assert done.returncode == 0, done.stderr
    tent.Engine().close()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(_in_pool, [0]) == [True]
        pool.close()
        pool.join()


@pytest.mark.interpreter
def test_things_dropped_unclosed_are_reported_and_end_later(pair: Callable[..., Pair]) -> None:
    both = pair(4096)
    region = both.far.register(bytearray(64), name="dropped")
    with pytest.warns(ResourceWarning, match="dropped without close"):
        del region
        gc.collect()
    both.near.write(both.local[0:64], both.peer["dropped"]).result(10)  # peers reach it until its engine closes
    engine = tent.Engine(name="lost")
    with pytest.warns(ResourceWarning, match="'lost'"):
        del engine
        gc.collect()


class Owner:
    """An object of a program that refers to itself, as one does with a bound method in a callback."""

    def __init__(self) -> None:
        self.own = self
        self.engine = tent.Engine()
        self.region = self.engine.allocate(4096)


@pytest.mark.interpreter
@pytest.mark.filterwarnings("ignore:.*dropped without close:ResourceWarning")
def test_the_memory_of_a_cycle_goes_with_its_engine(engine: tent.Engine, caplog: pytest.LogCaptureFixture) -> None:
    """The collector finalizes the members of a cycle in any order, the memory perhaps before its engine."""

    def mapped() -> bool:
        with open("/proc/self/maps") as maps:
            return any(line.startswith(place) and "memfd:tent" in line for line in maps)

    owner = Owner()
    place, tail = f"{owner.region.address:x}-", owner.engine._tail
    assert mapped()
    del owner
    gc.collect()
    closed = threading.Event()
    loop.run_soon(closed.set)  # behind the close, on the thread that the other engine keeps
    assert closed.wait(30)
    assert not mapped() and tail._memories == 0 and not caplog.records


def test_the_transfer_of_a_batch_keeps_the_operands_until_it_goes() -> None:
    with tent.testing.Pair(rate=None) as both:
        both.peer.region("kv", 4096, seed=1)
        both.segment.refresh()
        region = both.engine.allocate(4096)
        both.faults.blackhole()
        with both.engine.batch() as batch:
            batch.write(region, both.segment["kv"])
            transfer = batch.submit()
        del batch
        with warnings.catch_warnings():
            warnings.simplefilter("error", ResourceWarning)
            del region
            gc.collect()
        assert not transfer.done()
    gc.collect()  # the engine has closed the region; nobody is warned
    with pytest.raises(tent.TransferError):
        transfer.result(0)


def census() -> dict[str, int]:
    """Counts the things that must not gather in a process."""
    gc.collect()
    with open("/proc/self/maps") as maps:
        mappings = sum(1 for _ in maps)
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * resource.getpagesize()
    tasks = len(os.listdir("/proc/self/task"))
    return {"fds": len(os.listdir("/proc/self/fd")), "threads": tasks, "mappings": mappings, "resident": resident}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_thousand_cycles_leave_nothing_behind(pair: Callable[..., Pair]) -> None:
    both = pair(1 << 16)

    def cycle() -> None:
        with tent.Engine() as engine, engine.allocate(1 << 16, name="a") as region:
            with engine.open(both.far.address) as peer, engine.batch() as batch:
                batch.write(region[0:100], peer["kv"][0:100])
                batch.write(region[200:300], peer["kv"][200:300])
                batch.submit().result(10)

    both.theirs.expect(0, bytes(100))
    both.theirs.expect(200, bytes(100))
    for _ in range(30):
        cycle()
    before = census()
    for _ in range(1000 if os.environ.get("TENT_CHURN") else 100):  # make test-all sets it
        cycle()
    after = census()
    assert after["fds"] <= before["fds"] + 4, (before, after)
    assert after["threads"] <= before["threads"] + 8, (before, after)
    assert after["mappings"] <= before["mappings"] + 40, (before, after)
    assert after["resident"] <= before["resident"] + (24 << 20), (before, after)
    both.check()


@pytest.mark.interpreter
def test_transfers_regions_and_segments_do_not_gather(pair: Callable[..., Pair]) -> None:
    both = pair(1 << 16)
    both.theirs.expect(0, both.mine.expected)

    def cycle() -> None:
        with both.near.open(both.far.address) as peer, both.near.register(bytearray(4096)) as region:
            both.near.write(region[0:64], peer["kv"][0:64])  # dropped at once
            both.near.write(both.local, peer["kv"]).result(10)
            both.near.write_pages(both.local, [1], peer["kv"], [1], page_bytes=64).result(10)

    for _ in range(30):
        cycle()
    before = census()
    for _ in range(300):
        cycle()
    after = census()
    assert after["fds"] <= before["fds"] + 2 and after["threads"] <= before["threads"] + 4, (before, after)
    assert after["mappings"] <= before["mappings"] + 20, (before, after)
    assert len(both.near._live) == 0 and len(both.near._memories) == 1
    both.near.write(both.local, both.remote).result(10)


def test_an_idle_engine_uses_no_cpu(pair: Callable[..., Pair]) -> None:
    both = pair(4096)
    both.near.write(both.local, both.remote).result(10)
    both.theirs.expect(0, both.mine.expected)
    began = resource.getrusage(resource.RUSAGE_SELF)
    with pytest.raises(TimeoutError):
        both.near.notifications.get(timeout=1)  # a wait, and nothing happens
    ended = resource.getrusage(resource.RUSAGE_SELF)
    used = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
    assert used < 0.05, used


@pytest.mark.interpreter
def test_the_thread_lives_as_long_as_the_engines() -> None:
    def running() -> bool:
        return any(thread.name == "tent" for thread in threading.enumerate())

    assert not running()
    first, second = tent.Engine(), tent.Engine()
    assert running()
    first.close()
    assert running()
    second.close()
    assert not running()


def test_logs_reach_logging_and_no_handler_is_installed(peers: Callable[..., PeerProcess], caplog: Any) -> None:
    import logging

    assert logging.getLogger("tent").handlers == []
    peer = peers()
    with tent.Engine() as engine, engine.allocate(1 << 20) as local:
        segment = engine.open(peer.address)
        engine.write(local, segment["kv"]).result(10)
        peer.kill()
        with pytest.raises(tent.TentError, match=peer.address):
            engine.write(local, segment["kv"]).result(10)
        assert engine.events().wait_for("peer_gone", timeout=10).peer == peer.address
    assert any(record.name == "tent" and peer.address in record.getMessage() for record in caplog.records)


@pytest.mark.interpreter
def test_a_signal_handler_of_the_program_stays(engines: Callable[..., tent.Engine]) -> None:
    old = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        mine = signal.getsignal(signal.SIGTERM)
        engines()
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, old)


def test_no_byte_of_another_file_is_read_beside_a_close() -> None:
    """The engine's descriptor may be closed, and its number be another file's, when tent's thread hears of an end."""
    ours, theirs = os.pipe()
    try:
        os.write(theirs, b"xy")
        with tent.Engine() as engine:
            hub = engine._hub
            number, hub.fd = hub.fd, ours
            hub.dispatch()
            hub.fd = number
        assert os.read(ours, 8) == b"xy"
    finally:
        os.close(ours)
        os.close(theirs)
