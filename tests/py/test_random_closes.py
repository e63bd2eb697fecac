"""Threads that call all of an engine while it closes: each call returns, or raises an error of tent, and each transfer
has an end."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tent

CALLS = ["begin", "waits", "cancels", "calls_back", "awaits", "batches", "grids", "registers", "allocates", "shares",
         "opens", "looks"]  # fmt: skip
ROUNDS, THREADS, SIZE, LIMIT = 25, 4, 1 << 20, 60


class Caller:
    """The calls of one thread. All use the same engine, its memory and one peer."""

    def __init__(self, engine: tent.Engine, peer: tent.Segment, memory: tent.Region, path: Path, seed: str) -> None:
        self.engine, self.peer, self.memory, self.path = engine, peer, memory, path
        self.dice = random.Random(seed)
        self.transfers: list[tent.Transfer] = []
        self.seen: Counter[str] = Counter()
        self.wrong: BaseException | None = None

    def begin(self) -> tent.Transfer:
        length = self.dice.choice([8, 4096, SIZE])
        terms: dict[str, Any] = {"notify": ("n", "m")} if self.dice.random() < 0.5 else {}
        self.transfers.append(self.engine.write(self.memory[:length], self.peer["kv"][:length], **terms))
        return self.transfers[-1]

    def waits(self) -> None:
        transfers = [self.begin() for _ in range(3)]
        tent.wait(transfers, timeout=LIMIT)
        for transfer in tent.as_completed(transfers, timeout=LIMIT):
            transfer.exception()

    def cancels(self) -> None:
        transfer = self.begin()
        transfer.cancel()
        transfer.exception(LIMIT)

    def calls_back(self) -> None:
        ended = threading.Event()
        self.begin().add_done_callback(lambda _: ended.set())
        assert ended.wait(LIMIT)

    def awaits(self) -> None:
        async def run() -> None:
            await asyncio.gather(*(self.begin() for _ in range(3)), return_exceptions=True)
            asyncio.create_task(self.begin().result_async())  # noqa: RUF006  # its loop ends before it
            await asyncio.sleep(0)

        asyncio.run(run())

    def batches(self) -> None:
        with self.engine.batch() as batch:
            batch.write(self.memory[:10], self.peer["kv"][:10])
            batch.read(self.memory[20:30], self.peer["kv"][:10])
            self.transfers.append(batch.submit())

    def grids(self) -> None:
        near, far = self.engine.pages(self.memory, 4096), self.peer.pages(self.peer["kv"], 4096)
        self.transfers.append(self.engine.write_pages(near, [0, 1], far, [2, 3]))

    def registers(self) -> None:
        with self.engine.register(bytearray(5000), name=f"{self.dice.random()}"):
            pass

    def allocates(self) -> None:
        with self.engine.allocate(70_000) as region:
            region.view[:1] = b"1"

    def shares(self) -> None:
        with self.memory.share(slice(0, 4096)) as lease:
            lease.renew(5)

    def opens(self) -> None:
        with self.engine.open(self.path) as file:
            self.transfers.append(self.engine.read(self.memory[:4096], file[:4096]))
        self.engine.open(self.peer.address, timeout=LIMIT).close()

    def looks(self) -> None:
        self.engine.metrics()
        self.engine.explain(self.memory, self.peer["kv"])
        self.engine.notifications.drain()
        self.engine.export()
        self.memory.fence(timeout=LIMIT)

    def run(self, calls: list[str]) -> None:
        """Makes calls by chance until the engine is closed."""
        try:
            while self.seen["closed"] < 3:
                try:
                    getattr(self, self.dice.choice(calls))()
                    self.seen["returned"] += 1
                except tent.EngineClosedError:
                    self.seen["closed"] += 1
                except tent.TentError:
                    self.seen["closed" if self.engine.closed else "refused"] += 1
        except BaseException as error:
            self.wrong = error


@pytest.fixture
def peers_of_this_process() -> Iterator[list[tent.Engine]]:
    """Two peers, of which one speaks TCP alone."""
    with tent.Engine() as one, tent.Engine({"transports/shm/enable": False}) as two:
        with one.allocate(SIZE, name="kv"), two.allocate(SIZE, name="kv"):
            yield [one, two]


@pytest.mark.filterwarnings("ignore:.*dropped without close:ResourceWarning")
def test_every_call_beside_a_close_returns_or_says_so(
    peers_of_this_process: list[tent.Engine], tmp_path: Path, seed: int, keep: Callable[[Any], Any]
) -> None:
    dice, path = random.Random(seed), tmp_path / "file"
    path.write_bytes(bytes(4096))
    for i in range(ROUNDS):
        engine = tent.Engine()
        peer = engine.open(dice.choice(peers_of_this_process).address)
        memory = keep(engine.allocate(SIZE, name="memory"))
        callers = [Caller(engine, peer, memory, path, f"{seed} {i} {j}") for j in range(THREADS)]
        calls = dice.sample(CALLS, 2)  # few, so that they meet the close
        threads = [threading.Thread(target=caller.run, args=(calls,), daemon=True) for caller in callers]
        for thread in threads:
            thread.start()
        while sum(caller.seen.total() for caller in callers) < 30:
            assert any(thread.is_alive() for thread in threads), [caller.wrong for caller in callers]
        engine.close(timeout=dice.choice([0, 0.01, 3]))
        for thread in threads:
            thread.join(LIMIT)
            assert not thread.is_alive(), "a call beside a close does not return"
        for caller in callers:
            if caller.wrong:
                raise caller.wrong
            for transfer in caller.transfers:
                assert transfer.done() and not transfer.cancel(), transfer
                error = transfer.exception(0)
                assert error is None or error.state == transfer.state != tent.TransferStatusEnum.COMPLETED
