"""Other users of NIXL and Mooncake inside vLLM: two processes that move blocks, and look at every byte.

The word is `p2p`, the tier of vLLM's offloading that WRITEs blocks to other servers by NIXL, `encoder`, the cache of
encoders' outputs, which READs them by NIXL, or `embedding`, which WRITEs such outputs by Mooncake. Its findings are a
JSON object.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy

BLOCKS, SIZE = 256, 1 << 16
LIMIT = 30  # seconds for a transfer, and for the news that a peer has gone


def patterned(blocks: Any) -> None:
    """Gives each block bytes of its own."""
    for i in range(BLOCKS):
        blocks[i] = numpy.arange(SIZE) * (2 * i + 1) % 251


class P2P:
    """The transport of the tier, with its memory."""

    def __init__(self, name: str) -> None:
        from vllm.v1.kv_offload.tiering.p2p.data.nixl import NixlTransport  # type: ignore[import-not-found]

        self.blocks = numpy.frombuffer(mmap.mmap(-1, BLOCKS * SIZE), numpy.uint8).reshape(BLOCKS, SIZE)
        self.transport = NixlTransport(name, memoryview(self.blocks))
        self.known = (self.transport.get_agent_metadata(), self.blocks.ctypes.data, BLOCKS, SIZE)

    def write(self, here: list[int], there: list[int]) -> str:
        """Writes blocks to the peer; "" or why not. Before vLLM 0.33 the error of a post passes through."""
        try:
            number = self.transport.write_blocks("peer", here, there)
        except Exception as error:
            return type(error).__name__
        limit = time.monotonic() + LIMIT
        while time.monotonic() < limit:
            seen = self.transport.poll("peer")
            if number in seen.done:
                return ""
            if number is None or seen.failed:
                return getattr(seen, "peer_fault", None) or "failed"
        raise SystemExit(f"a transfer has not ended within {LIMIT} s")


class Encoder:
    """The transport of the cache, with its memory."""

    def __init__(self, name: str) -> None:
        from vllm.distributed.ec_transfer.ec_connector.cpu.data.nixl import (  # type: ignore[import-not-found]
            NixlDataTransport,
        )

        self.blocks = numpy.frombuffer(mmap.mmap(-1, BLOCKS * SIZE), numpy.uint8).reshape(BLOCKS, SIZE)
        self.transport = NixlDataTransport(name, self.blocks.ctypes.data, BLOCKS, SIZE, BLOCKS * SIZE)
        self.known = (self.transport.get_agent_metadata(), self.transport.get_mem_descriptor())

    def read(self, peer: str, here: list[int], there: list[int], message: bytes) -> str:
        """Reads blocks of the peer; the last state."""
        handle = self.transport.post_read(here, peer, there, message)
        limit = time.monotonic() + LIMIT
        while (state := self.transport.check_xfer_state(handle)) == "PROC" and time.monotonic() < limit:
            pass
        self.transport.release_xfer_handle(handle)
        return str(state)


class Embedding:
    """The transport of outputs by Mooncake, with its memory."""

    def __init__(self, name: str) -> None:
        import torch
        from vllm.distributed.ec_transfer.ec_connector.mooncake.transfer import (  # type: ignore[import-not-found]
            MooncakeTransfer,
        )

        self.tensor = torch.zeros((BLOCKS, SIZE), dtype=torch.uint8)
        self.blocks = self.tensor.numpy()
        self.transport = MooncakeTransfer("127.0.0.1", "tcp")
        self.known = (self.transport.local_session(), self.tensor.data_ptr())


def served(kind: type, filled: bool, pipe: Connection) -> None:
    """The other process: it answers `which`, the pattern's number of each block that has one, and `messages`."""
    side = kind("decode")
    if filled:
        patterned(side.blocks)
    if kind is Embedding:
        assert side.transport.register_memory(side.tensor) == 0
    pipe.send(side.known)
    for word in iter(pipe.recv, "end"):
        pipe.send(which(side.blocks) if word == "which" else side.transport.get_new_notifs())


