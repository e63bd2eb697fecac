"""A stack that looks at its transfer once a step drives it by that look: the engine's threads may have no processor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("numpy")

import tent
from tent.buffers import address_of
from tent.compat.mooncake import TransferEngine
from tent.compat.nixl import nixl_agent
from tent.testing import Memory

pytestmark = pytest.mark.adapters

STUCK = {  # every byte is lost on its way, so a transfer stays under way
    "config": {
        "log_level": "error",
        "transports": {"shm": {"enable": False}},
        "allow_faults": True,
        "faults": "op=READ blackhole",
    }
}
Looking = tuple[tent.Engine, Callable[[], Any], Any]  # the engine, a look, and its answer while a transfer is under way


class Counting:
    """A library of an engine that counts the calls in which the engine works for its caller."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += name in ("pybind_Wait", "pybind_Progress")
        return getattr(self._library, name)


@pytest.fixture
def memories(seed: int) -> tuple[Memory, Memory]:
    return Memory(4096, seed), Memory(4096, seed + 1)


@pytest.fixture
def agents(memories: tuple[Memory, Memory]) -> Iterator[tuple[nixl_agent, Any]]:
    """An agent, and a READ that it has not posted."""
    here, there = (nixl_agent(name, options=STUCK) for name in ("here", "there"))
    ours, theirs = (
        agent.register_memory([(address_of(memory.view), 4096, 0, "")], "DRAM").trim()
        for agent, memory in zip((here, there), memories)
    )
    here.add_remote_agent(there.get_agent_metadata())
    yield here, here.initialize_xfer("READ", ours, theirs, "there")
    here.close()
    there.close()


@pytest.fixture
def by_nixl(agents: tuple[nixl_agent, Any]) -> Looking:
    here, handle = agents
    here.transfer(handle)
    return here.engine, lambda: here.check_xfer_state(handle), "PROC"


@pytest.fixture
def by_mooncake(memories: tuple[Memory, Memory]) -> Iterator[Looking]:
    here, there = TransferEngine(options=STUCK), TransferEngine(options=STUCK)
    at = [address_of(memory.view) for memory in memories]
    for engine, address in zip((here, there), at):
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        assert engine.register_memory(address, 4096) == 0
    peer = f"127.0.0.1:{there.get_rpc_port()}"
    batch = here.batch_transfer_async_read(peer, [at[0]], [at[1]], [4096])
    assert here.engine is not None
    yield here.engine, lambda: here.transfer_check_status(batch), 0
    here.close()
    there.close()


@pytest.mark.parametrize("stack", ["by_nixl", "by_mooncake"])
def test_each_look_at_a_transfer_under_way_drives_it(
    stack: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, looks: int = 50
) -> None:
    """vLLM looks once a millisecond. One look in 128 would leave a transfer of 5 ms to threads that may not run."""
    engine, look, under_way = request.getfixturevalue(stack)
    counting = Counting(engine._library)
    monkeypatch.setattr(engine, "_library", counting)
    assert [look() for _ in range(looks)] == [under_way] * looks
    assert sum(counting.calls.values()) >= looks


def test_a_post_leaves_the_bytes_to_others(agents: tuple[nixl_agent, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM posts on its only thread, where a piece would cost more than the post."""
    here, handle = agents
    counting = Counting(here.engine._library)
    monkeypatch.setattr(here.engine, "_library", counting)
    assert here.transfer(handle) == "PROC"
    assert not +counting.calls
