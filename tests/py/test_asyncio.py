"""Awaiting: any number of times and loops, cancellation, async context managers; no thread and no polling."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable

import pytest
from conftest import Pair

import tent
from tent.testing import PeerProcess

pytestmark = pytest.mark.interpreter


def test_await_gives_the_bytes_any_number_of_times(pair: Callable[..., Pair]) -> None:
    both = pair(8 << 20)

    async def run() -> None:
        transfer = both.near.write(both.local, both.remote)
        assert await transfer == 8 << 20
        assert await transfer == 8 << 20
        assert await asyncio.gather(*(one(transfer) for _ in range(5))) == [8 << 20] * 5

    async def one(transfer: tent.Transfer) -> int:
        return await transfer

    asyncio.run(run())
    both.theirs.expect(0, both.mine.expected)
    both.check()
    again = both.near.read(both.local, both.remote)
    assert asyncio.run(one(again)) == asyncio.run(one(again)) == 8 << 20  # another loop each
    both.mine.expect(0, both.theirs.expected)


def test_many_awaits_at_once_need_no_threads(pair: Callable[..., Pair]) -> None:
    both = pair(1 << 20)
    before = threading.active_count()

    async def one(i: int) -> int:
        at = i * 4096
        return await both.near.write(both.local[at : at + 4096], both.remote[at : at + 4096])

    async def run() -> None:
        assert await asyncio.gather(*(one(i) for i in range(256))) == [4096] * 256
        assert threading.active_count() == before

    asyncio.run(run())
    both.theirs.expect(0, both.mine.expected)
    both.check()


def test_loops_in_several_threads(pair: Callable[..., Pair]) -> None:
    both = pair(1 << 20)
    results: list[list[int]] = []

    async def one(i: int) -> int:
        return await both.near.write(both.local[i : i + 100], both.remote[i : i + 100])

    async def run(first: int) -> list[int]:
        return [await one(first + 100 * i) for i in range(50)]

    threads = [threading.Thread(target=lambda f=f: results.append(asyncio.run(run(f)))) for f in (0, 10_000, 20_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[100] * 50] * 3
    for first in (0, 10_000, 20_000):
        both.theirs.expect(first, both.mine.expected[first : first + 5000])


def test_callbacks_and_awaits_share_a_transfer(pair: Callable[..., Pair]) -> None:
    both = pair(4 << 20)
    called = threading.Event()

    async def run() -> None:
        transfer = both.near.write(both.local, both.remote)
        transfer.add_done_callback(lambda t: called.set() if t.done() else None)
        await transfer

    asyncio.run(run())
    assert called.wait(10)
    both.theirs.expect(0, both.mine.expected)


def test_cancelling_an_await_cancels_the_transfer_and_comes_after_its_end(peers: Callable[..., PeerProcess]) -> None:
    peer = peers(size=1 << 20)

    async def run() -> None:
        async with tent.Engine() as engine:
            async with engine.allocate(1 << 20) as local:
                async with await engine.open_async(peer.address) as segment:
                    await engine.write(local, segment["kv"])
                    peer.stop()
                    transfer = engine.write(local, segment["kv"])
                    task = asyncio.ensure_future(wait(transfer))
                    await asyncio.sleep(0)
                    assert not transfer.done()
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    assert transfer.done()
                    assert transfer.state == tent.TransferStatusEnum.CANCELED
                    peer.resume()

    async def wait(transfer: tent.Transfer) -> int:
        return await transfer

    asyncio.run(run())


def test_a_failed_await_raises_the_error(peers: Callable[..., PeerProcess]) -> None:
    peer = peers(size=1 << 20)

    async def run() -> None:
        async with tent.Engine() as engine:
            async with engine.allocate(1 << 20) as local, await engine.open_async(peer.address) as segment:
                remote = segment["kv"]
                peer.stop()
                transfer = engine.write(local, remote)
                peer.kill()
                with pytest.raises(tent.TransferError) as caught:
                    await transfer
                assert caught.value.peer == peer.address

    asyncio.run(run())


def test_notifications_in_a_loop_end_with_the_engine(pair: Callable[..., Pair]) -> None:
    both = pair(4096)

    async def collect() -> list[str]:
        return [note.message async for note in both.far.notifications]

    async def run() -> list[str]:
        task = asyncio.ensure_future(collect())
        for i in range(20):
            await both.near.notify(both.peer, "n", str(i))
        while True:  # until the last one has been taken: the order of the loop's callbacks is not ours
            await asyncio.sleep(0)
            if not both.far.notifications.drain(1):
                break
        await both.far.aclose()
        return await asyncio.wait_for(task, 10)

    got = asyncio.run(run())
    assert got == sorted(got, key=int)
    assert len(got) <= 20


def test_get_async_without_time_takes_one_that_has_come(pair: Callable[..., Pair]) -> None:
    both = pair(4096)
    back = both.far.open(both.near.address)
    for name in ("first", "second"):
        both.far.notify(back, name).result(10)
    assert both.near.notifications.get(0).name == "first"
    assert asyncio.run(both.near.notifications.get_async(0)).name == "second"
    with pytest.raises(TimeoutError):
        asyncio.run(both.near.notifications.get_async(0))


def test_get_async_runs_out_of_time(pair: Callable[..., Pair]) -> None:
    both = pair(4096)
    with pytest.raises(TimeoutError):
        asyncio.run(both.near.notifications.get_async(timeout=0.05))


@pytest.mark.filterwarnings("error")
def test_a_wrong_time_is_the_only_complaint(peers: Callable[..., PeerProcess]) -> None:
    """No coroutine is left behind that nobody has awaited."""
    peer = peers(size=1 << 20)

    async def run() -> None:
        async with tent.Engine() as engine, await engine.open_async(peer.address) as segment:
            local = engine.allocate(1 << 20)
            peer.stop()
            for call in (engine.write(local, segment["kv"]).result_async, engine.notifications.get_async):
                with pytest.raises(tent.InvalidArgumentError, match="timeout is 'soon'"):
                    await call(timeout="soon")
            await engine.aclose(0)
            peer.resume()

    asyncio.run(run())


def test_an_await_that_gave_up_leaves_tents_thread_listening(peers: Callable[..., PeerProcess]) -> None:
    """While an await is open its loop listens; a loop that has gone hands over neither logs nor ends."""
    peer = peers(size=1 << 20)
    with tent.Engine() as engine, engine.open(peer.address) as segment:
        local = engine.allocate(1 << 20)
        peer.stop()
        transfer = engine.write(local, segment["kv"])
        for _ in range(3):
            with pytest.raises(TimeoutError):
                asyncio.run(transfer.result_async(timeout=0.01))
        hub = engine._hub
        assert (hub._watchers.get(transfer._batch) or [], hub._awaits, hub._listening) == ([], 0, True)
        transfer.cancel()
        ended = threading.Event()
        transfer.add_done_callback(lambda _: ended.set())
        assert ended.wait(20)
        peer.resume()


def test_fence_async(pair: Callable[..., Pair]) -> None:
    both = pair(4096)
    asyncio.run(both.offered.fence_async())
    both.near.write(both.local, both.remote).result(10)
    both.theirs.expect(0, both.mine.expected)


def test_event_loops_leave_no_descriptors(pair: Callable[..., Pair]) -> None:
    both = pair(4096)

    async def one() -> None:
        await both.near.write(both.local, both.remote)

    both.theirs.expect(0, both.mine.expected)
    asyncio.run(one())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        asyncio.run(one())
    assert len(os.listdir("/proc/self/fd")) < before + 25  # a leak is one a loop; a rail may come up meanwhile
