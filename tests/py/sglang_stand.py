"""A stand-in for SGLang 0.5's disaggregation: its calls of NIXL's agent and of Mooncake's engine, in its order.

SGLang needs CUDA, so it does not run here. This has the part between its scheduler and the engine: pools of pages, one
for K and one for V of each layer; rooms, which are requests; chunks of pages; an aux buffer for the first token. Its
servers exchange messages over ZMQ, and these call each other. As in SGLang, a chunk's notification is
"ROOM_kv_CHUNK_LAST", and the decode server counts chunks until it has the last one and "ROOM_aux".
"""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tent.buffers import address_of
from tent.compat.mooncake import TransferEngine
from tent.compat.nixl import nixl_agent, nixl_agent_config, nixl_thread_sync_t
from tent.testing import Memory

AUX = 512  # bytes of a room's aux slot


class Pool:
    """The memory of a server: a buffer of pages for K and for V of each layer, and aux slots."""

    def __init__(self, layers: int, pages: int, page_bytes: int, rooms: int, seed: int) -> None:
        self.pages, self.page_bytes = pages, page_bytes
        self.kv = [Memory(pages * page_bytes, seed + i) for i in range(2 * layers)]
        self.aux = Memory(rooms * AUX, seed + 2 * layers)

    @property
    def kv_at(self) -> list[int]:
        return [address_of(memory.view) for memory in self.kv]

    @property
    def aux_at(self) -> int:
        return int(address_of(self.aux.view))

    def check(self) -> None:
        for memory in [*self.kv, self.aux]:
            memory.check()


def groups(src: Any, dst: Any) -> list[tuple[int, int, int]]:
    """Runs of pages that are neighbours on both sides: first page here, first page there, number of pages."""
    found: list[tuple[int, int, int]] = []
    for i, j in zip(map(int, src), map(int, dst)):
        if found and found[-1][0] + found[-1][2] == i and found[-1][1] + found[-1][2] == j:
            found[-1] = (*found[-1][:2], found[-1][2] + 1)
        else:
            found.append((i, j, 1))
    return found


@dataclass
class Arrived:
    """The chunks of a room that a decode server has heard of."""

    chunks: set[int] = field(default_factory=set)
    expected: int | None = None
    aux: bool = False

    def done(self) -> bool:
        return self.aux and self.expected == len(self.chunks)


class NixlServer:
    """Either side over NIXL's agent."""

    kind = "DRAM"  # of the pages

    def __init__(self, pool: Pool, options: dict[str, Any] | None = None) -> None:
        self.pool = pool
        self.agent = self.made(options)
        if "UCX" not in self.agent.get_plugin_list():
            raise RuntimeError("the backend is not there")
        creating = threading.Thread(target=self.agent.create_backend, args=("UCX", {"num_threads": "8"}))
        creating.start()
        creating.join(10)
        size = pool.pages * pool.page_bytes
        self.kv_descs = self.agent.register_memory([(at, size, 0, "") for at in pool.kv_at], self.kind)
        self.aux_descs = self.agent.register_memory([(pool.aux_at, pool.aux.size, 0, "")], "DRAM")
        if not self.kv_descs or not self.aux_descs:
            raise RuntimeError("registration has failed")
        self.rooms: dict[int, Arrived] = defaultdict(Arrived)

    def made(self, options: dict[str, Any] | None) -> Any:
        """The agent."""
        mode = nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
        return nixl_agent(str(uuid.uuid4()), nixl_agent_config(backends=[], sync_mode=mode), options=options)

    def strided(self) -> Any:
        """All pages of all buffers: address, length, device, stride, count."""
        return np.array(
            [[at, self.pool.page_bytes, 0, self.pool.page_bytes, self.pool.pages] for at in self.pool.kv_at]
        )

    def hear(self) -> None:
        """Counts the notifications that have come."""
        for messages in self.agent.get_new_notifs().values():
            for message in messages:
                room, kind, *rest = message.decode("ascii").split("_")
                arrived = self.rooms[int(room)]
                if kind == "aux":
                    arrived.aux = True
                    continue
                arrived.chunks.add(int(rest[0]))
                if int(rest[1]):
                    arrived.expected = int(rest[0]) + 1


