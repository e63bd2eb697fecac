"""Today's published alternatives as contestants of the benchmark, each run by the interpreter of an environment that
has its wheel. Their memory is the user's own; everything that a program can prepare (descriptor lists, handles) is
prepared.

    others.py nixl|mooncake ARENA_BYTES

NIXL's way between the processes is UCX's choice; UCX_TLS=tcp in the environment makes it TCP. Driven by lines on stdin
(see contestant.py).
"""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from pattern import first_wrong, pattern

POSITIONS = 16
LIMIT_S = 60.0


class Library(Protocol):
    """The face of a library for a contestant: an end that offers memory, and calls that move a batch and wait for
    it."""

    def __init__(self, name: str, address: int, length: int) -> None: ...
    def card(self) -> str:
        """The description for the other end, without blanks."""

    def connect(self, card: str) -> str:
        """Learns of the other end; the answer is for the other end in turn, "" for none."""

    def prepared(self, write: bool, size: int, offsets: list[int]) -> Callable[[], None]: ...


class Nixl:
    def __init__(self, name: str, address: int, length: int) -> None:
        from nixl_cu12._api import nixl_agent, nixl_agent_config  # type: ignore[import-not-found]

        self.address = address
        self.agent: Any = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        self.agent.register_memory([(address, length, 0, "kv")], "DRAM")

    def card(self) -> str:
        return f"{self.address}:{self.agent.get_agent_metadata().hex()}"

    def connect(self, card: str) -> str:
        address, metadata = card.split(":")
        self.there = int(address)
        self.peer = self.agent.add_remote_agent(bytes.fromhex(metadata))
        return self.card()

    def prepared(self, write: bool, size: int, offsets: list[int]) -> Callable[[], None]:
        agent = self.agent
        here = agent.get_xfer_descs([(self.address + o, size, 0) for o in offsets], "DRAM")
        there = agent.get_xfer_descs([(self.there + o, size, 0) for o in offsets], "DRAM")
        handle = agent.initialize_xfer("WRITE" if write else "READ", here, there, self.peer)

        def move() -> None:
            state = agent.transfer(handle)
            while state == "PROC":
                state = agent.check_xfer_state(handle)
            if state != "DONE":
                raise RuntimeError(state)

        return move


class Mooncake:
    def __init__(self, name: str, address: int, length: int) -> None:
        from mooncake.engine import TransferEngine  # type: ignore[import-not-found]

        self.address = address
        self.engine: Any = TransferEngine()
        if self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
            raise RuntimeError("initialize")
        if self.engine.register_memory(address, length) != 0:
            raise RuntimeError("register_memory")

    def card(self) -> str:
        return f"127.0.0.1:{self.engine.get_rpc_port()}:{self.address}"

    def connect(self, card: str) -> str:
        self.peer, address = card.rsplit(":", 1)
        self.there = int(address)
        return ""

    def prepared(self, write: bool, size: int, offsets: list[int]) -> Callable[[], None]:
        engine, peer = self.engine, self.peer
        one = engine.transfer_sync_write if write else engine.transfer_sync_read
        many = engine.batch_transfer_sync_write if write else engine.batch_transfer_sync_read
        here, there = [self.address + o for o in offsets], [self.there + o for o in offsets]
        sizes = [size] * len(offsets)

        def move() -> None:
            wrong = many(peer, here, there, sizes) if len(sizes) > 1 else one(peer, here[0], there[0], size)
            if wrong:
                raise RuntimeError(f"error {wrong}")

        return move


LIBRARIES: dict[str, type[Nixl] | type[Mooncake]] = {"nixl": Nixl, "mooncake": Mooncake}


class End:
    """Memory of this process's own, and a library that reaches it."""

    def __init__(self, library: str, name: str, length: int) -> None:
        self.map = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self.map)
        self.view[:] = pattern(1, length)
        self.library: Library = LIBRARIES[library](name, ctypes.addressof(ctypes.c_char.from_buffer(self.map)), length)


def peer(library: str, length: int) -> None:
    """Offers memory, fills it and looks at it when told to."""
    end = End(library, "peer", length)
    print("card", end.library.card(), flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        if verb == "connect":
            end.library.connect(words[0])
            print("answer", -1, flush=True)
        elif verb == "fill":
            end.view[: int(words[1])] = pattern(int(words[0]), int(words[1]))
            print("answer", -1, flush=True)
        else:
            print("answer", first_wrong(end.view, int(words[0]), int(words[1])), flush=True)


class Bench:
    """The initiator's side."""

    def __init__(self, library: str, length: int) -> None:
        command = [sys.executable, __file__, "--peer", library, str(length)]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        card = self.answer("card")
        self.end = End(library, "initiator", length)
        if back := self.end.library.connect(card):
            self.ask("connect", back)

    def answer(self, word: str) -> str:
        """The next line that begins with word; the libraries print lines of their own."""
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if line.startswith(word + " "):
                return line.split()[1]
        raise RuntimeError(f"the peer has ended with {self.child.wait(LIMIT_S)}")

    def ask(self, *words: object) -> int:
        assert self.child.stdin is not None
        print(*words, file=self.child.stdin, flush=True)
        return int(self.answer("answer"))

    def close(self) -> None:
        self.child.kill()
        self.child.wait(LIMIT_S)

    def moves(self, write: bool, size: int, count: int) -> list[Callable[[], None]]:
        room = max(1, len(self.end.view) // (size * count))
        bases = [position % room * size * count for position in range(POSITIONS)]
        made = {b: self.end.library.prepared(write, size, [b + i * size for i in range(count)]) for b in set(bases)}
        return [made[b] for b in bases]

    def measure(self, write: bool, size: int, count: int, iterations: int) -> list[int]:
        moves = self.moves(write, size, count)
        took = []
        for i in range(iterations):
            move = moves[i % POSITIONS]
            begin = time.perf_counter_ns()
            move()
            took.append(time.perf_counter_ns() - begin)
        return took

    def check(self, write: bool, size: int, count: int, seed: int) -> str:
        """Moves one batch of fresh data and looks at every byte of it where it arrived."""
        length = size * count
        mine, theirs = (seed, seed + 1) if write else (seed + 1, seed)
        self.end.view[:length] = pattern(mine, length)
        self.ask("fill", theirs, length)
        self.moves(write, size, count)[0]()
        wrong = self.ask("check", seed, length) if write else first_wrong(self.end.view, seed, length)
        return "ok" if wrong < 0 else f"bad {wrong}"


def main() -> None:
    if sys.argv[1] == "--peer":
        peer(sys.argv[2], int(sys.argv[3]))
        return
    bench = Bench(sys.argv[1], int(sys.argv[2]))
    print("ready", bench.child.pid, flush=True)
    for seed, line in enumerate(sys.stdin, start=10):
        verb, *words = line.split()
        if verb == "check":
            print(bench.check(words[0] == "write", int(words[1]), int(words[2]), 2 * seed), flush=True)
        else:
            print("ns", *bench.measure(verb == "write", *map(int, words[:3])), flush=True)
    bench.close()


if __name__ == "__main__":
    main()
