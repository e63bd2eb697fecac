"""The files of tent's NIXL agent: lists of one and of many, by the descriptors that their owner has opened."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from nixl_agents import BLOCK, Agents, blocks, ended, register  # noqa: E402

from tent.compat import nixl  # noqa: E402
from tent.testing import Memory  # noqa: E402

pytestmark = pytest.mark.adapters


@contextlib.contextmanager
def opened(folder: Path, n: int, flags: int = os.O_RDWR) -> Iterator[list[int]]:
    """The descriptors of n files, which are made empty."""
    with contextlib.ExitStack() as files:
        numbers = []
        for i in range(n):
            numbers.append(os.open(folder / f"{i}.bin", os.O_CREAT | flags, 0o600))
            files.callback(os.close, numbers[-1])
        yield numbers


def move(agent: nixl.nixl_agent, op: str, here: Any, src: Any, there: Any, dst: Any) -> None:
    handle = agent.make_prepped_xfer(op, here, src, there, dst)
    agent.transfer(handle)
    assert ended(agent, handle) == "DONE"
    agent.release_xfer_handle(handle)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_list_is_of_many_files_and_a_write_makes_them_longer(agents: Agents, seed: int, tmp_path: Path) -> None:
    """As LMCache's storage has them: one page in each of many files, which are empty before."""
    n = 5
    agent, memory = agents("a", backends=["POSIX"]), Memory(2 * n * BLOCK, seed)
    register(agent, memory)
    here = agent.prep_xfer_dlist("", blocks(memory, 2 * n), "DRAM")
    with opened(tmp_path, n) as files:
        listed = agent.register_memory([(0, 2 * BLOCK, fd, "") for fd in files], "FILE")
        # Two places in each file, in turns, and between them one without bytes.
        rows = [(at, BLOCK, fd) for at in (0, BLOCK) for fd in files]
        there = agent.prep_xfer_dlist("a", [*rows[:n], (0, 0, files[0]), *rows[n:]], "FILE")
        assert there.n == 2 * n + 1
        order = [3, 0, 4, 2, 1]
        move(agent, "WRITE", here, range(n), there, order)
        wanted = {f"{file}.bin": bytes(memory.expected[i * BLOCK :][:BLOCK]) for i, file in enumerate(order)}
        assert contents(tmp_path) == wanted
        move(agent, "WRITE", here, [7, 8], there, [n + 1 + 4, 4])  # the second place of a file, and its first one again
        wanted["4.bin"] = bytes(memory.expected[8 * BLOCK :][:BLOCK] + memory.expected[7 * BLOCK :][:BLOCK])
        assert contents(tmp_path) == wanted

        move(agent, "READ", here, range(n, 2 * n), there, range(n))
        for i in range(n):
            memory.expect((n + i) * BLOCK, wanted[f"{i}.bin"][:BLOCK])
        memory.check()
        assert contents(tmp_path) == wanted
        agent.deregister_memory(listed)
        with pytest.raises(nixl.nixlNotFoundError, match="not registered"):
            move(agent, "READ", here, [0], there, [0])
    memory.check()


def test_a_read_beyond_the_end_of_one_file_moves_nothing(agents: Agents, seed: int, tmp_path: Path) -> None:
    agent, memory = agents("a", backends=["POSIX"]), Memory(3 * BLOCK, seed)
    register(agent, memory)
    here = agent.prep_xfer_dlist("", blocks(memory, 3), "DRAM")
    with opened(tmp_path, 3) as files:
        for fd in files:
            os.write(fd, bytes(BLOCK))
        os.ftruncate(files[1], BLOCK - 1)
        agent.register_memory([(0, BLOCK, fd, "") for fd in files], "FILE")
        there = agent.prep_xfer_dlist("a", [(0, BLOCK, fd) for fd in files], "FILE")
        with pytest.raises(nixl.nixlInvalidParamError, match=f"of {BLOCK - 1} bytes"):
            move(agent, "READ", here, range(3), there, range(3))
        memory.check()
        os.ftruncate(files[1], BLOCK)  # by somebody else: the file as it is now counts
        move(agent, "READ", here, range(3), there, range(3))
    memory.expect(0, bytes(3 * BLOCK))
    memory.check()


