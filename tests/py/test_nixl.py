"""tent in NIXL's place: the calls that vLLM, LMCache, SGLang and NIXL's own examples make, in their forms and order."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from nixl_agents import BLOCK, Agents, Side, address, blocks, ended, heard, prepared, register  # noqa: E402

import tent  # noqa: E402
from tent.compat import nixl  # noqa: E402
from tent.compat.nixl import handles, messages  # noqa: E402
from tent.records import Notification  # noqa: E402
from tent.testing import Memory  # noqa: E402
from tent.testing.memory import pattern  # noqa: E402

pytestmark = pytest.mark.adapters


def test_the_calls_of_vllm_in_their_order(agents: Agents, seed: int) -> None:
    n, draw = 64, random.Random(seed)
    prefill, decode = agents("p", num_threads=4, capture_telemetry=True), agents("d", capture_telemetry=True)
    ours, theirs = Memory(n * BLOCK, seed), Memory(n * BLOCK, seed + 1)
    for agent, memory in ((prefill, theirs), (decode, ours)):
        listed = agent.get_reg_descs([(address(memory), memory.size, 0, "")], "DRAM")
        agent.register_memory(listed, backends=["UCX"])
    local = decode.prep_xfer_dlist("NIXL_INIT_AGENT", decode.get_xfer_descs(blocks(ours, n), "DRAM"))
    name = decode.add_remote_agent(prefill.get_agent_metadata())
    assert name == b"p"
    remote = decode.prep_xfer_dlist(name, decode.get_xfer_descs(blocks(theirs, n), "DRAM"))
    assert prefill.add_remote_agent(decode.get_agent_metadata()) == b"d"
    decode.send_notif(name, notif_msg=b"HB:req1,req2")
    assert heard(prefill) == {"d": [b"HB:req1,req2"]}
    for request in range(3):
        here, there = draw.sample(range(n), 20), draw.sample(range(n), 20)
        handle = decode.make_prepped_xfer(
            "READ", local, np.array(here), remote, np.array(there), notif_msg=f"req{request}:1".encode()
        )
        assert decode.transfer(handle) in ("PROC", "DONE")
        assert ended(decode, handle) == "DONE"
        told = decode.get_xfer_telemetry(handle)
        assert (told.totalBytes, told.descCount) == (20 * BLOCK, 20)
        assert decode.estimate_xfer_cost(handle) == (0, 0, "UNKNOWN")
        assert told.postDuration > 0 and 0 < told.xferDuration < 30_000_000
        decode.release_xfer_handle(handle)
        for i, j in zip(here, there):
            ours.expect(i * BLOCK, theirs.expected[j * BLOCK : (j + 1) * BLOCK])
        assert heard(prefill) == {"d": [f"req{request}:1".encode()]}
        ours.check()
        theirs.check()
    assert decode.check_remote_metadata("p") and prefill.get_new_notifs() == {}
    decode.release_dlist_handle(local)
    decode.release_dlist_handle(remote)
    decode.remove_remote_agent(name)
    assert not decode.check_remote_metadata("p")


def test_the_calls_of_lmcache(agents: Agents, seed: int) -> None:
    one, two = agents("lm-1"), agents("lm-2")
    ours, theirs = Memory(8 * BLOCK, seed), Memory(8 * BLOCK, seed + 1)
    mine = one.register_memory(one.get_reg_descs([(address(ours), ours.size, 0, "")], mem_type="cpu"))
    two.register_memory(two.get_reg_descs([(address(theirs), theirs.size, 0, "")], mem_type="cpu"))
    local = one.prep_xfer_dlist("", [(address(ours) + i * BLOCK, BLOCK, 0) for i in range(8)], "cpu")
    wire = two.get_serialized_descs(two.get_xfer_descs(blocks(theirs, 8), "cpu"))
    for _ in range(2):  # both sides give the blob, sometimes twice
        assert one.add_remote_agent(two.get_agent_metadata()) == b"lm-2"
        assert two.add_remote_agent(one.get_agent_metadata()) == b"lm-1"
    remote = one.prep_xfer_dlist("lm-2", one.deserialize_descs(wire))
    handle = one.make_prepped_xfer("WRITE", local, [0, 3], remote, [7, 1])
    one.transfer(handle)
    assert ended(one, handle) == "DONE"
    theirs.expect(7 * BLOCK, ours.expected[:BLOCK])
    theirs.expect(BLOCK, ours.expected[3 * BLOCK : 4 * BLOCK])
    theirs.check()
    one.deregister_memory(mine)
    with pytest.raises(nixl.nixlNotFoundError):
        one.deregister_memory(mine)
    with pytest.raises(nixl.nixlNotFoundError):
        one.transfer(one.make_prepped_xfer("WRITE", local, [0], remote, [7]))
    theirs.check()


def test_the_calls_of_sglang(agents: Agents, seed: int) -> None:
    mode = nixl.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
    one, two = agents("s-1", backends=[], sync_mode=mode), agents("s-2", backends=[], sync_mode=mode)
    for agent in (one, two):
        assert "UCX" in agent.get_plugin_list() and agent.backends == {}
        thread = threading.Thread(target=agent.create_backend, args=("UCX", {"num_threads": "8"}))
        thread.start()
        thread.join(10)
        assert agent.get_backend_mem_types("UCX") == ["DRAM_SEG", "VRAM_SEG"] == agent.get_plugin_mem_types("UCX")
    ours, theirs = Memory(32 * BLOCK, seed), Memory(32 * BLOCK, seed + 1)
    one.register_memory(np.array([[address(ours), ours.size, 0]], np.uint64), "DRAM")
    register(two, theirs)
    peer = one.add_remote_agent(two.get_agent_metadata())
    # Strided lists: address, length, device, stride, count.
    layers = np.array([[address(ours), BLOCK, 0, 2 * BLOCK, 16]], np.uint64)
    local = one.prep_xfer_dlist("NIXL_INIT_AGENT", layers, "DRAM")
    remote = one.prep_xfer_dlist(peer, np.array([[address(theirs), BLOCK, 0, BLOCK, 32]], np.uint64), "DRAM")
    assert (local.n, remote.n) == (16, 32)
    handle = one.make_prepped_xfer("WRITE", local, np.arange(3, dtype=np.int32), remote, np.array([9, 4, 31]), b"k_0")
    one.transfer(handle)
    assert ended(one, handle) == "DONE" and heard(two) == {"s-1": [b"k_0"]}
    for i, j in enumerate((9, 4, 31)):
        theirs.expect(j * BLOCK, ours.expected[2 * i * BLOCK : (2 * i + 1) * BLOCK])
    whole = one.get_xfer_descs([(address(ours), 100, 0), (address(ours) + 500, 28, 0)], "DRAM")
    there = one.get_xfer_descs([(address(theirs) + 7, 100, 0), (address(theirs) + 300, 28, 0)], "DRAM")
    again = one.initialize_xfer("WRITE", whole, there, peer.decode(), b"room_1")
    for _ in range(2):  # a handle may be posted again
        one.transfer(again)
        assert ended(one, again) == "DONE" and heard(two) == {"s-1": [b"room_1"]}
    theirs.expect(7, ours.expected[:100])
    theirs.expect(300, ours.expected[500:528])
    theirs.check()
    assert one.query_xfer_backend(again) == "UCX"


def test_an_agent_reads_and_writes_within_itself_and_in_files(agents: Agents, seed: int, tmp_path: Path) -> None:
    agent = agents("alone", backends=["UCX", "POSIX"])
    memory = Memory(4 * BLOCK, seed)
    register(agent, memory)
    within = agent.initialize_xfer(
        "WRITE",
        agent.get_xfer_descs([(address(memory), BLOCK, 0)], "DRAM"),
        agent.get_xfer_descs([(address(memory) + 2 * BLOCK, BLOCK, 0)], "DRAM"),
        "alone",
        b"self",
    )
    agent.transfer(within)
    assert ended(agent, within) == "DONE" and heard(agent) == {"alone": [b"self"]}
    memory.expect(2 * BLOCK, memory.expected[:BLOCK])
    memory.check()

    path = tmp_path / "kv.bin"
    path.write_bytes(bytes(3 * BLOCK))
    with open(path, "r+b") as file:
        fd = file.fileno()
        agent.register_memory([(0, 3 * BLOCK, fd, str(path))], "FILE")
        here = agent.prep_xfer_dlist("", blocks(memory, 4), "DRAM")
        there = agent.prep_xfer_dlist("alone", [(i * BLOCK, BLOCK, fd) for i in range(3)], "FILE")
        out = agent.make_prepped_xfer("WRITE", here, [3, 1], there, [0, 2])
        agent.transfer(out)
        assert ended(agent, out) == "DONE" and agent.query_xfer_backend(out) == "POSIX"
        data = path.read_bytes()
        assert data[:BLOCK] == memory.expected[3 * BLOCK :] and data[BLOCK : 2 * BLOCK] == bytes(BLOCK)
        assert data[2 * BLOCK :] == memory.expected[BLOCK : 2 * BLOCK]
        back = agent.make_prepped_xfer("READ", here, [0], there, [2])
        agent.transfer(back)
        assert ended(agent, back) == "DONE"
        memory.expect(0, data[2 * BLOCK :])
        memory.check()
        with pytest.raises(nixl.nixlNotSupportedError, match="remote side"):
            agent.prep_xfer_dlist("", [(0, 1, fd)], "FILE")
    known = agent.query_memory([(0, 0, 0, str(path)), (0, 0, 0, str(tmp_path / "none"))], "POSIX", "FILE")
    assert known[0] is not None and known[0]["size"] == str(3 * BLOCK) and known[1] is None
    held = agent.query_memory([(address(memory), 8, 0, ""), (8, 8, 0, "")], "UCX", "DRAM")
    assert held == [{}, None]


def test_long_notifications_are_split_and_joined(agents: Agents, seed: int) -> None:
    one, two = agents("one"), agents("two")
    ours, theirs = Memory(BLOCK, seed), Memory(BLOCK, seed + 1)
    for agent, memory in ((one, ours), (two, theirs)):
        register(agent, memory)
    one.add_remote_agent(two.get_agent_metadata())
    descs = [(address(ours), BLOCK, 0)], [(address(theirs), BLOCK, 0)]
    lists = [one.get_xfer_descs(listed, "DRAM") for listed in descs]
    for size in (messages.MESSAGE_MAX, messages.MESSAGE_MAX + 1, 5_000_000, messages.LONGEST):
        message = pattern(seed, 0, size)
        handle = one.initialize_xfer("WRITE", *lists, "two")
        one.transfer(handle, message)
        assert heard(two) == {"one": [message]}, size  # a queue holds an eighth of 64 MiB of one sender
        assert ended(one, handle) == "DONE"
        one.send_notif("two", message)
        assert heard(two) == {"one": [message]}, size
    with pytest.raises(nixl.nixlInvalidParamError, match="at most 16777216"):
        one.send_notif("two", bytes(messages.LONGEST + 1))
    theirs.expect(0, ours.expected)
    theirs.check()


def test_parts_join_in_any_order_and_incomplete_messages_are_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    draw, joiner = random.Random(seed), messages.Joiner()

    def note(part: messages.Part, peer: str = "10.0.0.1:7") -> Notification:
        return Notification(part[0].decode("utf-8", "surrogateescape"), part[1], peer)

    whole = [draw.randbytes(200_000), draw.randbytes(70_000), b"short"]
    every = [note(part) for message in whole for part in messages.parts("agent", message)]
    draw.shuffle(every)
    found = joiner.take(every)
    assert sorted(found["agent"]) == sorted(whole)
    # A lost part keeps its message away, and nothing else.
    lossy = [note(part) for part in messages.parts("agent", whole[0])[1:]]
    assert joiner.take(lossy) == {} and joiner.take([note((b"agent", b"next"))]) == {"agent": [b"next"]}
    # As many are open as there is room for.
    many = [messages.parts("agent", draw.randbytes(70_000)) for _ in range(200)]
    assert joiner.take([note(parts[0]) for parts in many]) == {} == joiner.take([note(parts[0]) for parts in many])
    assert joiner.take([note(parts[1]) for parts in many])["agent"] == [b"".join(d for _, d in parts) for parts in many]
    (lost,) = joiner._open.values()
    assert lost.bytes == sum(len(piece.data) + messages._PART_COST for piece in lossy)
    monkeypatch.setattr(messages, "_JOINED_MOST", 1 << 20)
    with caplog.at_level(logging.ERROR, "tent.compat.nixl"):
        for size in (messages.MESSAGE_MAX, 0):  # parts without bytes count too
            for _ in range(2000):
                name, data = messages.parts("agent", whole[1])[0]
                joiner.take([note((name, data[:size]))])
                assert sum(len(parts) for _, parts in lost.messages.values()) * messages._PART_COST <= 1 << 20
    assert "a notification of agent at 10.0.0.1:7 is dropped: 3 of its parts came" in caplog.text
    for i in range(2 * messages._AGENTS_MOST):  # made-up names fill nothing
        joiner.take([note(messages.parts(f"agent{i}", whole[1])[0])])
    assert len(joiner._open) <= messages._AGENTS_MOST + 1
    monkeypatch.setattr(messages, "_ALL_MOST", 2 << 20)  # however many names their sender takes
    for i in range(100):
        joiner.take([note(messages.parts(f"agent{i}", whole[1])[0])])
        held = [begun.bytes for begun in joiner._open.values()]
        assert joiner._bytes == sum(held) and (i == 0 or sum(held) <= 2 << 20)
    for i in range(100):
        joiner.forget(f"agent{i}")
    for broken in (b"agent\0", b"agent\0" + bytes(3), b"agent\0" + messages._TAIL.pack(1, 5, 5)):
        assert joiner.take([note((broken, b"x"))]) == {}
    # A part that says another number of parts than those before it is none of the message.
    first, second = messages.parts("agent", whole[1])
    number, _, _ = messages._TAIL.unpack(first[0][-messages._TAIL.size :])
    lies = [(b"agent\0" + messages._TAIL.pack(number, i, n), b"x") for i, n in ((4, 5), (1, 1 + 2), (0, 1))]
    assert joiner.take(map(note, (first, *lies, second))) == {"agent": [whole[1]]}
    assert joiner.take(map(note, lies)) == {}


def test_a_killed_peer_is_an_error_and_its_successor_is_met_again(
    agents: Agents, sides: Any, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    agent, memory = agents("d"), Memory(16 * BLOCK, seed)
    register(agent, memory)
    first = sides("p", 16 * BLOCK)
    agent.add_remote_agent(first.metadata)
    local = agent.prep_xfer_dlist("", blocks(memory, 16), "DRAM")

    def read(side: Side) -> nixl.nixl_xfer_handle:
        rows = [(side.address + i * BLOCK, BLOCK, 0) for i in range(16)]
        remote = agent.prep_xfer_dlist("p", rows, "DRAM")
        return agent.make_prepped_xfer("READ", local, list(range(16)), remote, list(range(16)), b"read")

    handle = read(first)
    agent.transfer(handle)
    assert ended(agent, handle) == "DONE" and first.ask("notes") == {"d": ["read"]}
    memory.expect(0, bytes.fromhex(first.ask("bytes")))
    memory.check()
    first.process.kill()
    first.process.wait(10)
    with caplog.at_level(logging.ERROR, "tent.compat.nixl"):
        try:
            agent.transfer(handle)
        except nixl.nixlRemoteDisconnectError as error:
            assert error.__cause__ is handle.error
        else:
            assert ended(agent, handle) == "ERR"
            assert agent.check_xfer_state(handle) == "ERR"  # told again, logged once
    failures = [record for record in caplog.records if "a transfer with p has failed" in record.getMessage()]
    assert len(failures) == 1 and "PEER_" in failures[0].getMessage()
    agent.release_xfer_handle(handle)
    assert not agent.check_remote_metadata("p")
    with pytest.raises(nixl.nixlRemoteDisconnectError):
        agent.make_connection("p")
    second = sides("p", 16 * BLOCK)
    assert agent.add_remote_agent(second.metadata) == b"p" and agent.check_remote_metadata(b"p")
    handle = read(second)
    agent.transfer(handle)
    assert ended(agent, handle) == "DONE"
    memory.check()  # the same bytes


class Stopped:
    """An agent that reads all of its memory from a peer that stands still."""

    def __init__(self, agents: Agents, sides: Any, seed: int, n: int = 2048) -> None:
        self.agent = agents("d", options={"config": {"transports": {"shm": {"enable": False}}}})
        self.memory = Memory(n * BLOCK, seed)
        self.registered = register(self.agent, self.memory)
        self._side = sides("p", n * BLOCK)
        self.agent.add_remote_agent(self._side.metadata)
        local = self.agent.prep_xfer_dlist("", blocks(self.memory, n), "DRAM")
        rows = [(self._side.address + i * BLOCK, BLOCK, 0) for i in range(n)]
        self._operands = local, np.arange(n), self.agent.prep_xfer_dlist("p", rows, "DRAM"), np.arange(n)
        self._side.process.send_signal(signal.SIGSTOP)

    def begin(self) -> nixl.nixl_xfer_handle:
        handle = self.agent.make_prepped_xfer("READ", *self._operands)
        assert self.agent.transfer(handle) == "PROC"
        return handle

    def check(self) -> None:
        """Nothing that the peer does later changes the memory."""
        self.memory.fill(self.memory.seed + 1)
        self._side.process.send_signal(signal.SIGCONT)
        assert self._side.ask("notes") == {}  # it runs again, and has answered everything before this
        self.memory.check()


def test_release_cancels_a_transfer_with_a_stopped_peer(agents: Agents, sides: Any, seed: int) -> None:
    """When release returns, the memory is the caller's."""
    stopped = Stopped(agents, sides, seed)
    agent, handle = stopped.agent, stopped.begin()
    with pytest.raises(nixl.nixlRepostActiveError):
        agent.transfer(handle)
    agent.release_xfer_handle(handle)
    agent.release_xfer_handle(handle)
    stopped.check()
    with pytest.raises(nixl.nixlNotFoundError):
        agent.transfer(handle)


