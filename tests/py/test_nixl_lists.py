"""Descriptor lists of tent's NIXL agent: their forms, prepared lists, strided lists, and lists of indexes."""

from __future__ import annotations

import os
import pickle
import random
import sys
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from nixl_agents import BLOCK, Agents, address, blocks, ended, heard, prepared, register  # noqa: E402

from tent.compat import nixl  # noqa: E402
from tent.compat.nixl import descriptors  # noqa: E402
from tent.testing import Memory  # noqa: E402

pytestmark = pytest.mark.adapters

N = 64  # blocks


def in_some_form(draw: random.Random, memory: Memory, step: int) -> Any:
    """The first blocks of every `step` in a memory, in one of the forms that stacks use."""
    start, n = address(memory), N // step
    match draw.randrange(4):
        case 0:
            return [(start + i * step * BLOCK, BLOCK, 0) for i in range(n)]
        case 1:
            return blocks(memory, N)[::step]
        case 2:
            return nixl.nixlXferDList("DRAM", blocks(memory, N)[::step])
        case _:  # two strided rows: address, length, device, stride, count
            half = n // 2
            first = [start, BLOCK, 0, step * BLOCK, half]
            return np.array([first, [start + half * step * BLOCK, *first[1:4], n - half]], np.uint64)


def chosen(draw: random.Random, listed: list[int]) -> Any:
    """Indexes in one of the forms that stacks use."""
    forms = [
        list,
        tuple,
        np.array,
        lambda given: np.array(given, np.int32),
        iter,
        dict.fromkeys,
        lambda given: dict(zip(given, given)).keys(),
    ]
    return draw.choice(forms)(listed)


