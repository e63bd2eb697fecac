"""The plug-in by which the clients' tests and benchmark count vLLM's transfers, and the reading of its file.

The lines were recorded from vLLM 0.32, beside a run of all tests.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from interpreters import ROOT

sys.path.insert(0, str(ROOT / "tests" / "bench"))

import clients
import servers
import transfers

# MooncakeConnector over Mooncake: the request by which the servers met, and two of 3,000 tokens.
MOONCAKE = """\
{"stats": {"transfer_duration": [0.15364072699958342], "bytes_transferred": [2097152], "num_descriptors": [4], \
"num_failed_transfers": [], "num_failed_recvs": [], "num_kv_expired_reqs": []}}
{"stats": {"transfer_duration": [0.9502745259997027], "bytes_transferred": [25165824], "num_descriptors": [12], \
"num_failed_transfers": [], "num_failed_recvs": [], "num_kv_expired_reqs": []}}
{"stats": {"transfer_duration": [0.3478455849981401], "bytes_transferred": [25165824], "num_descriptors": [92], \
"num_failed_transfers": [], "num_failed_recvs": [], "num_kv_expired_reqs": []}}
"""
# TentConnector with 128 layers: a handshake that had no time, the request that met, two of 4,096 tokens.
MANY = """\
{"stats": {"transfer_duration": [], "post_duration": [], "bytes_transferred": [], "num_descriptors": [], \
"num_failed_transfers": [], "num_failed_notifications": [], "num_failed_handshakes": [1], \
"num_kv_expired_reqs": [], "num_notifications_after_expiry": [], "tent": []}}
{"post": [311051500, 578260, 310471918], "descriptors": 896}
{"stats": {"transfer_duration": [0.224346], "post_duration": [0.000937], "bytes_transferred": [7340032], \
"num_descriptors": [896], "num_failed_transfers": [], "num_failed_notifications": [], "num_failed_handshakes": [], \
"num_kv_expired_reqs": [], "num_notifications_after_expiry": [], "tent": [{"tent_notifications_sent_total": 2}]}}
{"post": [638701, 636692, 0], "descriptors": 16384}
{"stats": {"transfer_duration": [0.438539], "post_duration": [0.000469], "bytes_transferred": [134217728], \
"num_descriptors": [16384], "num_failed_transfers": [], "num_failed_notifications": [], "num_failed_handshakes": [], \
"num_kv_expired_reqs": [], "num_notifications_after_expiry": [], "tent": [{"tent_notifications_sent_total": 2}]}}
{"post": [3163325, 1013215, 2065760], "descriptors": 16384}
{"stats": {"transfer_duration": [0.043649], "post_duration": [0.002573], "bytes_transferred": [134217728], \
"num_descriptors": [16384], "num_failed_transfers": [], "num_failed_notifications": [], "num_failed_handshakes": [], \
"num_kv_expired_reqs": [], "num_notifications_after_expiry": [], "tent": []}}
"""


def test_each_transfer_of_mooncakes_connector_is_read() -> None:
    figures = transfers.parsed(MOONCAKE)
    assert [transfer.seconds for transfer in figures.largest()] == [0.9502745259997027, 0.3478455849981401]
    assert figures.transfers[0] == transfers.Transfer(0.15364072699958342, 2097152, 4, None)
    assert figures.failures == 0 and not figures.posts


def test_transfers_that_vllm_counts_together_are_read_one_by_one() -> None:
    """A step that ends two transfers has both in its lists: the log has their average."""
    first, second = (json.loads(line)["stats"] for line in MOONCAKE.splitlines()[1:])
    together = {name: first[name] + second[name] for name in first}
    figures = transfers.parsed(json.dumps({"stats": together}) + "\n")
    assert figures.transfers == transfers.parsed(MOONCAKE).largest()


def test_posts_are_read_with_the_time_that_others_took() -> None:
    figures = transfers.parsed(MANY)
    assert figures.failures == 1
    assert [transfer.post for transfer in figures.largest()] == [0.000469, 0.002573]
    first, second = figures.longest_lists()
    assert (first.wall, first.processor, first.waited) == (0.000638701, 0.000636692, 0)
    assert second.held == pytest.approx(0.003163325 - 0.002065760)


def test_a_line_that_is_on_its_way_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "said"
    assert transfers.read(path) == transfers.Figures()
    path.write_text(MANY[:-9])
    assert len(transfers.read(path).largest()) == 1


class Agent:
    """As NIXL's."""

    def make_prepped_xfer(self, operation: str, here: Any, chosen: list[int], *given: Any, **named: Any) -> Any:
        return operation, len(chosen), named

    def transfer(self, handle: Any) -> str:
        return f"posted {handle}"