def test_a_dropped_handle_is_cancelled(agents: Agents, sides: Any, seed: int) -> None:
    stopped = Stopped(agents, sides, seed)
    for keeps_transfer in (True, False):
        handle = stopped.begin()
        transfers = list(handle._sent) if keeps_transfer else []
        del handle
        for transfer in transfers:
            assert transfer.wait(30) == tent.TransferStatusEnum.CANCELED
    stopped.agent.deregister_memory(stopped.registered)
    stopped.check()


def test_metadata_goes_over_a_socket(agents: Agents, caplog: pytest.LogCaptureFixture) -> None:
    one, two = agents("one", enable_listen_thread=True, listen_port=0), agents("two")
    assert one._listener is not None
    port = one._listener.port
    two.fetch_remote_metadata("one", "127.0.0.1", port)
    assert two.check_remote_metadata("one") and not one.check_remote_metadata("two")
    two.send_local_metadata("127.0.0.1", port)
    assert one.check_remote_metadata("two")
    with pytest.raises(nixl.nixlNotFoundError, match="is 'one', not 'three'"):
        two.fetch_remote_metadata("three", "127.0.0.1", port)
    two.invalidate_local_metadata("127.0.0.1", port)
    assert not one.check_remote_metadata("two")
    with pytest.raises(nixl.nixlNotSupportedError, match="metadata servers"):
        two.send_local_metadata()
    one.close()
    two.remove_remote_agent("one")
    with caplog.at_level(logging.WARNING, "tent.compat.nixl"):  # a caller asks again: nobody may listen yet
        two.fetch_remote_metadata("one", "127.0.0.1", port)
        two.send_local_metadata("127.0.0.1", port)
        two.invalidate_local_metadata("127.0.0.1", port)
    assert [f"127.0.0.1:{port}" in record.getMessage() for record in caplog.records] == [True] * 3
    assert not two.check_remote_metadata("one")