def test_the_descriptor_says_what_may_be_done(agents: Agents, seed: int, tmp_path: Path) -> None:
    agent, memory = agents("a", backends=["POSIX"]), Memory(BLOCK, seed)
    register(agent, memory)
    here = agent.prep_xfer_dlist("", blocks(memory, 1), "DRAM")
    (tmp_path / "0.bin").write_bytes(bytes(BLOCK))
    with opened(tmp_path, 1, os.O_RDONLY) as files:
        agent.register_memory([(0, 2 * BLOCK, files[0], "")], "FILE")
        there = agent.prep_xfer_dlist("a", [(at, BLOCK, files[0]) for at in (0, BLOCK)], "FILE")
        refusals = (nixl.nixlNotAllowedError, nixl.nixlInvalidParamError)
        for place in range(2):  # neither inside of the file nor behind its end
            with pytest.raises(refusals, match=r"reading only|leave the remote region"):
                move(agent, "WRITE", here, [0], there, [place])
        assert contents(tmp_path) == {"0.bin": bytes(BLOCK)}
        with pytest.raises(nixl.nixlNotSupportedError, match="no notification"):
            agent.transfer(agent.make_prepped_xfer("READ", here, [0], there, [0], b"done"))
        memory.check()


def test_a_file_that_was_closed_does_not_grow_another_one(agents: Agents, seed: int, tmp_path: Path) -> None:
    """A descriptor that was closed without a word has another file by the time of the WRITE."""
    agent, memory = agents("a", backends=["POSIX"]), Memory(BLOCK, seed)
    register(agent, memory)
    here = agent.prep_xfer_dlist("", blocks(memory, 1), "DRAM")
    with opened(tmp_path, 1) as files:
        agent.register_memory([(0, BLOCK, files[0], "")], "FILE")
        there = agent.prep_xfer_dlist("a", [(0, BLOCK, files[0])], "FILE")
        with open(tmp_path / "other", "wb") as other:
            os.dup2(other.fileno(), files[0])
            with pytest.raises(nixl.nixlInvalidParamError, match="was closed"):
                move(agent, "WRITE", here, [0], there, [0])
    assert contents(tmp_path) == {"0.bin": b"", "other": b""}
    memory.check()


@pytest.mark.parametrize("why", ["was closed", "not registered any more", "reading only"])
def test_a_list_that_is_refused_makes_no_file_longer(agents: Agents, seed: int, why: str, tmp_path: Path) -> None:
    agent, memory = agents("a", backends=["POSIX"]), Memory(3 * BLOCK, seed)
    register(agent, memory)
    here = agent.prep_xfer_dlist("", blocks(memory, 3), "DRAM")
    with opened(tmp_path, 3) as files, opened(tmp_path, 1, os.O_RDONLY) as readable:
        files[2] = readable[0] if why == "reading only" else files[2]
        agent.register_memory([(0, BLOCK, fd, "") for fd in files[:2]], "FILE")
        last = agent.register_memory([(0, BLOCK, files[2], "")], "FILE")
        there = agent.prep_xfer_dlist("a", [(0, BLOCK, fd) for fd in files], "FILE")
        if why == "was closed":
            os.dup2(files[0], files[2])
        elif why == "not registered any more":
            agent.deregister_memory(last)
        with pytest.raises((nixl.nixlInvalidParamError, nixl.nixlNotFoundError, nixl.nixlNotAllowedError), match=why):
            move(agent, "WRITE", here, range(3), there, range(3))
    assert contents(tmp_path) == {f"{i}.bin": b"" for i in range(3)}
    memory.check()


@pytest.mark.parametrize(("backend", "flags"), [("POSIX", 0), ("POSIX", os.O_DIRECT), ("GDS", 0)])
def test_the_descriptor_decides_about_the_page_cache(
    agents: Agents, seed: int, tmp_path: Path, backend: str, flags: int
) -> None:
    """But for GDS, which is there to go past it."""
    agent, memory = agents("a", backends=[backend]), Memory(BLOCK, seed)
    register(agent, memory)
    here = agent.prep_xfer_dlist("", blocks(memory, 1), "DRAM")
    with contextlib.ExitStack() as open_files:
        try:
            files = open_files.enter_context(opened(tmp_path, 1, os.O_RDWR | flags))
        except OSError:
            pytest.skip("the file system takes no O_DIRECT")
        agent.register_memory([(0, BLOCK, files[0], "")], "FILE")
        there = agent.prep_xfer_dlist("a", [(0, BLOCK, files[0])], "FILE")
        handle = agent.make_prepped_xfer("WRITE", here, [0], there, [0])
        agent.transfer(handle)
        assert ended(agent, handle) == "DONE"
        taken = handle._sent[0].transports
        with agent.engine.open(tmp_path / "0.bin") as file, agent.engine.register(memory.view) as region:
            uncached = agent.engine.explain(region, file)["routes"][0]["transport"]
        assert taken == (("buf-io",) if backend == "POSIX" and not flags else (uncached,))
    assert contents(tmp_path) == {"0.bin": bytes(memory.expected)}


