"""NIXL's agents of tent in tests: here and in processes of their own, their memory, and waits for their transfers."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tent.compat import nixl
from tent.testing import Memory

SIDE = Path(__file__).parent / "programs" / "nixl_side.py"
BLOCK = 4096

Agents = Callable[..., nixl.nixl_agent]


def address(memory: Memory) -> int:
    return int(np.frombuffer(memory.view, np.uint8).ctypes.data)


def register(agent: nixl.nixl_agent, memory: Memory) -> nixl.nixlRegDList:
    return agent.register_memory([(address(memory), memory.size, 0, "")], "DRAM")


def blocks(memory: Memory, n: int) -> Any:
    """The rows of n blocks, as vLLM makes them."""
    rows = np.zeros((n, 3), np.uint64)
    rows[:, 0] = address(memory) + np.arange(n, dtype=np.uint64) * BLOCK
    rows[:, 1] = BLOCK
    return rows


def prepared(agents: Agents, seed: int) -> tuple[nixl.nixl_agent, Memory, Any, Any, nixl.nixlXferDList]:
    """An agent "a" that knows "b", its memory, four blocks in lists of both sides, and a list of the first one."""
    agent, memory = agents("a"), Memory(4 * BLOCK, seed)
    register(agent, memory)
    agent.add_remote_agent(agents("b").get_agent_metadata())
    local, own = (agent.prep_xfer_dlist(name, blocks(memory, 4), "DRAM") for name in ("", "a"))
    return agent, memory, local, own, agent.get_xfer_descs(blocks(memory, 1), "DRAM")


def ended(agent: nixl.nixl_agent, handle: nixl.nixl_xfer_handle) -> str:
    """The state of a transfer after its end, as a stack waits for it."""
    for transfer in handle._sent:
        with contextlib.suppress(Exception):
            transfer.result(30)
    return agent.check_xfer_state(handle)


def heard(agent: nixl.nixl_agent, n: int = 1) -> dict[str, list[bytes]]:
    """The notifications of an agent, once n have come."""
    found: dict[str, list[bytes]] = {}
    while sum(map(len, found.values())) < n:
        note = agent.engine.notifications.get(timeout=10)
        for name, listed in agent._mailbox._joiner.take([note]).items():
            found.setdefault(name, []).extend(listed)
    return found


@contextlib.contextmanager
def agents_made() -> Iterator[Agents]:
    """Makes agents here and closes them at the end."""
    made: list[nixl.nixl_agent] = []

    def make(name: str, **config: Any) -> nixl.nixl_agent:
        options = config.pop("options", None)
        made.append(nixl.nixl_agent(name, nixl.nixl_agent_config(**config), options=options))
        return made[-1]

    try:
        yield make
    finally:
        for agent in made:
            agent.close()


class Side:
    """An agent in another process."""

    def __init__(self, name: str, size: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SIDE), name, str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        said = self.read()
        self.metadata, self.address = said["metadata"].encode(), said["address"]

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, what: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.read()

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


@contextlib.contextmanager
def sides_made() -> Iterator[Callable[[str, int], Side]]:
    """Starts agents in processes of their own and ends them."""
    made: list[Side] = []

    def make(name: str, size: int) -> Side:
        made.append(Side(name, size))
        return made[-1]

    try:
        yield make
    finally:
        for side in made:
            side.process.send_signal(signal.SIGCONT)
            side.end()