def test_partial_metadata_names_what_it_is_given(agents: Agents, seed: int) -> None:
    one, two = agents("one"), agents("two")
    memories = [Memory(BLOCK, seed + i) for i in range(3)]
    listed = [register(one, m) for m in memories[:2]]
    two.add_remote_agent(one.get_partial_agent_metadata(listed[0], inc_conn_info=True))
    assert two.check_remote_metadata("one", listed[0].trim())
    assert two.check_remote_metadata("one", listed[1].trim())  # the owner is asked for ranges that it did not name
    unknown = two.get_xfer_descs([(address(memories[2]), BLOCK, 0)], "DRAM")
    assert not two.check_remote_metadata("one", unknown)
    for listing in listed:  # the last one, too, behind which nothing asks the owner anew
        one.deregister_memory(listing)
        assert not two.check_remote_metadata("one", listing.trim())
    assert two.check_remote_metadata("one")
    with pytest.raises(nixl.nixlNotFoundError):
        one.get_partial_agent_metadata(two.get_reg_descs([(address(memories[2]), BLOCK, 0, "")], "DRAM"))


def test_notifications_are_kept_until_they_are_looked_for(agents: Agents) -> None:
    one, two = agents("one"), agents("two")
    one.add_remote_agent(two.get_agent_metadata())
    for message in (b"a:1", b"b:2", "a:3"):
        one.send_notif("two", message)
    seen = 0
    while seen < 3:
        seen = sum(map(len, two.update_notifs().values()))
    assert two.check_remote_xfer_done("one", b"b")
    assert not two.check_remote_xfer_done("one", b"b")
    assert two.check_remote_xfer_done(b"one", "3", tag_is_prefix=False)
    assert not two.check_remote_xfer_done("nobody", b"a")
    assert two.update_notifs() == {"one": [b"a:1"]}
    two.notifs = {}
    assert two.notifs == two.update_notifs() == {}


