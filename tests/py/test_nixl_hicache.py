"""The calls of SGLang's HiCache with its storage `nixl`, in the order and with the arguments of its release 0.5.23."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from nixl_agents import BLOCK, Agents, address, ended  # noqa: E402
from test_files import descriptors_of  # noqa: E402

from tent.compat import nixl  # noqa: E402
from tent.compat.nixl import nixlBind  # noqa: E402
from tent.testing import Memory  # noqa: E402

pytestmark = pytest.mark.adapters

PAGES = 6


class Storage:
    """HiCache's storage: an agent with one pool of host memory, and a file for each page."""

    def __init__(self, agents: Agents, memory: Memory, folder: Path, direct: bool) -> None:
        self.agent: Any = agents("hicache", backends=[])
        self.folder, self.direct = folder, direct
        self.next = 1
        settings = nixlBind.nixlAgentConfig()
        settings.useProgThread, settings.useListenThread, settings.listenPort = True, False, 8888
        settings.syncMode = nixlBind.NIXL_THREAD_SYNC_RW
        settings.pthrDelay, settings.lthrDelay, settings.captureTelemetry = 0, 100000, False
        self.agent.agent = nixlBind.nixlAgent("hicache", settings)
        self.agent.plugin_list = self.agent.agent.getAvailPlugins()
        name = next(name for name in ("3FS", "POSIX", "GDS_MT", "GDS") if name in self.agent.get_plugin_list())
        self.agent.create_backend(name, {})
        assert self.agent.get_backend_params(name) == {}
        self.backend = name
        descs = self.agent.get_reg_descs([(address(memory), memory.size, 0, "")], "DRAM")
        self.pool = self.agent.register_memory(descs)
        self.at = [(address(memory) + i * BLOCK, BLOCK, 0) for i in range(2 * PAGES)]

    def names_paths(self) -> bool:
        """HiCache's question whether files may be named by their paths: one that is not there is an error then."""
        descs = self.agent.get_reg_descs([(0, BLOCK, 1, "rw:/nonexistent-nixl-probe")], "FILE")
        with pytest.raises(nixl.nixlBackendError, match="nonexistent-nixl-probe"):
            self.agent.register_memory(descs)
        return True

    def path(self, key: str) -> str:
        return str(self.folder / f"{key}_org-model:tag_0_1")

    def have(self, keys: list[str]) -> list[bool]:
        found = self.agent.query_memory([(0, 0, 0, self.path(k)) for k in keys], self.backend, mem_type="FILE")
        return [facts is not None for facts in found]

    def move(self, op: str, keys: list[str], first: int) -> bool:
        """Moves pages of the pool, from the first one on, to or from the files of keys."""
        words = ["rw", "create"] if op == "WRITE" else ["ro"]
        spec = ",".join([*words, *["direct"] * self.direct])
        rows = [(0, BLOCK, self.next + i, f"{spec}:{self.path(key)}") for i, key in enumerate(keys)]
        self.next += len(keys)
        try:
            files = self.agent.register_memory(self.agent.get_reg_descs(rows, "FILE"))
        except nixl.nixlBackendError:
            return False
        try:
            here = self.agent.get_xfer_descs(self.at[first : first + len(keys)], "DRAM")
            handle = self.agent.initialize_xfer(op, here, files.trim(), "hicache")
            self.agent.transfer(handle)
            state = ended(self.agent, handle)
            self.agent.release_xfer_handle(handle)
            return bool(state == "DONE")
        finally:
            self.agent.deregister_memory(files)


@pytest.mark.parametrize("direct", [False, True])
def test_pages_go_to_files_that_are_named_by_their_paths(
    agents: Agents, seed: int, tmp_path: Path, direct: bool
) -> None:
    memory = Memory(2 * PAGES * BLOCK, seed, BLOCK)
    storage = Storage(agents, memory, tmp_path, direct)
    assert storage.names_paths()
    keys = [f"key{i}" for i in range(PAGES)]
    assert storage.have(keys) == [False] * PAGES
    assert storage.move("WRITE", keys, 0)
    files = descriptors_of(tmp_path)
    assert storage.have([*keys, "none"]) == [True] * PAGES + [False]
    wanted = bytes(memory.expected)
    for i, key in enumerate(keys):
        assert Path(storage.path(key)).read_bytes() == wanted[i * BLOCK : (i + 1) * BLOCK]
    assert not storage.move("READ", [keys[0], "none"], PAGES)
    memory.check()
    assert storage.move("READ", keys[::-1], PAGES)
    for i in range(PAGES):
        memory.expect((PAGES + i) * BLOCK, wanted[(PAGES - 1 - i) * BLOCK : (PAGES - i) * BLOCK])
    memory.check()
    assert descriptors_of(tmp_path) == files, "descriptors stay behind"
    storage.agent.deregister_memory(storage.pool)


def test_a_number_means_the_file_that_it_was_registered_for_last(agents: Agents, seed: int, tmp_path: Path) -> None:
    """A number is not the descriptor of a file that is named by its path, also where one has it."""
    memory = Memory(2 * PAGES * BLOCK, seed, BLOCK)
    storage, other = Storage(agents, memory, tmp_path, False), tmp_path / "other"
    with other.open("wb") as file:
        storage.next = file.fileno()
        assert storage.move("WRITE", ["key"], 0)
    assert other.read_bytes() == b""
    agent = storage.agent
    row = (0, BLOCK, 5, f"rw:{storage.path('key')}")
    first, again = (agent.register_memory([row], "FILE") for _ in range(2))
    os.replace(other, storage.path("key"))
    newer = agent.register_memory([row], "FILE")
    here = agent.get_xfer_descs(storage.at[1:2], "DRAM")
    handle = agent.initialize_xfer("WRITE", here, newer.trim(), "hicache")
    agent.transfer(handle)
    assert ended(agent, handle) == "DONE"
    assert Path(storage.path("key")).read_bytes() == bytes(memory.expected[BLOCK : 2 * BLOCK])
    for listed in (first, again, newer):
        agent.deregister_memory(listed)
    with pytest.raises(nixl.nixlNotFoundError):
        agent.deregister_memory(newer)


def test_texts_that_name_no_file_are_refused_or_mean_a_descriptor(agents: Agents, tmp_path: Path) -> None:
    agent = agents("a", backends=["POSIX"])
    path = tmp_path / "file"
    path.write_bytes(b"")
    with pytest.raises(nixl.nixlNotSupportedError, match="O_SYNC"):
        agent.register_memory([(0, BLOCK, 1, f"rw,sync:{path}")], "FILE")
    with pytest.raises(nixl.nixlInvalidParamError, match="two files"):
        agent.register_memory([(0, BLOCK, 1, f"rw:{path}"), (0, BLOCK, 1, f"rw,create:{path}2")], "FILE")
    with path.open("r+b") as file:
        for text in ("", str(path), "a:b", "rw", "rw:", "rw,unknown:/nowhere", "wo:/nowhere"):
            agent.deregister_memory(agent.register_memory([(0, BLOCK, file.fileno(), text)], "FILE"))
