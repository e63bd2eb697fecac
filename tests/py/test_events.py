"""engine.events(): everybody sees everything, in order, from threads and event loops, and nobody is waited for."""

from __future__ import annotations

import asyncio
import re
import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import tent

Open = Callable[..., tent.Engine]


@pytest.fixture
def connected(engines: Open, keep: Any) -> tuple[tent.Engine, tent.Engine]:
    """Two engines, the first of which has written to the second: its rail is up."""
    over_tcp = {"transports/shm/enable": False}
    near, far = engines(**over_tcp), engines(**over_tcp)
    keep(far.register(bytearray(4096), name="kv"))
    local = keep(near.allocate(4096))
    near.write(local, keep(near.open(far.address))["kv"]).result(10)
    return near, far


def test_events_have_their_place(connected: tuple[tent.Engine, tent.Engine]) -> None:
    near, far = connected
    with near.events() as events:
        up = events.wait_for("rail_up", timeout=10)
        assert (up.peer, up.transport) == (far.address, "tcp")
        assert up.local == "127.0.0.1" and up.remote.startswith("127.0.0.1:")
        assert up.rail == f"{up.local} -> {up.remote}"
        assert up.error == "" and up.time > 0
        assert "rail_up" in str(up)
        far.close()
        gone = events.wait_for(lambda event: event.kind == "peer_gone", timeout=10)
        assert gone.peer == far.address and gone.code and far.address in gone.error
        assert gone.time >= up.time
        assert events.lost == 0


def test_a_kind_that_there_is_not_is_no_wait(engine: tent.Engine) -> None:
    with engine.events() as events:
        kept = len(engine.events().drain())
        for wanted, words in (("rail_dwon", "did you mean 'rail_down'"), ("zzz", "known: rail_up, "), (5, "kind 5")):
            with pytest.raises(tent.InvalidArgumentError, match=words):
                events.wait_for(wanted)  # type: ignore[arg-type]  # without a time-out
        assert len(events.drain()) == kept  # none was taken


def test_each_reader_sees_all_events(connected: tuple[tent.Engine, tent.Engine]) -> None:
    near, far = connected
    first, second = near.events(), near.events()
    far.close()
    for events in (first, second):
        events.wait_for("peer_gone", timeout=10)
    assert near.events().drain() == near.events().drain() != []


def test_drain_get_and_fileno_agree(connected: tuple[tent.Engine, tent.Engine]) -> None:
    near, far = connected
    events = near.events()
    assert events.drain(1)[0].kind
    events.drain()
    assert events.drain() == []
    with pytest.raises(TimeoutError, match=r"no event came within 0\.01 s"):
        events.get(timeout=0.01)
    assert not select.select([events], [], [], 0)[0]
    far.close()
    assert select.select([events], [], [], 10)[0], "an event makes the descriptor readable"
    assert events.get(timeout=10)


def test_iteration_ends_with_the_engine(connected: tuple[tent.Engine, tent.Engine]) -> None:
    near, _ = connected
    events = near.events()
    seen: list[tent.Event] = []
    reader = threading.Thread(target=lambda: seen.extend(events))
    reader.start()
    near.close()
    reader.join(10)
    assert not reader.is_alive()
    assert events.closed
    with pytest.raises(tent.EngineClosedError):
        near.events()


@pytest.mark.interpreter
def test_async_iteration(connected: tuple[tent.Engine, tent.Engine]) -> None:
    near, far = connected

    async def follow() -> list[str]:
        kinds = []
        async for event in near.events():
            kinds.append(event.kind)
            if event.kind == "rail_up":
                await asyncio.get_running_loop().run_in_executor(None, far.close)
            if event.kind == "peer_gone":
                break
        with pytest.raises(TimeoutError):
            while True:
                await near_events.get_async(timeout=0.01)
        return kinds

    near_events = near.events()
    kinds = asyncio.run(asyncio.wait_for(follow(), 20))
    assert kinds[-1] == "peer_gone"


def test_closed_readers_say_so_and_leave_no_descriptor(connected: tuple[tent.Engine, tent.Engine]) -> None:
    import os

    near, _ = connected
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):  # more than there may be at once
        events = near.events()
        events.close()
        events.close()
    near.events()  # dropped, not closed
    assert len(os.listdir("/proc/self/fd")) == before
    for use in (events.drain, events.get, events.fileno):
        with pytest.raises(tent.EngineClosedError, match="closed"):
            use()
    with pytest.raises(tent.TooManyRequestsError):
        [near.events() for _ in range(100)]


@pytest.mark.interpreter
@pytest.mark.parametrize("call", ["pybind_EventsTake", "pybind_EventsWait"])
def test_a_reader_that_another_thread_closes_ends_as_closed(engine: tent.Engine, call: str) -> None:
    events = engine.events()
    library = engine._library

    class Closing:
        """The native module, where another thread closes the reader just before a call about it."""

        def __getattr__(self, name: str) -> Any:
            if name == call:
                return self._closed_before
            return getattr(library, name)

        def _closed_before(self, *arguments: int) -> Any:
            engine._library = library
            closer = threading.Thread(target=events.close)
            closer.start()
            closer.join()
            return getattr(library, call)(*arguments)

    events.drain()
    engine._library = cast("Any", Closing())
    assert list(events) == []


@pytest.mark.interpreter
def test_engines_end_while_readers_wait_in_a_loop(connected: tuple[tent.Engine, tent.Engine]) -> None:
    near, _ = connected

    async def wait() -> int:
        loop = asyncio.get_running_loop()
        events = near.events()
        reading = asyncio.ensure_future(_count(events))
        await asyncio.sleep(0)
        await loop.run_in_executor(None, near.close)
        return await asyncio.wait_for(reading, 10)

    assert asyncio.run(wait()) > 0


async def _count(events: tent.Events) -> int:
    return len([event async for event in events])


def test_the_documentation_names_every_kind() -> None:
    """Kinds are texts that Go makes: its names and those in the documentation of Event are the same."""
    source = (Path(__file__).resolve().parents[2] / "gocore" / "event" / "event.go").read_text(encoding="utf-8")
    made = set(re.findall(r'{\s*"([a-z_]+)",\s', source[source.index("var kinds") :]))
    told = set(
        re.findall(r"`([a-z]+_[a-z_]+|stalled|dirty|withdrawn|failover|insecure|traced)`", tent.Event.__doc__ or "")
    )
    assert made == told
