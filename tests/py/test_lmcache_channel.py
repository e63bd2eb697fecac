"""tent's channel for LMCache, as far as it can be tested without it: a stand-in has LMCache's names alone."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from importlib import metadata
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("numpy")

from tent.compat.nixl import nixl_agent, nixl_agent_config
from tent.integrations import lmcache
from tent.integrations.versions import TESTED

pytestmark = pytest.mark.adapters

PLACE = "lmcache.v1.distributed.transfer_channel"


class Stand:
    """LMCache's table of channels, its channel over NIXL, and its command."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
        self.table: dict[str, Callable[..., Any]] = {}
        self.words: list[str] = []
        self.channel = ModuleType(f"{PLACE}.impl.nixl_impl")
        factory, command = ModuleType(f"{PLACE}.factory"), ModuleType("lmcache.cli.main")
        vars(self.channel).update(_load_nixl=self.no_nixl, create_nixl_transfer_channel_context=self.create)
        vars(factory).update(register_transfer_channel_factory=self.enlist)
        vars(command).update(main=self.words.extend)
        for module in (self.channel, factory, command):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        packages = [module.__name__.rpartition(".")[0] for module in (self.channel, factory, command)]
        for package in {part for name in packages for part in prefixes(name)}:
            monkeypatch.setitem(sys.modules, package, ModuleType(package))
        monkeypatch.setattr(metadata, "version", lambda name: {"lmcache": version}[name])

    def enlist(self, name: str, factory: Callable[..., Any]) -> None:
        if name in self.table:
            raise ValueError(f"registered already: {name}")
        self.table[name] = factory

    @staticmethod
    def no_nixl() -> Any:
        raise RuntimeError("NIXL is not available")

    def create(self, listen_url: str, backends: list[str] | None = None) -> Any:
        agent, config = vars(self.channel)["_load_nixl"]()
        return listen_url, agent("lmcache", config(backends=backends or ["UCX"]))


def prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    return Stand(monkeypatch, TESTED["LMCache"][0])


def test_the_channel_is_lmcaches_with_tents_agent(stand: Stand) -> None:
    lmcache.register()
    lmcache.register()
    assert list(stand.table) == ["tent"]
    url, agent = stand.table["tent"](listen_url="127.0.0.1:7600", backends=["LIBFABRIC"])
    try:
        assert url == "127.0.0.1:7600" and isinstance(agent, nixl_agent) and list(agent.backends) == ["UCX"]
    finally:
        agent.close()
    with pytest.raises(RuntimeError, match="NIXL is not available"):
        stand.create("127.0.0.1:7600")  # LMCache's own channel still gets the real one


def test_a_channel_that_fails_leaves_lmcache_as_it_was(stand: Stand) -> None:
    lmcache.register()
    with pytest.raises(TypeError):
        stand.table["tent"](listen=1)
    assert vars(stand.channel)["_load_nixl"] == stand.no_nixl
    assert nixl_agent_config().backends == ["UCX"]


def test_the_command_runs_with_the_channel(stand: Stand) -> None:
    lmcache.main(["server", "--p2p-transfer-engine", "tent"])
    assert stand.words == ["server", "--p2p-transfer-engine", "tent"] and "tent" in stand.table


def test_another_version_warns_and_an_unfit_one_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stand = Stand(monkeypatch, "9.9.9")
    with caplog.at_level(logging.WARNING, "tent.integrations"):
        lmcache.register()
    assert len(caplog.records) == 1 and "9.9.9" in caplog.text and TESTED["LMCache"][0] in caplog.text
    del vars(stand.channel)["_load_nixl"]
    with pytest.raises(RuntimeError, match=r"does not fit LMCache 9\.9\.9.*_load_nixl.*tent run --as nixl"):
        lmcache.register()


def test_without_lmcache_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(RuntimeError, match="LMCache is not installed"):
        lmcache.register()