def test_many_threads_use_one_agent(agents: Agents, seed: int) -> None:
    one, two = agents("one"), agents("two")
    n = 64
    ours, theirs = Memory(n * BLOCK, seed), Memory(n * BLOCK, seed + 1)
    for agent, memory in ((one, ours), (two, theirs)):
        register(agent, memory)
    one.add_remote_agent(two.get_agent_metadata())
    local = one.prep_xfer_dlist("", blocks(ours, n), "DRAM")
    remote = one.prep_xfer_dlist("two", blocks(theirs, n), "DRAM")
    failures: list[BaseException] = []

    def work(mine: int) -> None:
        try:
            for i in range(mine, n, 4):
                handle = one.make_prepped_xfer("WRITE", local, [i], remote, [n - 1 - i], f"{i}".encode())
                one.transfer(handle)
                assert ended(one, handle) == "DONE"
                one.release_xfer_handle(handle)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    told = heard(two, n)["one"]
    assert sorted(told, key=int) == [f"{i}".encode() for i in range(n)]
    for i in range(n):
        theirs.expect((n - 1 - i) * BLOCK, ours.expected[i * BLOCK : (i + 1) * BLOCK])
    theirs.check()


def test_what_is_wrong_is_named(agents: Agents, seed: int) -> None:
    agent, memory, local, own, xfer = prepared(agents, seed)
    wrong: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (nixl.nixlMismatchError, "the real NIXL", lambda: agent.add_remote_agent(b"\x00nixl")),
        (nixl.nixlNotFoundError, "'c' is not known", lambda: agent.send_notif("c", b"x")),
        (nixl.nixlNotFoundError, "no backend 'OBJ'", lambda: agent.create_backend("OBJ")),
        (nixl.nixlNotFoundError, "was not created", lambda: agent.send_notif("b", b"x", backend="GDS")),
        (nixl.nixlInvalidParamError, "COPY", lambda: agent.make_prepped_xfer("COPY", local, [0], own, [0])),
        (nixl.nixlNotSupportedError, "prep_mem_view", lambda: agent.prep_mem_view(xfer)),
        (nixl.nixlNotPostedError, "not posted", lambda: agent.check_xfer_state(handle)),
        (nixl.nixlNoTelemetryError, "capture_telemetry", lambda: agent.get_xfer_telemetry(handle)),
        (nixl.nixlInvalidParamError, "1 to 128 bytes", lambda: agents("x" * 129)),
        (TypeError, "a str, not int", lambda: agents(7)),
        (TypeError, "bytes-like", lambda: agent.send_notif("a", 5)),  # bytes(5) are five zeros
        (nixl.nixlNotSupportedError, "BLOCK", lambda: agent.register_memory([(0, 8, 0, "")], "BLOCK")),
        (tent.InvalidArgumentError, "priority", lambda: agents("y", options={"priority": "urgent"})),
        (tent.InvalidArgumentError, "'prio' is unknown", lambda: agents("y", options={"prio": 1})),
    ]
    handle = agent.make_prepped_xfer("READ", local, [0], own, [1])
    for kind, words, call in wrong:
        with pytest.raises(kind, match=words):
            call()
    memory.check()