def which(blocks: Any) -> dict[int, int]:
    """The pattern's number of each block that is not all zero; -1 of one that is mixed."""
    every = numpy.zeros_like(blocks)
    patterned(every)
    found = {}
    for i in map(int, numpy.flatnonzero(blocks.any(axis=1))):
        same = numpy.flatnonzero((every == blocks[i]).all(axis=1))
        found[i] = int(same[0]) if len(same) else -1
    return found


class Other:
    """The process of the other side."""

    def __init__(self, kind: type, filled: bool) -> None:
        start = multiprocessing.get_context("spawn")
        self.pipe, far = start.Pipe()
        self.process = start.Process(target=served, args=(kind, filled, far), daemon=True)
        self.process.start()
        far.close()
        self.known = self.pipe.recv()

    def ask(self, word: str) -> Any:
        """The answer to a word."""
        self.pipe.send(word)
        return self.pipe.recv()

    def kill(self) -> None:
        """Ends it at once."""
        self.process.kill()
        self.process.join()


def p2p() -> dict[str, Any]:
    """Writes, loses the peer, and writes to its successor of the same name."""
    mine, first = P2P("prefill"), Other(P2P, False)
    patterned(mine.blocks)
    mine.transport.add_remote_peer("peer", *first.known)
    seen: dict[str, Any] = {"first": mine.write([1, 2, 3], [7, 9, 200]), "landed": first.ask("which")}
    first.kill()
    everywhere = list(range(BLOCKS))
    for _ in range(4):  # a peer is given up at an error that says so, or at the third transfer that failed
        seen["lost"] = mine.write(everywhere, everywhere)
        if seen["lost"] != "failed":
            break
    mine.transport.remove_remote_peer("peer")
    second = Other(P2P, False)
    mine.transport.add_remote_peer("peer", *second.known)
    seen |= {"second": mine.write([5, 6], [0, 255]), "landed again": second.ask("which")}
    second.pipe.send("end")
    second.process.join(LIMIT)
    mine.transport.close()
    return seen


def encoder() -> dict[str, Any]:
    """Reads, with a message behind the bytes."""
    mine, other = Encoder("prefill"), Other(Encoder, True)
    name = mine.transport.add_remote_peer(*other.known)
    seen: dict[str, Any] = {"state": mine.read(name, [0, 1, 255], [10, 20, 30], b"done 1")}
    limit = time.monotonic() + LIMIT
    while not (messages := other.ask("messages")) and time.monotonic() < limit:
        pass
    seen |= {"messages": repr(messages), "landed": which(mine.blocks)}
    mine.transport.remove_remote_peer(name)
    other.pipe.send("end")
    other.process.join(LIMIT)
    mine.transport.deregister()
    return seen


def embedding() -> dict[str, Any]:
    """Writes rows of one tensor, which are registered one by one, as long as a write of them runs."""
    mine, other = Embedding("prefill"), Other(Embedding, False)
    patterned(mine.blocks)
    session, address = other.known
    for here, there in (([1, 2, 3], [10, 20, 30]), ([2, 3, 4], [40, 255, 0])):
        sources = mine.transport.acquire_sources([mine.tensor[i] for i in here])
        mine.transport.write(session, sources, [address + SIZE * i for i in there], [SIZE] * 3)
        assert mine.transport.release_sources(sources)
    seen = {"landed": other.ask("which")}
    other.kill()
    sources = mine.transport.acquire_sources([mine.tensor[0]])
    try:
        mine.transport.write(session, sources, [address], [SIZE])
    except RuntimeError:
        seen["lost"] = "RuntimeError"
    mine.transport.release_sources(sources)
    mine.transport.close()
    return seen


if __name__ == "__main__":
    print(json.dumps({"p2p": p2p, "encoder": encoder, "embedding": embedding}[sys.argv[1]]()))
