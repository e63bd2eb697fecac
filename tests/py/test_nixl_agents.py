"""Agents that tent's NIXL agent knows: added by several threads, added again, and left."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("numpy")

from nixl_agents import BLOCK, Agents, Side, blocks, ended, heard, register

from tent.compat.nixl import mailbox, nixl_agent, nixlBind, nixlRemoteDisconnectError, remotes
from tent.testing import Memory

pytestmark = pytest.mark.adapters


def written(agent: nixl_agent, local: Any, remote: Any) -> str:
    """The state of a write of the first block, after its end."""
    handle = agent.make_prepped_xfer("WRITE", local, [0], remote, [0])
    agent.transfer(handle)
    return ended(agent, handle)


def test_lists_stay_usable_when_their_agent_is_added_again(
    agents: Agents, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """LMCache adds an agent from two threads at once: one dials and one answers."""
    one, two = agents("one"), agents("two")
    ours, theirs = Memory(BLOCK, seed), Memory(BLOCK, seed + 1)
    for agent, memory in ((one, ours), (two, theirs)):
        register(agent, memory)
    metadata = two.get_agent_metadata()
    local = one.prep_xfer_dlist("", blocks(ours, 1), "DRAM")
    one.add_remote_agent(metadata)
    lists = [one.prep_xfer_dlist("two", blocks(theirs, 1), "DRAM")]
    monkeypatch.setattr(remotes._Remote, "lives", lambda self: False)  # it pauses
    gate = threading.Barrier(4)

    def meet() -> None:
        gate.wait(10)
        lists.append(one.prep_xfer_dlist(one.add_remote_agent(metadata), blocks(theirs, 1), "DRAM"))

    threads = [threading.Thread(target=meet) for _ in range(gate.parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [written(one, local, remote) for remote in lists] == ["DONE"] * 5
    theirs.expect(0, ours.expected)
    theirs.check()


def test_an_agent_that_stands_still_is_added_and_one_that_has_ended_is_not(
    agents: Agents, sides: Callable[[str, int], Side], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang's bootstrap thread and LMCache's channel server add agents, and end with an error."""
    monkeypatch.setattr(remotes, "_MEET_LIMIT", 0.1)
    agent, memory = agents("d"), Memory(BLOCK, seed)
    register(agent, memory)
    stopped, killed = sides("stopped", BLOCK), sides("killed", BLOCK)
    stopped.process.send_signal(signal.SIGSTOP)
    assert agent.add_remote_agent(stopped.metadata) == b"stopped"
    stopped.process.send_signal(signal.SIGCONT)
    local = agent.prep_xfer_dlist("", blocks(memory, 1), "DRAM")
    assert written(agent, local, agent.prep_xfer_dlist("stopped", [(stopped.address, BLOCK, 0)], "DRAM")) == "DONE"
    assert bytes.fromhex(stopped.ask("bytes")) == bytes(memory.view)
    killed.process.kill()
    killed.process.wait(10)
    with pytest.raises(nixlRemoteDisconnectError):
        agent.add_remote_agent(killed.metadata)
    assert not agent.check_remote_metadata("killed")


def test_a_silent_agent_takes_no_place_of_one_that_lives(
    agents: Agents, sides: Callable[[str, int], Side], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remotes, "_MEET_LIMIT", 0.1)
    agent, memory = agents("d"), Memory(BLOCK, seed)
    register(agent, memory)
    local = agent.prep_xfer_dlist("", blocks(memory, 1), "DRAM")
    living, silent = sides("p", BLOCK), sides("p", BLOCK)
    agent.add_remote_agent(living.metadata)
    remote = agent.prep_xfer_dlist("p", [(living.address, BLOCK, 0)], "DRAM")
    silent.process.send_signal(signal.SIGSTOP)
    with pytest.raises(nixlRemoteDisconnectError):
        agent.add_remote_agent(silent.metadata)
    assert written(agent, local, remote) == "DONE"
    silent.process.send_signal(signal.SIGCONT)
    assert agent.add_remote_agent(silent.metadata) == b"p"
    remote = agent.prep_xfer_dlist("p", [(silent.address, BLOCK, 0)], "DRAM")
    assert written(agent, local, remote) == "DONE"
    for side in (living, silent):
        assert bytes.fromhex(side.ask("bytes")) == bytes(memory.view)