class NixlPrefill(NixlServer):
    """A prefill server: it writes chunks of pages into a decode server's pools."""

    def add_peer(self, metadata: bytes, pool: Pool, strided: Any) -> str:
        """Meets a decode server, and prepares the lists of both sides."""
        name = self.agent.add_remote_agent(metadata).decode()
        self.peer_pool = pool
        self.local = self.agent.prep_xfer_dlist("", self.strided(), self.kind)
        self.remote = self.agent.prep_xfer_dlist(name, strided, self.kind)
        return name

    def send_prepared(self, peer: str, src: Any, dst: Any, notif: str) -> Any:
        """Pages by their indexes in prepared lists: page i of buffer b has the index b * pages + i."""
        here, there = (
            np.concatenate([np.asarray(pages, np.int32) + b * pool.pages for b in range(len(pool.kv))])
            for pages, pool in ((src, self.pool), (dst, self.peer_pool))
        )
        handle = self.agent.make_prepped_xfer("WRITE", self.local, here, self.remote, there, notif.encode("ascii"))
        return self._begun(handle)

    def send_grouped(self, peer: str, src: Any, dst: Any, notif: str) -> Any:
        """Runs of pages as descriptors of their own."""
        here, there, page = [], [], self.pool.page_bytes
        for mine, theirs in zip(self.pool.kv_at, self.peer_pool.kv_at):
            for i, j, n in groups(src, dst):
                here.append((mine + i * page, n * page, 0))
                there.append((theirs + j * page, n * page, 0))
        return self._combined(peer, here, there, notif, self.kind)

    def send_heads(self, peer: str, src: Any, dst: Any, notif: str, tokens: int, heads: slice) -> Any:
        """A part of each token's heads, as between servers of different tensor parallelism."""
        here, there, page = [], [], self.pool.page_bytes
        for mine, theirs in zip(self.pool.kv_at, self.peer_pool.kv_at):
            for i, j in zip(map(int, src), map(int, dst)):
                for token in range(tokens):
                    at = token * (page // tokens) + heads.start
                    here.append((mine + i * page + at, heads.stop - heads.start, 0))
                    there.append((theirs + j * page + at, heads.stop - heads.start, 0))
        return self._combined(peer, here, there, notif, self.kind)

    def send_aux(self, peer: str, here: int, there: int, notif: str) -> Any:
        """The aux slot of a room."""
        mine = [(self.pool.aux_at + here * AUX, AUX, 0)]
        return self._combined(peer, mine, [(self.peer_pool.aux_at + there * AUX, AUX, 0)], notif)

    def _combined(self, peer: str, here: list[Any], there: list[Any], notif: str, kind: str = "DRAM") -> Any:
        lists = self.agent.get_xfer_descs(here, kind), self.agent.get_xfer_descs(there, kind)
        return self._begun(self.agent.initialize_xfer("WRITE", *lists, peer, notif.encode("ascii")))

    def _begun(self, handle: Any) -> Any:
        if not handle:
            raise RuntimeError("the transfer was not made")
        if self.agent.transfer(handle) == "ERR":
            raise RuntimeError("the transfer was not posted")
        return handle

    def poll(self, handles: list[Any]) -> bool:
        """Whether all transfers of a room have ended; one that has failed is an error."""
        states = [self.agent.check_xfer_state(handle) for handle in handles]
        if "ERR" in states:
            raise RuntimeError("a transfer has failed")
        return all(state == "DONE" for state in states)


class MooncakeServer:
    """Either side over Mooncake's engine, as SGLang wraps it: every failure is -1."""

    def __init__(self, pool: Pool, options: dict[str, Any] | None = None) -> None:
        self.pool = pool
        self.engine = TransferEngine(options=options)
        if self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") != 0:
            raise RuntimeError("initialization has failed")
        self.session = f"127.0.0.1:{self.engine.get_rpc_port()}"
        ranges = {(at, pool.pages * pool.page_bytes) for at in pool.kv_at} | {(pool.aux_at, pool.aux.size)}
        addresses, sizes = map(list, zip(*ranges))
        if self.engine.batch_register_memory(addresses, sizes) != 0:
            raise RuntimeError("registration has failed")
        self.failed: set[str] = set()

    def send(self, session: str, peer: Pool, src: Any, dst: Any, buffers: range) -> int:
        """Pages of some buffers, in one call that waits. SGLang's threads share the buffers."""
        page, here, there, sizes = self.pool.page_bytes, [], [], []
        for b in buffers:
            for i, j, n in groups(src, dst):
                here.append(self.pool.kv_at[b] + i * page)
                there.append(peer.kv_at[b] + j * page)
                sizes.append(n * page)
        result = self.engine.batch_transfer_sync_write(session, here, there, sizes)
        if result != 0:
            self.failed.add(session)
        return result

    def send_aux(self, session: str, peer: Pool, here: int, there: int) -> int:
        """The aux slot of a room."""
        return self.engine.transfer_sync_write(session, self.pool.aux_at + here * AUX, peer.aux_at + there * AUX, AUX)

    def probe_failed(self) -> None:
        """Takes sessions that answer again off the list of failures."""
        self.failed = {session for session in self.failed if self.engine.send_probe(session) != 0}
