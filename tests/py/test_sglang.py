"""SGLang's disaggregation over tent in the place of NIXL and of Mooncake, with a stand-in that makes its calls."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from nixl_agents import Side, address, ended, register  # noqa: E402
from sglang_stand import AUX, MooncakeServer, NixlPrefill, NixlServer, Pool  # noqa: E402

from tent.compat import nixl  # noqa: E402
from tent.testing import Memory  # noqa: E402

pytestmark = pytest.mark.adapters

LAYERS, PAGES, PAGE, ROOMS, TOKENS = 3, 64, 2048, 8, 4

Make = Callable[..., Any]


@pytest.fixture
def made() -> Iterator[Make]:
    """Makes servers; they are closed at the end."""
    servers: list[Any] = []

    def make(kind: Callable[..., Any], seed: int, **options: Any) -> Any:
        servers.append(kind(Pool(LAYERS, PAGES, PAGE, ROOMS, seed), options or None))
        return servers[-1]

    yield make
    for server in servers:
        (server.agent if isinstance(server, NixlServer) else server.engine).close()


def chunks(draw: random.Random, n: int) -> Iterator[slice]:
    """Cuts n pages into chunks, as a prefill server ends them."""
    start = 0
    while start < n:
        stop = min(n, start + draw.randint(1, 8))
        yield slice(start, stop)
        start = stop


def expect(prefill: Pool, decode: Pool, src: Any, dst: Any, part: slice) -> None:
    """Pages, or a part of each of their tokens, are in the decode server's pools."""
    for mine, theirs in zip(prefill.kv, decode.kv):
        for i, j in zip(src, dst):
            for token in range(TOKENS):
                at = token * (PAGE // TOKENS)
                here, there = i * PAGE + at, j * PAGE + at
                theirs.expect(there + part.start, mine.expected[here + part.start : here + part.stop])


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Polls as a scheduler does, up to a limit."""
    over = threading.Event()
    timer = threading.Timer(seconds, over.set)
    timer.start()
    try:
        while not condition():
            assert not over.is_set(), f"not within {seconds:g} s"
    finally:
        timer.cancel()


def test_rooms_arrive_whole_and_are_told_in_order(made: Make, seed: int) -> None:
    """Rooms side by side, in every form of a transfer: when a room is done, each of its bytes is there."""
    draw = random.Random(seed)
    prefill, decode = made(NixlPrefill, seed), made(NixlServer, seed + 100)
    peer = prefill.add_peer(decode.agent.get_agent_metadata(), decode.pool, decode.strided())
    free = draw.sample(range(PAGES), PAGES)
    handles: dict[int, list[Any]] = {}
    for room in range(ROOMS):
        n = draw.randint(1, PAGES // ROOMS)
        src = np.array(draw.sample(range(PAGES), n), np.int32)
        dst = np.array([free.pop() for _ in range(n)], np.int32)
        way = draw.choice(["prepared", "grouped", "heads"])
        part = slice(0, PAGE // TOKENS)
        if way == "heads":
            part = slice(*sorted(draw.sample(range(PAGE // TOKENS + 1), 2)))
        handles[room] = []
        for number, cut in enumerate(chunks(draw, n)):
            notif = f"{room}_kv_{number}_{int(cut.stop == n)}"
            given = peer, src[cut], dst[cut], notif
            if way == "heads":
                handles[room].append(prefill.send_heads(*given, TOKENS, part))
            else:
                send = prefill.send_prepared if way == "prepared" else prefill.send_grouped
                handles[room].append(send(*given))
        handles[room].append(prefill.send_aux(peer, room, ROOMS - 1 - room, f"{room}_aux"))
        expect(prefill.pool, decode.pool, src, dst, part)
        decode.pool.aux.expect((ROOMS - 1 - room) * AUX, prefill.pool.aux.expected[room * AUX : (room + 1) * AUX])

    def all_told() -> bool:
        decode.hear()
        return all(decode.rooms[room].done() for room in range(ROOMS))

    until(all_told)
    decode.pool.check()  # told is landed: nothing else is waited for
    until(lambda: all(prefill.poll(listed) for listed in handles.values()))
    for handle in [handle for listed in handles.values() for handle in listed]:
        prefill.agent.release_xfer_handle(handle)
    prefill.pool.check()
    decode.pool.check()


def test_a_decode_server_that_dies_fails_its_rooms_alone(made: Make, sides: Any, seed: int) -> None:
    """The transfers of one room fail, those to another server go on, and a successor is served."""
    prefill, decode = made(NixlPrefill, seed), made(NixlServer, seed + 100)
    peer = prefill.add_peer(decode.agent.get_agent_metadata(), decode.pool, decode.strided())
    agent, memory = prefill.agent, Memory(64 * PAGE, seed + 200)
    register(agent, memory)

    def written(side: Side, name: str) -> Any:
        lists = [agent.get_xfer_descs([(at, memory.size, 0)], "DRAM") for at in (address(memory), side.address)]
        return agent.initialize_xfer("WRITE", *lists, name, b"0_kv_0_1")

    first = sides("other", memory.size)
    agent.add_remote_agent(first.metadata)
    handle = written(first, "other")
    agent.transfer(handle)
    assert ended(agent, handle) == "DONE" and bytes.fromhex(first.ask("bytes")) == bytes(memory.expected)
    again = written(first, "other")
    first.process.kill()
    first.process.wait(10)
    with pytest.raises((nixl.nixlRemoteDisconnectError, RuntimeError)):
        prefill._begun(again)
        ended(agent, again)
        prefill.poll([again])
    agent.release_xfer_handle(again)
    sent = prefill.send_prepared(peer, [1, 2], [5, 6], "1_kv_0_1")
    assert ended(agent, sent) == "DONE"
    expect(prefill.pool, decode.pool, [1, 2], [5, 6], slice(0, PAGE // TOKENS))
    agent.remove_remote_agent("other")
    second = sides("other", memory.size)
    agent.add_remote_agent(second.metadata)
    handle = written(second, "other")
    agent.transfer(handle)
    assert ended(agent, handle) == "DONE" and bytes.fromhex(second.ask("bytes")) == bytes(memory.expected)
    decode.pool.check()
    prefill.pool.check()


def test_pages_go_by_mooncakes_calls_from_many_threads(made: Make, seed: int, port: int) -> None:
    """A thread for each layer, as SGLang's pool has them; a session that has failed is probed and used again."""
    draw = random.Random(seed)
    prefill = made(MooncakeServer, seed)
    decode = made(MooncakeServer, seed + 100, config={"rpc_server_port": port})
    results: list[int] = []
    free = draw.sample(range(PAGES), PAGES)
    threads = []
    for _ in range(ROOMS):
        n = draw.randint(1, PAGES // ROOMS)
        src, dst = draw.sample(range(PAGES), n), [free.pop() for _ in range(n)]
        for layer in range(LAYERS):
            given = decode.session, decode.pool, src, dst, range(2 * layer, 2 * layer + 2)
            threads.append(threading.Thread(target=lambda g=given: results.append(prefill.send(*g))))
        expect(prefill.pool, decode.pool, src, dst, slice(0, PAGE // TOKENS))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [0] * LAYERS * ROOMS and not prefill.failed
    assert prefill.send_aux(decode.session, decode.pool, 1, 2) == 0
    decode.pool.aux.expect(2 * AUX, prefill.pool.aux.expected[AUX : 2 * AUX])
    decode.pool.check()

    decode.engine.close()
    assert prefill.send(decode.session, decode.pool, [0], [0], range(1)) == -1
    prefill.probe_failed()
    assert prefill.failed == {decode.session}
    successor = made(MooncakeServer, seed + 300, config={"rpc_server_port": port})
    assert successor.session == decode.session
    prefill.probe_failed()
    assert not prefill.failed
    assert prefill.send(successor.session, successor.pool, [3], [4], range(2 * LAYERS)) == 0
    expect(prefill.pool, successor.pool, [3], [4], slice(0, PAGE // TOKENS))
    for server in (prefill, decode, successor):
        server.pool.check()


def test_the_names_that_sglang_imports_are_there() -> None:
    code = (
        "from nixl._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t\n"
        "from nixl._bindings import nixlBackendError, nixlCancelledError, nixlRemoteDisconnectError\n"
        "from mooncake.engine import TransferEngine\n"
        "print(nixl_agent.__module__, TransferEngine.__module__)\n"
    )
    words = ["-m", "tent", "run", "--as", "nixl,mooncake", "--", sys.executable, "-c", code]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["tent.compat.nixl.agent", "tent.compat.mooncake"], done.stderr