def test_an_agent_that_answers_and_that_no_transport_reaches_is_not_added(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_MEET_LIMIT", "CONNECT_LIMIT"):
        monkeypatch.setattr(remotes, limit, 0.1)
    one, two = (
        agents(name, options={"config": {"transports": {off: {"enable": False} for off in ("rdma", *others)}}})
        for name, others in (("one", ("shm",)), ("two", ("tcp",)))
    )
    metadata = two.get_agent_metadata()
    with pytest.raises(nixlRemoteDisconnectError, match="tcp"):
        one.add_remote_agent(metadata)
    assert not one.check_remote_metadata("two")


def test_a_post_without_a_message_sends_that_of_the_last_one(agents: Agents, seed: int) -> None:
    agent, memory = agents("a"), Memory(2 * BLOCK, seed)
    register(agent, memory)
    local = agent.prep_xfer_dlist("", blocks(memory, 2), "DRAM")
    agent.add_remote_agent(agent.get_agent_metadata())
    handle = agent.make_prepped_xfer(
        "WRITE", local, [0], agent.prep_xfer_dlist("a", blocks(memory, 2), "DRAM"), [1], b"1"
    )
    for message in (b"", b"2", b""):
        agent.transfer(handle, message)
        assert ended(agent, handle) == "DONE"
    assert heard(agent, 3) == {"a": [b"1", b"2", b"2"]}


def test_the_agent_below_an_agent_has_plug_ins_alone() -> None:
    """SGLang's hicache_nixl.py makes one in the place of that of its nixl_agent."""
    assert nixlBind.NIXL_THREAD_SYNC_RW.value > nixlBind.NIXL_THREAD_SYNC_STRICT.value
    below = nixlBind.nixlAgent("a", nixlBind.nixlAgentConfig())
    assert "POSIX" in below.getAvailPlugins()
    with pytest.raises(AttributeError, match=r"^nixlAgent\.registerMem is not supported: take nixl_agent"):
        below.registerMem()


def test_names_that_are_not_known_are_no_errors_where_upstream_has_none(agents: Agents) -> None:
    agent = agents("a")
    agent.remove_remote_agent("nobody")
    for name in ("nobody", "GDS"):  # the second one was not created
        assert agent.get_backend_mem_types(name) == [] and agent.get_backend_params(name) == {}
    assert agent.get_plugin_mem_types("nobody") == [] and agent.get_plugin_params("nobody") == {}
    assert agent.get_plugin_mem_types("GDS") == ["DRAM_SEG", "VRAM_SEG", "FILE_SEG"]


def test_the_parameters_of_a_backend_are_those_that_it_was_created_with(agents: Agents) -> None:
    """vLLM's tier of kvcr compares them with its own, and refuses others."""
    agent, given = agents("a"), {"ios_pool_size": "4", "use_aio": "true"}
    agent.create_backend("POSIX", given)
    given["use_aio"] = agent.get_backend_params("POSIX")["use_aio"] = "changed"
    agent.create_backend("POSIX", {})
    assert agent.get_backend_params("POSIX") == {"ios_pool_size": "4", "use_aio": "true"}
    assert agent.get_backend_params("UCX") == {}


def test_messages_that_nobody_looks_for_have_a_bound(
    agents: Agents, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The oldest of the agent with the most are dropped, and the log says so; those of others stay."""
    monkeypatch.setattr(mailbox, "KEPT_MOST", 64 * (mailbox.KEPT_COST + 100))
    agent = agents("a")
    box = agent._mailbox
    for number in range(200):
        new = {"loud": [b"%03d" % number + bytes(97)]} | ({"quiet": [b"once"]} if number == 0 else {})
        monkeypatch.setattr(box, "take", lambda new=new: new)
        kept = box.keep()["loud"]
        assert len(kept) <= 64 and kept[-1] == new["loud"][0]
        assert [int(message[:3]) for message in kept] == list(range(number + 1 - len(kept), number + 1))
    assert len(kept) > 48 and box.kept["quiet"] == [b"once"]
    assert "of loud are dropped: nobody has looked for them" in caplog.text
    monkeypatch.setattr(box, "take", dict)
    assert agent.check_remote_xfer_done("loud", b"199") and not agent.check_remote_xfer_done("loud", b"000")
    caplog.clear()
    agent.notifs.clear()  # the program has taken all
    monkeypatch.setattr(box, "take", lambda: {"loud": [bytes(100)] * 60})
    assert len(box.keep()["loud"]) == 60 and not caplog.text