def test_indexes_choose_the_blocks_that_move(agents: Agents, seed: int) -> None:
    """Lists in every form against a model: block i of one list is at i times its step."""
    draw = random.Random(seed)
    one, two = agents("one"), agents("two")
    ours, theirs = Memory(N * BLOCK, seed), Memory(N * BLOCK, seed + 1)
    for agent, memory in ((one, ours), (two, theirs)):
        register(agent, memory)
    one.add_remote_agent(two.get_agent_metadata())
    for _ in range(24):
        steps = draw.choice([1, 2, 4]), draw.choice([1, 2, 4])
        local = one.prep_xfer_dlist("", in_some_form(draw, ours, steps[0]), "DRAM")
        remote = one.prep_xfer_dlist("two", in_some_form(draw, theirs, steps[1]), "DRAM")
        assert (local.n, remote.n) == (N // steps[0], N // steps[1])
        n = draw.randint(1, min(local.n, remote.n))
        src, dst = draw.sample(range(local.n), n), draw.sample(range(remote.n), n)
        operation = draw.choice(["READ", "WRITE"])
        handle = one.make_prepped_xfer(operation, local, chosen(draw, src), remote, chosen(draw, dst))
        one.transfer(handle)
        assert ended(one, handle) == "DONE"
        for i, j in zip(src, dst):
            here, there = i * steps[0] * BLOCK, j * steps[1] * BLOCK
            if operation == "READ":
                ours.expect(here, theirs.expected[there : there + BLOCK])
            else:
                theirs.expect(there, ours.expected[here : here + BLOCK])
        ours.check()
        theirs.check()


def test_a_released_list_is_refused_and_its_transfers_go_on(agents: Agents, seed: int) -> None:
    """As upstream, a transfer has its ranges from when it is made, and may be posted again. The engine's lists end with
    it."""
    agent, memory = agents("a"), Memory(4 * BLOCK, seed)
    register(agent, memory)
    local, own = (agent.prep_xfer_dlist(name, blocks(memory, 4), "DRAM") for name in ("", "a"))
    lists = [weakref.ref(handle.list.addresses) for handle in (local, own)]
    handles = [agent.make_prepped_xfer("WRITE", local, [i], own, [i + 2]) for i in range(2)]
    for handle in (local, own, local):
        agent.release_dlist_handle(handle)
    assert repr(local).endswith("released>")
    with pytest.raises(nixl.nixlInvalidParamError, match="released"):
        agent.make_prepped_xfer("WRITE", local, [0], own, [3])
    for i, handle in enumerate(handles):
        for _ in range(2):
            agent.transfer(handle)
            assert ended(agent, handle) == "DONE"
        memory.expect((i + 2) * BLOCK, memory.expected[i * BLOCK : (i + 1) * BLOCK])
        assert all(known() for known in lists)
        agent.release_xfer_handle(handle)
    assert not any(known() for known in lists), "they are the engine's no more"
    memory.check()


def test_descriptor_lists_are_those_of_upstream() -> None:
    listed = nixl.nixlXferDList("DRAM", [(1, 2, 0), (5, 6, 1)])
    assert (listed.getType(), listed.descCount(), len(listed), listed.isEmpty()) == (0, 2, 2, False)
    assert listed[1] == (5, 6, 1) == list(listed)[1] and listed.index((5, 6, 1)) == 1
    assert listed.getType().name == "DRAM_SEG" and listed.getType() is nixl.nixlBind.DRAM_SEG
    with pytest.raises(nixl.nixlNotFoundError):
        listed.index((9, 9, 9))
    listed[0] = (7, 7, 7)
    listed.append((8, 8, 8))
    listed.remDesc(1)
    assert list(listed) == [(7, 7, 7), (8, 8, 8)]
    assert descriptors.deserialized(listed.serialized()) == listed != nixl.nixlXferDList("VRAM", listed.rows)
    listed.clear()
    assert listed.isEmpty() and repr(listed) == "<nixlXferDList DRAM: 0 descriptors>"
    registered = nixl.nixlRegDList("FILE", [(0, 10, 3, "path"), (0, 4, 4, "")])
    assert list(registered) == [(0, 10, 3, b"path"), (0, 4, 4, b"")]
    assert list(registered.trim()) == [(0, 10, 3), (0, 4, 4)]
    assert registered.index((0, 4, 4, "whichever")) == 1
    registered.remDesc(0)
    assert list(registered) == [(0, 4, 4, b"")]
    registered.append((0, 5, 5, "more"))
    registered.addDesc((0, 6, 6))
    registered[0] = (0, 7, 7)
    for wrong in ((0, 8), (0, -1, 8, "text")):  # and its rows and texts stay in step
        with pytest.raises(nixl.nixlInvalidParamError):
            registered.append(wrong)
    want = [(0, 7, 7, b""), (0, 5, 5, b"more"), (0, 6, 6, b"")]
    assert list(registered) == want == list(descriptors.deserialized(registered.serialized()))
    assert list(nixl.nixlRegDList("FILE", [row[:3] for row in want]).texts) == [""] * 3
    assert registered == nixl.nixlRegDList(type="FILE", descs=want) != nixl.nixlRegDList("FILE", registered.trim().rows)
    registered.clear()
    assert registered.isEmpty() and not registered.texts
    raw = nixl.nixlRegDList("FILE", [(0, 1, 3, b"rw:/\xff")])
    assert raw[0] == (0, 1, 3, b"rw:/\xff") and os.fsencode(raw.texts[0]) == b"rw:/\xff"
    assert descriptors.deserialized(raw.serialized()) == raw == pickle.loads(pickle.dumps(raw))
    remote = nixl.nixlRemoteDList("DRAM", [(1, 2, 3, "agent")])
    assert remote[0] == (1, 2, 3, "agent") and remote == nixl.nixlRemoteDList(type="DRAM", descs=[remote[0]])
    for kind in (nixl.nixlXferDList, nixl.nixlRegDList, nixl.nixlRemoteDList):
        assert kind("DRAM", 2).descCount() == kind(type="DRAM", init_size=2).descCount() == 2
        assert kind("DRAM", 0) == kind("DRAM") and kind("DRAM", 1)[0][:3] == (0, 0, 0)
    with pytest.raises(nixl.nixlInvalidParamError):
        descriptors.deserialized(nixl.nixlXferDList("DRAM", [(1, 2, 3)]).serialized()[:-1])


def test_a_list_to_register_keeps_its_texts_on_its_way() -> None:
    listed = nixl.nixlRegDList("DRAM", [(1, 2, 3, "one"), (4, 5, 6, ""), (7, 8, 9, "zwölf")])
    received = descriptors.deserialized(listed.serialized())
    assert isinstance(received, nixl.nixlRegDList) and list(received) == list(listed)
    assert descriptors.deserialized(listed.trim().serialized()) == listed.trim()
    for empty in (nixl.nixlXferDList("DRAM"), nixl.nixlRegDList("VRAM")):
        assert descriptors.deserialized(empty.serialized()) == empty
    for wrong in (
        listed.serialized()[:-1],
        listed.serialized() + b"1",
        nixl.nixlRegDList("DRAM", []).serialized()[:-1],
    ):
        with pytest.raises(nixl.nixlInvalidParamError):
            descriptors.deserialized(wrong)


def test_a_list_has_its_rows_to_itself() -> None:
    """Stacks fill one array again and again."""
    rows = np.array([[4096, 64, 0], [8192, 64, 0]], np.uint64)
    listed, registered, remote = (
        kind("DRAM", rows) for kind in (nixl.nixlXferDList, nixl.nixlRegDList, nixl.nixlRemoteDList)
    )
    trimmed = registered.trim()
    rows[:] = 1
    trimmed[0] = (9, 9, 9)
    assert listed[0] == remote[0][:3] == (4096, 64, 0) and registered[0] == (4096, 64, 0, b"")
    assert list(trimmed) == [(9, 9, 9), (8192, 64, 0)]
    received = descriptors.deserialized(listed.serialized())
    received[0] = (7, 7, 7)  # and can be changed
    assert list(received) == [(7, 7, 7), (8192, 64, 0)]


@pytest.mark.parametrize("counts", [[1 << 62], [1 << 63], [(1 << 64) - 1], [1 << 24, 1], [1 << 62] * 4])
def test_a_strided_list_that_is_too_long_is_refused(agents: Agents, counts: list[int]) -> None:
    rows = np.array([[4096, 8, 0, 8, count] for count in counts], np.uint64)
    with pytest.raises(nixl.nixlInvalidParamError, match=f"{sum(counts)} ranges: at most 16777216"):
        agents("a").prep_xfer_dlist("", rows, "DRAM")


@pytest.mark.parametrize("prepared", [True, False])
def test_ranges_without_bytes_have_their_index_and_move_nothing(agents: Agents, seed: int, prepared: bool) -> None:
    draw = random.Random(seed)
    one, two = agents("one", capture_telemetry=True), agents("two")
    ours, theirs = Memory(N * BLOCK, seed), Memory(N * BLOCK, seed + 1)
    for agent, memory in ((one, ours), (two, theirs)):
        register(agent, memory)
    one.add_remote_agent(two.get_agent_metadata())
    sizes = [draw.choice([0, BLOCK]) for _ in range(N)]
    for chosen_ones in (
        draw.sample(range(N), 20),
        [i for i in range(N) if not sizes[i]],  # nothing moves
        [i for i in range(N) if sizes[i]],
    ):
        rows = [[(address(m) + i * BLOCK, sizes[i], 0) for i in range(N)] for m in (ours, theirs)]
        if prepared:
            local, remote = one.prep_xfer_dlist("", rows[0], "DRAM"), one.prep_xfer_dlist("two", rows[1], "DRAM")
            handle = one.make_prepped_xfer("WRITE", local, chosen_ones, remote, chosen_ones, b"done")
        else:
            here, there = (one.get_xfer_descs([listed[i] for i in chosen_ones], "DRAM") for listed in rows)
            handle = one.initialize_xfer("WRITE", here, there, "two", b"done")
        with pytest.raises(nixl.nixlNotPostedError):
            one.check_xfer_state(handle)
        one.transfer(handle)
        assert ended(one, handle) == "DONE" and heard(two) == {"one": [b"done"]}
        assert one.get_xfer_telemetry(handle).totalBytes == sum(sizes[i] for i in chosen_ones)
        for i in chosen_ones:
            theirs.expect(i * BLOCK, ours.expected[i * BLOCK : i * BLOCK + sizes[i]])
        theirs.check()
        one.release_xfer_handle(handle)


def test_a_transfer_of_nothing_is_done(agents: Agents, seed: int) -> None:
    agent, memory = agents("a", capture_telemetry=True), Memory(2 * BLOCK, seed)
    register(agent, memory)
    local, own = (
        agent.prep_xfer_dlist(n, [(address(memory), 0, 0), (address(memory), 8, 0)], "DRAM") for n in ("", "a")
    )
    handle = agent.make_prepped_xfer("WRITE", local, [0], own, [0])
    assert agent.transfer(handle) == agent.transfer(handle) == agent.check_xfer_state(handle) == "DONE"
    assert agent.get_xfer_telemetry(handle).totalBytes == 0 and "DONE" in repr(handle)
    with pytest.raises(nixl.nixlInvalidParamError, match="without bytes"):
        agent.transfer(agent.make_prepped_xfer("WRITE", local, [0], own, [1]))
    agent.release_xfer_handle(handle)
    agent.release_dlist_handle(local)
    memory.check()


class Tensor:
    """The least that is a tensor, where there is no torch."""

    def __init__(self, array: Any, kind: str = "cpu", index: int = -1, contiguous: bool = True) -> None:
        self.array, self.device, self.contiguous = array, SimpleNamespace(type=kind, index=index), contiguous
        self.data_ptr: Callable[[], int] = lambda: int(array.ctypes.data)
        self.numel: Callable[[], int] = lambda: int(array.size)
        self.element_size: Callable[[], int] = lambda: int(array.itemsize)
        self.get_device: Callable[[], int] = lambda: index
        self.is_contiguous: Callable[[], bool] = lambda: contiguous


def test_tensors_are_their_bytes_on_their_device(agents: Agents, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor))
    draw = np.random.default_rng(seed)
    ours, theirs = ([draw.random(n).astype(kind) for n, kind in ((300, "f4"), (77, "f8"))] for _ in range(2))
    one, two = agents("one"), agents("two")
    for agent, arrays in ((one, ours), (two, theirs)):
        agent.register_memory([Tensor(array) for array in arrays])
    one.add_remote_agent(two.get_agent_metadata())
    here = one.get_xfer_descs([Tensor(array) for array in ours])
    there = two.get_xfer_descs([Tensor(array) for array in theirs])
    assert [row[1:] for row in here] == [(1200, 0), (616, 0)]
    handle = one.initialize_xfer("WRITE", here, there, "two")
    one.transfer(handle)
    assert ended(one, handle) == "DONE"
    for mine, its in zip(ours, theirs):
        assert mine.tobytes() == its.tobytes()

    bytes_of, strange = ours[0], SimpleNamespace()
    on_gpu = one.get_xfer_descs(Tensor(bytes_of, "cuda", 3))
    assert (on_gpu.getType(), on_gpu[0][1:]) == (descriptors.VRAM_SEG, (1200, 3))
    for words, tensors in (
        ("of one list are on", [Tensor(bytes_of), Tensor(bytes_of, "cuda", 0)]),
        ("of one list are on", [Tensor(bytes_of, "cuda", 1), Tensor(bytes_of, "cuda", 0)]),
        ("not contiguous", [Tensor(bytes_of), Tensor(bytes_of, contiguous=False)]),
        ("'SimpleNamespace' in it", [Tensor(bytes_of), strange]),
    ):
        with pytest.raises(nixl.nixlInvalidParamError, match=words):
            one.get_xfer_descs(tensors)