class Factory:
    """As vLLM's KVConnectorFactory."""

    agents: ClassVar[list[Any]] = []

    @classmethod
    def create_connector(cls, config: Any, role: str, kv_cache_config: Any = None) -> Any:
        worker = SimpleNamespace(nixl_wrapper=Agent()) if role == "worker" else None
        return SimpleNamespace(connector_worker=worker)


class Logging:
    """As vLLM's KVConnectorLogging."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def observe(self, transfer_stats_data: dict[str, Any]) -> None:
        self.seen.append(transfer_stats_data)


def test_the_plug_in_writes_what_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = servers.Server("decode", tmp_path, tmp_path)
    path = transfers.watched(server)
    monkeypatch.setenv(transfers.VARIABLE, server.environment[transfers.VARIABLE])
    place = "vllm.distributed.kv_transfer.kv_connector"
    parts = f"{place}.v1".split(".")
    for name in (".".join(parts[:i]) for i in range(1, len(parts) + 1)):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    vars(sys.modules[place])["factory"] = SimpleNamespace(KVConnectorFactory=Factory)
    vars(sys.modules[f"{place}.v1"])["metrics"] = SimpleNamespace(KVConnectorLogging=Logging)
    monkeypatch.setattr(Factory, "create_connector", Factory.create_connector)
    monkeypatch.setattr(Logging, "observe", Logging.observe)
    monkeypatch.syspath_prepend(server.environment["PYTHONPATH"].split(":")[0])
    plug_in = __import__(transfers.NAME)
    for _ in range(2):  # vLLM may load its plug-ins again
        plug_in.load()

    assert Factory.create_connector({}, "scheduler").connector_worker is None
    agent = Factory.create_connector({}, role="worker").connector_worker.nixl_wrapper
    handle = agent.make_prepped_xfer("READ", 1, [3, 4], 2, [5, 6], notif_msg=b"done")
    assert handle == ("READ", 2, {"notif_msg": b"done"}) and agent.transfer(handle) == f"posted {handle}"
    logging = Logging()
    stats = json.loads(MOONCAKE.splitlines()[1])["stats"]
    logging.observe(stats)
    assert logging.seen == [stats]
    figures = transfers.read(path)
    assert [transfer.length for transfer in figures.transfers] == [25165824]
    (post,) = figures.posts
    assert post.descriptors == 2 and post.processor > 0 and 0 < post.wall < 60 and post.waited >= 0
    sys.modules.pop(transfers.NAME)


class Late(servers.Server):
    """A server that reports its counts a step later."""

    def tokens(self, prompt: list[int], tokens: int = 24, transfer: dict[str, Any] | None = None) -> list[int]:
        said = self.logs / "said"
        said.write_text(said.read_text() + self.lines.pop(0) if self.lines else said.read_text())
        return []

    lines: ClassVar[list[str]] = []


def test_the_benchmark_waits_for_figures_that_come_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, server = clients.Load("vllm", 3000, 2), Late("prefill", tmp_path, tmp_path)
    lines = MOONCAKE.splitlines(keepends=True)
    monkeypatch.setattr(Late, "lines", lines[1:])
    (tmp_path / "said").write_text(lines[0])
    moved, posts = clients.counted(tmp_path / "said", server, load, 0)
    assert [transfer.length for transfer in moved] == [25165824] * 2 and posts == []


@pytest.mark.parametrize(
    ("load", "failed", "text"),
    [
        (clients.Load("vllm", 3000, 3), 1, "3 requests are 2 transfers and 0 failures"),
        (clients.Load("vllm", 3000, 1), 1, "1 requests are 2 transfers and 0 failures"),
        (clients.Load("vllm", 3000, 2), 0, "2 requests are 2 transfers and 1 failures"),
    ],
)
def test_a_round_that_was_not_counted_whole_is_a_failure(
    tmp_path: Path, load: clients.Load, failed: int, text: str
) -> None:
    (tmp_path / "said").write_text(MANY)
    with pytest.raises(AssertionError, match=text):
        clients.counted(tmp_path / "said", Late("decode", tmp_path, tmp_path), load, failed)


def test_posts_of_another_size_are_not_those_of_many_descriptors(tmp_path: Path) -> None:
    (tmp_path / "said").write_text(MANY.replace("16384", "16256"))
    with pytest.raises(AssertionError, match="a post has 16256 descriptors"):
        clients.counted(tmp_path / "said", Late("decode", tmp_path, tmp_path), clients.many(2), 1)
