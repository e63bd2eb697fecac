"""Forks at any moment, by any of several threads that move bytes.

In the child each call raises ForkError at once, although the other threads are not there, and finalizers do
nothing. The parent's transfers go on: each moves its bytes.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tent

pytestmark = pytest.mark.slow

THREADS, FORKS, SIZE, LIMIT = 4, 6, 1 << 16, 60
WAYS: dict[str, dict[str, Any]] = {"shm": {}, "tcp": {"transports/shm/enable": False}}


class Caller:
    """A thread of the parent, with memory of its own on both sides."""

    def __init__(
        self, near: tent.Engine, far: tent.Engine, peer: tent.Segment, path: Path, number: int, seed: int
    ) -> None:
        self.near, self.far, self.peer, self.path = near, far, peer, path
        self.dice = random.Random(f"{seed} {number}")
        self.here, self.there = near.allocate(SIZE), far.allocate(SIZE, name=f"of {number}")
        self.remote = peer[f"of {number}"]
        self.transfer = near.write(self.here, self.remote)
        self.wrong: BaseException | None = None
        self.texts: list[str] = []

    def moves(self) -> None:
        data = self.dice.randbytes(SIZE)
        self.here.view[:] = data
        self.transfer = self.near.write(self.here, self.remote, notify=("n", "m"))
        self.transfer.result(LIMIT)
        assert bytes(self.there.view) == data

    def awaits(self) -> None:
        async def run() -> None:
            await asyncio.gather(*(self.near.read(self.here, self.remote).result_async() for _ in range(3)))

        asyncio.run(run())

    def registers(self) -> None:
        with self.near.register(bytearray(5000)), self.near.allocate(100), self.here.share(slice(0, 100)):
            pass

    def calls_back(self) -> None:
        ended = threading.Event()
        self.near.write(self.here, self.remote).add_done_callback(lambda _: ended.set())
        assert ended.wait(LIMIT)

    def listens(self) -> None:
        self.far.notifications.drain()
        with self.near.batch() as batch:
            batch.write(self.here, self.remote)
        self.near.metrics()

    def files(self) -> None:
        with self.near.open(self.path) as file:
            assert self.near.read(self.here[:8192], file).result(LIMIT) == 8192
        assert bytes(self.here.view[:8192]) == bytes(range(256)) * 32

    def makes(self) -> None:
        with tent.Engine() as engine:
            engine.allocate(100).close()

    def forks(self) -> None:
        out, into = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are threads is the point
            pid = os.fork()
        if pid == 0:
            text = "it did not get to its end"
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                faulthandler.register(signal.SIGALRM, into, all_threads=False, chain=True)
                signal.alarm(20)  # it would hang
                text = self.child()
            except BaseException as error:
                text = repr(error)
            finally:
                os.write(into, text.encode()[:4000])
                os._exit(0)
        os.close(into)
        with os.fdopen(out) as said:
            text = said.read()
        _, status = os.waitpid(pid, 0)
        if text or status:
            self.texts.append(f"{text} ({status})")

    def calls(self) -> dict[str, Callable[[], object]]:
        near, here, transfer, notes = self.near, self.here, self.transfer, self.near.notifications
        return {
            "Engine": tent.Engine, "write": lambda: near.write(here, self.remote),
            "notify": lambda: near.notify(self.peer, "n"), "open": lambda: near.open(self.far.address),
            "register": lambda: near.register(bytearray(10)), "allocate": lambda: near.allocate(10),
            "share": lambda: here.share(slice(0, 10)), "fence": here.fence, "close": near.close,
            "region": here.close, "batch": near.batch, "metrics": near.metrics, "drain": notes.drain,
            "get": lambda: notes.get(1), "events": near.events, "done": transfer.done,
            "result": lambda: transfer.result(1), "cancel": transfer.cancel,
            "callback": lambda: transfer.add_done_callback(print), "far": self.far.close,
            "await": lambda: asyncio.run(transfer.result_async()), "export": near.export, "peers": near.peers,
            "remote": lambda: self.peer["other"], "wait": lambda: tent.wait([transfer]),
            "listen": lambda: asyncio.run(notes.get_async(1)),
        }  # fmt: skip

    def child(self) -> str:
        """The faults that a child has found."""
        wrong, calls = [], list(self.calls().items())
        self.dice.shuffle(calls)
        for name, call in calls:
            try:
                call()
                wrong.append(name)
            except tent.ForkError:
                pass
            except BaseException as error:
                wrong.append(f"{name} {error!r}")
        del calls, call
        for thing in list(vars(self)):
            repr(getattr(self, thing))
            setattr(self, thing, None)
        gc.collect()
        return ", ".join(wrong)

    def run(self) -> None:
        steps = [self.moves, self.awaits, self.registers, self.calls_back, self.listens, self.files, self.makes]
        try:
            for _ in range(FORKS):
                for _ in range(self.dice.randrange(1, 10)):
                    self.dice.choice(steps)()
                self.forks()
        except BaseException as error:
            self.wrong = error


@pytest.mark.parametrize("way", WAYS)
def test_a_fork_at_any_moment_is_refused_in_the_child_and_harms_no_parent(
    way: str, engines: Callable[..., tent.Engine], keep: Callable[[Any], Any], folder: Path, seed: int
) -> None:
    path = folder / "file"
    path.write_bytes(bytes(range(256)) * 32)
    near, far = engines(**WAYS[way]), engines(**WAYS[way])
    peer = near.open(far.address)
    callers = keep([Caller(near, far, peer, path, i, seed) for i in range(THREADS)])
    threads = [threading.Thread(target=caller.run, daemon=True) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive(), "a call of the parent does not return"
    sys.stdout.flush()
    for caller in callers:
        if caller.wrong:
            raise caller.wrong
        assert not caller.texts
        caller.moves()