def test_a_wrong_list_is_named(agents: Agents, seed: int) -> None:
    agent, memory, local, own, xfer = prepared(agents, seed)
    strided = np.array([[address(memory), BLOCK, 0, BLOCK, 2]], np.uint64)
    none = strided * np.array([1, 1, 1, 1, 0], np.uint64)
    wrong: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (nixl.nixlInvalidParamError, "memory type is missing", lambda: agent.get_xfer_descs([(1, 2, 3)])),
        (nixl.nixlInvalidParamError, "memory type is 'RAM'", lambda: agent.get_xfer_descs([(1, 2, 3)], "RAM")),
        (nixl.nixlInvalidParamError, "tuple of 3", lambda: agent.get_xfer_descs([(1, 2)], "DRAM")),
        (nixl.nixlInvalidParamError, "not negative", lambda: agent.get_xfer_descs([(-1, 2, 0)], "DRAM")),
        *(
            (nixl.nixlInvalidParamError, "three integers", lambda row=row: agent.get_xfer_descs([row], "DRAM"))
            for row in ((4096, 4096 / 2, 0), ("4096", 8, 0), (4096, None, 0), (1 << 64, 8, 0))
        ),
        (nixl.nixlInvalidParamError, "N x 5", lambda: agent.prep_xfer_dlist("", strided * 1.0, "DRAM")),
        (nixl.nixlInvalidParamError, "N x 3", lambda: agent.get_xfer_descs(np.zeros((2, 4), int), "DRAM")),
        (nixl.nixlInvalidParamError, "call trim", lambda: agent.get_xfer_descs(descriptors.nixlRegDList("DRAM"))),
        (nixl.nixlInvalidParamError, "at least one range", lambda: agent.prep_xfer_dlist("", [], "DRAM")),
        (nixl.nixlNotFoundError, "not inside a region", lambda: agent.prep_xfer_dlist("b", [(8, 8, 0)], "DRAM")),
        (nixl.nixlNotFoundError, "no registered region", lambda: agent.prep_xfer_dlist("", [(8, 8, 0)], "DRAM")),
        (
            nixl.nixlInvalidParamError,
            "local list comes first",
            lambda: agent.make_prepped_xfer("READ", own, [0], local, [0]),
        ),
        (nixl.nixlInvalidParamError, "index 4", lambda: agent.make_prepped_xfer("READ", local, [4], own, [0])),
        (nixl.nixlInvalidParamError, "index -1", lambda: agent.make_prepped_xfer("READ", local, [0], own, [-1])),
        (
            nixl.nixlInvalidParamError,
            f"index {1 << 63} is",
            lambda: agent.make_prepped_xfer("READ", local, [1 << 63], own, [0]),
        ),
        (nixl.nixlInvalidParamError, "2 local and 1", lambda: agent.make_prepped_xfer("READ", local, [0, 1], own, [0])),
        (
            nixl.nixlInvalidParamError,
            "lengths",
            lambda: agent.initialize_xfer("READ", xfer, agent.get_xfer_descs([(address(memory), 5, 0)], "DRAM"), "a"),
        ),
        *(
            (
                nixl.nixlInvalidParamError,
                "local indexes are ",
                lambda listed=listed: agent.make_prepped_xfer("READ", local, listed, own, [0, 1]),
            )
            for listed in ([0.5, 1.9], [0, float("nan")], [float("inf"), 1], ["0", "1"], None, [[0, 1]], 1)
        ),
        (nixl.nixlInvalidParamError, "no descriptor list", lambda: agent.deserialize_descs(b"\x80\x04.")),
        (nixl.nixlInvalidParamError, "of a strided list", lambda: agent.prep_xfer_dlist("", strided)),
        (nixl.nixlInvalidParamError, "count of 0", lambda: agent.prep_xfer_dlist("", none, "DRAM")),
        (nixl.nixlInvalidParamError, "at least one", lambda: agent.make_prepped_xfer("READ", local, [], own, [])),
    ]
    for kind, words, call in wrong:
        with pytest.raises(kind, match=words):
            call()
    memory.check()
