"""Random programs of tasks in the event loops of several threads.

Tasks that await a transfer are cancelled, run out of time, fail beside others of their group, or are left behind by a
loop that closes. A cancelled await ends behind its transfer, and a time-out of result_async() leaves it alone. Each
callback runs once, although others raise. Each notification reaches one reader.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tent
from tent.testing import inject

THREADS, ROUNDS, TASKS, SIZE, LIMIT = 3, 6, 12, 1 << 16, 60


class Caller:
    """One thread: loop behind loop, each with tasks over a part of the memory of its own."""

    def __init__(self, engine: tent.Engine, there: Any, here: tent.Region, number: int, seed: str) -> None:
        self.engine, self.number = engine, number
        self.dice = random.Random(seed)
        self.here, self.there, self.first = here, there, number * TASKS
        self.called: Counter[int] = Counter()
        self.wanted: list[int] = []
        self.transfers: list[tuple[tent.Transfer, int]] = []
        self.got: list[str] = []
        self.seen: Counter[str] = Counter()
        self.wrong: BaseException | None = None

    def begin(self, at: int) -> tent.Transfer:
        n = self.dice.choice([1, 4096, SIZE])
        move = self.engine.write if self.dice.random() < 0.5 else self.engine.read
        begin = (self.first + at) * SIZE
        transfer = move(self.here[begin : begin + n], self.there[begin : begin + n])
        self.transfers.append((transfer, n))
        if self.dice.random() < 0.3:
            number, fails = len(self.wanted), self.dice.random() < 0.5
            self.wanted.append(number)

            def call(ended: tent.Transfer) -> None:
                assert ended is transfer and ended.done()
                self.called[number] += 1
                if fails:
                    raise ZeroDivisionError

            transfer.add_done_callback(call)
        return transfer

    async def task(self, at: int) -> None:
        for _ in range(self.dice.randrange(1, 4)):
            await getattr(self, self.dice.choice(["plain", "cancels", "late", "group", "gather", "listens"]))(at)

    async def plain(self, at: int) -> None:
        transfer, n = self.begin(at), self.transfers[-1][1]
        assert await transfer == n

    async def cancels(self, at: int) -> None:
        """A task that awaits is cancelled, more than once."""
        transfer = self.begin(at)
        task = asyncio.ensure_future(self.waits(transfer))
        for _ in range(self.dice.randrange(3)):
            await asyncio.sleep(0)
        for _ in range(self.dice.randrange(1, 4)):
            task.cancel()
            if self.dice.random() < 0.5:
                await asyncio.sleep(0)
        try:
            await task
            self.seen["first"] += 1
        except asyncio.CancelledError:
            self.seen["cancelled"] += 1
            if not transfer.done():
                transfer.cancel()  # the task had not begun to await
                transfer.exception(LIMIT)

    async def waits(self, transfer: tent.Transfer) -> None:
        try:
            await transfer
        except GeneratorExit:  # nobody ends it: its loop has closed
            raise
        except BaseException:
            assert transfer.done(), "an await ends before its transfer"
            raise

    async def late(self, at: int) -> None:
        transfer = self.begin(at)
        try:
            await transfer.result_async(self.dice.choice([0, 0.0005, 0.005]))
        except TimeoutError:
            self.seen["late"] += 1
            await transfer

    async def group(self, at: int) -> None:
        """A task fails, and with it the group."""
        transfer = self.begin(at)

        async def fails() -> None:
            await asyncio.sleep(0)
            raise ZeroDivisionError

        tasks = [asyncio.ensure_future(self.waits(transfer)), asyncio.ensure_future(fails())]
        try:
            await asyncio.gather(*tasks)
        except ZeroDivisionError:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not transfer.done():
            await asyncio.gather(transfer.result_async(), return_exceptions=True)

    async def gather(self, at: int) -> None:
        transfer = self.begin(at)
        n = self.transfers[-1][1]
        given = await asyncio.gather(transfer.result_async(), transfer.result_async(LIMIT), self.waits(transfer))
        assert given == [n, n, None]

    async def listens(self, at: int) -> None:
        """Takes a notification, if one comes in time, and is cancelled perhaps."""

        async def hears() -> None:
            note = await self.engine.notifications.get_async(self.dice.choice([0, 0.001, 0.01, None]))
            self.got.append(note.message)

        task = asyncio.ensure_future(asyncio.wait_for(hears(), 0.02))
        if self.dice.random() < 0.5:
            await asyncio.sleep(self.dice.choice([0, 0.0005]))
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            if not task.done():  # this one is cancelled
                raise
        except (asyncio.TimeoutError, TimeoutError):
            pass

    def round(self) -> None:
        loop = asyncio.new_event_loop()
        tasks = [loop.create_task(self.task(at)) for at in range(TASKS)]
        try:
            if self.dice.random() < 0.4:  # it closes early
                loop.run_until_complete(asyncio.wait(tasks, timeout=self.dice.choice([0, 0.002])))
                for task in tasks:
                    task.cancel()
                self.seen["early"] += 1
            ends = loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            for end in ends:
                if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
                    raise end
        finally:
            loop.close()

    def run(self) -> None:
        try:
            for _ in range(ROUNDS):
                self.round()
        except BaseException as error:
            self.wrong = error


@pytest.fixture
def quiet() -> Iterator[None]:
    """Callbacks that raise are a part of the programs: tent logs each."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")  # of a task that its loop has not begun
def test_every_await_ends_behind_its_transfer(
    engines: Callable[..., tent.Engine], keep: Callable[[Any], Any], seed: int, quiet: None
) -> None:
    near, far = (engines(allow_faults=True, **{"transports/shm/enable": bool(seed % 2)}) for _ in range(2))
    here = keep(near.allocate(THREADS * TASKS * SIZE))
    keep(far.allocate(THREADS * TASKS * SIZE, name="there"))
    there, back = near.open(far.address)["there"], far.open(near.address)
    inject(near, "slow=300MiB")
    callers = [Caller(near, there, here, i, f"{seed} {i}") for i in range(THREADS)]
    threads = [threading.Thread(target=caller.run, daemon=True) for caller in callers]
    for thread in threads:
        thread.start()
    sent = []
    while any(thread.is_alive() for thread in threads) and len(sent) < 2000:
        far.notify(back, "n", str(len(sent))).result(LIMIT)
        sent.append(str(len(sent)))
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive(), "an await does not end"
    for caller in callers:
        if caller.wrong:
            raise caller.wrong
        for transfer, n in caller.transfers:
            error = transfer.exception(LIMIT)
            assert transfer.cancelled() or (error is None and transfer.result() == n), repr(error)
    hub = near._hub
    gc.collect()  # awaits of loops that have closed
    got = sum((caller.got for caller in callers), []) + [note.message for note in near.notifications.drain()]
    assert sorted(got, key=int) == sent, "a notification was lost, or taken twice"
    assert hub._awaits == 0
    near.close()
    for caller in callers:
        assert caller.called == Counter(caller.wanted), "a callback ran twice, or not at all"
    assert not any(task for task in hub._watchers.values())