def test_a_descriptor_that_is_used_again_means_its_new_file(agents: Agents, seed: int, tmp_path: Path) -> None:
    agent, memory = agents("a", backends=["POSIX"]), Memory(2 * BLOCK, seed)
    register(agent, memory)
    here = agent.prep_xfer_dlist("", blocks(memory, 2), "DRAM")
    paths = [tmp_path / name for name in "ab"]
    number = -1
    for block, path in enumerate(paths):
        path.write_bytes(bytes(BLOCK))
        with open(path, "r+b") as file:
            assert number in (-1, file.fileno()), "the kernel gives the lowest number that is free"
            number = file.fileno()
            listed = agent.register_memory([(0, BLOCK, number, str(path))], "FILE")
            there = agent.prep_xfer_dlist("a", [(0, BLOCK, number)], "FILE")
            handle = agent.make_prepped_xfer("WRITE", here, [block], there, [0])
            agent.transfer(handle)
            assert ended(agent, handle) == "DONE"
            if block == 0:
                continue  # the first one is closed without a word
            agent.deregister_memory(listed)
            with pytest.raises(nixl.nixlNotFoundError, match="not registered"):
                agent.prep_xfer_dlist("a", [(0, BLOCK, number)], "FILE")
            with pytest.raises(nixl.nixlNotFoundError, match="not registered"):
                agent.deregister_memory(listed)
    for block, path in enumerate(paths):
        assert path.read_bytes() == memory.expected[block * BLOCK : (block + 1) * BLOCK], path.name
    memory.check()


def test_a_list_takes_back_its_own_files(agents: Agents, tmp_path: Path) -> None:
    """A number that is that of another file by now stays registered for that one."""
    agent = agents("a", backends=["POSIX"])
    lists, numbers = [], set()
    for name in "xyx":
        with open(tmp_path / name, "w+b") as file:
            file.truncate(BLOCK)
            numbers.add(fd := file.fileno())
            lists.append(agent.register_memory([(0, BLOCK, fd, "")], "FILE"))
    assert len(numbers) == 1, "the kernel gives the lowest number that is free"
    with open(tmp_path / "x", "r+b") as file:
        assert file.fileno() == fd
        for old in lists[:2]:
            agent.deregister_memory(old)
            agent.prep_xfer_dlist("a", [(0, BLOCK, fd)], "FILE")
            with pytest.raises(nixl.nixlNotFoundError, match="not registered"):
                agent.deregister_memory(old)
        agent.deregister_memory(nixl.nixlRegDList("FILE", [(0, BLOCK, fd, "")]))  # made anew: the file of now
        with pytest.raises(nixl.nixlNotFoundError, match="not registered"):
            agent.prep_xfer_dlist("a", [(0, BLOCK, fd)], "FILE")


def test_of_a_list_with_an_unknown_file_none_is_taken_back(agents: Agents, tmp_path: Path) -> None:
    agent = agents("a", backends=["POSIX"])
    with opened(tmp_path, 2) as (fd, other):
        agent.register_memory([(0, BLOCK, fd, "")], "FILE")
        for wrong in ([fd, other], [fd, fd]):
            with pytest.raises(nixl.nixlNotFoundError, match="not registered"):
                agent.deregister_memory(nixl.nixlRegDList("FILE", [(0, BLOCK, n, "") for n in wrong]))
            agent.prep_xfer_dlist("a", [(0, BLOCK, fd)], "FILE")


def test_a_file_without_a_path_is_refused(agents: Agents, tmp_path: Path) -> None:
    agent = agents("a", backends=["POSIX"])
    path = tmp_path / "gone"
    path.write_bytes(bytes(BLOCK))
    with open(path, "r+b") as file:
        path.unlink()
        with pytest.raises(nixl.nixlInvalidParamError, match="FILE descriptor"):
            agent.register_memory([(0, BLOCK, file.fileno(), "")], "FILE")
    with pytest.raises(nixl.nixlInvalidParamError, match="FILE descriptor"):
        agent.register_memory([(0, BLOCK, 1 << 20, "")], "FILE")
    assert os.listdir(tmp_path) == []


def test_ranges_of_two_lengths_are_refused_before_a_file_grows(agents: Agents, seed: int, tmp_path: Path) -> None:
    agent, memory = agents("a", backends=["POSIX"]), Memory(2 * BLOCK, seed)
    register(agent, memory)
    here = agent.prep_xfer_dlist("", blocks(memory, 2), "DRAM")
    with opened(tmp_path, 2) as files:
        listed = agent.register_memory([(0, 2 * BLOCK, fd, "") for fd in files], "FILE")
        there = agent.prep_xfer_dlist("a", [(0, BLOCK, files[0]), (0, 2 * BLOCK, files[1])], "FILE")
        handle = agent.make_prepped_xfer("WRITE", here, [0, 1], there, [0, 1])
        with pytest.raises(nixl.nixlInvalidParamError, match="two lengths"):
            agent.transfer(handle)
        agent.release_xfer_handle(handle)
        assert set(contents(tmp_path).values()) == {b""}
        agent.deregister_memory(listed)
    memory.check()
