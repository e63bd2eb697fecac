"""The local side of tent's NIXL agent: names, ranges and files, registered all or none and taken back all or none."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from nixl_agents import BLOCK, Agents, address, ended, register  # noqa: E402

import tent  # noqa: E402
from tent.compat import nixl  # noqa: E402
from tent.testing import Memory  # noqa: E402

pytestmark = pytest.mark.adapters


@pytest.mark.parametrize("name", ["", "x" * 129, "\0", "a\0b", "end\0", "\ud800"])
def test_a_name_that_does_not_fit_is_refused(agents: Agents, name: str) -> None:
    with pytest.raises(nixl.nixlInvalidParamError, match="1 to 128 bytes"):
        agents(name)


def test_a_name_may_have_any_other_text(agents: Agents) -> None:
    for name in ("x" * 128, "a\\0b", "décode 解码 😀", "a/b c"):
        assert agents("peer").add_remote_agent(agents(name).get_agent_metadata()) == name.encode()


def test_metadata_with_a_wrong_name_is_refused(agents: Agents) -> None:
    one, two = agents("one"), agents("two")
    for wrong in (b'"t\\u0000o"', b'""', b'"' + b"x" * 129 + b'"'):
        with pytest.raises(nixl.nixlInvalidParamError, match="1 to 128 bytes"):
            one.add_remote_agent(two.get_agent_metadata().replace(b'"two"', wrong))


def test_ranges_leave_all_or_none(agents: Agents, seed: int) -> None:
    one, two = agents("one"), agents("two")
    ours, theirs = Memory(BLOCK, seed), Memory(2 * BLOCK, seed + 1)
    register(one, ours)
    first, second = ([(address(theirs) + i * BLOCK, BLOCK, 0, "")] for i in range(2))
    two.register_memory(first, "DRAM")
    one.add_remote_agent(two.get_agent_metadata())
    lists = [one.get_xfer_descs([(address(m), BLOCK, 0)], "DRAM") for m in (ours, theirs)]
    handle = one.initialize_xfer("WRITE", *lists, "two")
    for wrong in (first + second, first + first):
        with pytest.raises(nixl.nixlNotFoundError, match="not registered"):
            two.deregister_memory(two.get_reg_descs(wrong, "DRAM"))
    one.transfer(handle)
    assert ended(one, handle) == "DONE"
    theirs.expect(0, ours.expected)
    two.deregister_memory(two.get_reg_descs(first, "DRAM"))
    with pytest.raises(nixl.nixlNotFoundError, match="not registered"):
        two.deregister_memory(two.get_reg_descs(first, "DRAM"))
    theirs.check()


def test_ranges_that_are_not_back_in_time_stay_registered(
    agents: Agents, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = agents("one"), agents("two")
    memory, source = Memory(3 * BLOCK, seed), Memory(BLOCK, seed + 1)
    register(one, source)
    ranges = [(address(memory) + i * BLOCK, BLOCK, 0, "") for i in range(3)]
    descs = two.register_memory(ranges, "DRAM")
    one.add_remote_agent(two.get_agent_metadata())
    close, calls = tent.Region.close, itertools.count()

    def late(region: tent.Region, *arguments: Any) -> None:
        if next(calls) == 0:
            raise TimeoutError("a peer is inside")
        close(region, *arguments)

    with monkeypatch.context() as patch, pytest.raises(nixl.nixlNotAllowedError, match="a peer is inside"):
        patch.setattr(tent.Region, "close", late)
        two.deregister_memory(descs)
    for i in 1, 2:  # they are not open because the first one is late
        with contextlib.suppress(nixl.nixlNotFoundError):  # at once, behind the first refusal
            handle = one.initialize_xfer(
                "WRITE",
                one.get_xfer_descs([(address(source), BLOCK, 0)], "DRAM"),
                one.get_xfer_descs([ranges[i][:3]], "DRAM"),
                "two",
            )
            one.transfer(handle)
            assert ended(one, handle) == "ERR"
    backend = next(iter(two.backends))
    assert two.query_memory(ranges, backend, "DRAM") == [{}, None, None]
    two.deregister_memory(two.register_memory(ranges[1:], "DRAM"))
    with pytest.raises(nixl.nixlNotFoundError, match="not registered"):
        two.deregister_memory(descs)
    two.deregister_memory(two.get_reg_descs(ranges[:1], "DRAM"))
    assert two.query_memory(ranges, backend, "DRAM") == [None, None, None]
    memory.check()


def test_a_range_without_bytes_is_registered_and_holds_nothing(agents: Agents, seed: int) -> None:
    agent, memory = agents("a"), Memory(BLOCK, seed)
    listed = agent.register_memory([(address(memory), 0, 0, ""), (address(memory), BLOCK, 0, "")], "DRAM")
    assert agent.get_partial_agent_metadata(listed)
    agent.deregister_memory(listed)
    with pytest.raises(nixl.nixlNotFoundError):
        agent.deregister_memory(listed)