def test_terms_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setenv("TENT_COMPAT", '{"priority": "low", "timeout": 20, "integrity": "crc32c"}')
    one, two = nixl.nixl_agent("one"), nixl.nixl_agent("two")
    try:
        ours, theirs = Memory(BLOCK, seed), Memory(BLOCK, seed + 1)
        for agent, memory in ((one, ours), (two, theirs)):
            register(agent, memory)
        one.add_remote_agent(two.get_agent_metadata())
        lists = [one.get_xfer_descs(blocks(m, 1), "DRAM") for m in (ours, theirs)]
        handle = one.initialize_xfer("WRITE", *lists, "two")
        one.transfer(handle)
        assert ended(one, handle) == "DONE"
        theirs.expect(0, ours.expected)
        theirs.check()
        checked = [v for k, v in one.engine.metrics().items() if k.startswith("tent_class_bytes_total") and "low" in k]
        assert sum(checked) == BLOCK or not checked
    finally:
        one.close()
        two.close()
    for text, words in (("{", "not JSON"), ("[]", "JSON object"), ('{"timeout": -1}', "timeout")):
        monkeypatch.setenv("TENT_COMPAT", text)
        with pytest.raises(Exception, match=words):
            nixl.nixl_agent("one")


def test_handles_of_another_kind_are_refused(agents: Agents) -> None:
    agent = agents("a")
    for call in (agent.transfer, agent.check_xfer_state, agent.release_xfer_handle, agent.release_dlist_handle):
        with pytest.raises(TypeError, match="is needed"):
            call(7)
    assert handles.RELEASE_LIMIT > 1 and os.getpid()
