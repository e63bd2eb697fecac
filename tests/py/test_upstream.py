"""Programs and files over upstream's own module: its parameters, guards, members and configuration load as they are."""

from __future__ import annotations

import copy
import ctypes
import inspect
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import tent
from tent.testing import pattern

# The names by which upstream's methods take their arguments, in order.
PARAMETERS = {
    "open_segment": "segment_name",
    "warmup_segment": "handle",
    "close_segment": "handle",
    "get_segment_info": "handle",
    "import_remote_segment": "shared_handle",
    "allocate_local_memory": "size location",
    "allocate_local_memory_ex": "size options",
    "free_local_memory": "addr",
    "allocate_memory_guard": "size location",
    "allocate_memory_guard_ex": "size options",
    "register_local_memory": "addr size permission",
    "register_local_memory_ex": "addr size options",
    "register_local_memory_batch": "addr_list size_list permission",
    "register_local_memory_batch_ex": "addr_list size_list options",
    "unregister_local_memory": "addr size",
    "unregister_local_memory_batch": "addr_list size_list",
    "allocate_transfer_batch": "batch_size",
    "allocate_batch_guard": "batch_size",
    "free_transfer_batch": "batch_id",
    "submit_transfer": "batch_id request_list notifi",
    "submit_transfer_notif": "batch_id request_list name message",
    "cancel_transfer": "batch_id task_id",
    "send_notifi": "target_id notifi",
    "get_transfer_status": "batch_id task_id",
    "get_transfer_status_list": "batch_id",
    "get_transfer_status_overall": "batch_id",
}


@pytest.mark.parametrize("method", PARAMETERS)
def test_arguments_have_upstreams_names(method: str) -> None:
    parameters = inspect.signature(getattr(tent.TransferEngine, method)).parameters.values()
    by_position = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert by_position == ["self", *PARAMETERS[method].split()]


def test_members_of_enumerations_are_there_by_themselves() -> None:
    for enumeration in (
        tent.OpCode,
        tent.TransferStatusEnum,
        tent.Permission,
        tent.TransportType,
        tent.SegmentInfoType,
    ):
        for member in enumeration:
            assert getattr(tent, member.name) is member
    for intent in list(tent.IntentType)[1:]:
        assert getattr(tent, intent.name) is intent
    assert tent.INTENT_UNSPEC is tent.IntentType.INTENT_UNSPEC is tent.IntentType.UNSPEC
    assert tent.TransportType.HP_TCP == 13
    everything: dict[str, Any] = {}
    exec("from tent import *", everything)
    assert "OpCode" in everything and not {"READ", "FAILED", "File", "NotImplementedError"} & everything.keys()


def test_records_can_be_made_empty() -> None:
    assert tent.TransferStatus() == (tent.INITIAL, 0)
    assert tent.SegmentInfo() == (tent.Memory, ()) and tent.SegmentInfoBuffer() == (0, 0, "*")


@pytest.mark.interpreter
def test_a_guard_is_its_address_and_its_id() -> None:
    size = 4096
    with tent.TransferEngine() as engine:
        with engine.allocate_memory_guard(size=size, location="cpu:0") as address:
            engine.register_local_memory(address, size)
            memory = (ctypes.c_ubyte * size).from_address(address)
            memory[:] = pattern(7, 0, size)
            with engine.allocate_batch_guard(1) as batch_id:
                request = tent.Request(
                    tent.WRITE, address, tent.LOCAL_SEGMENT_ID, address + 1024, 64, transport_hint=tent.UNSPEC
                )
                engine.submit_transfer(batch_id=batch_id, request_list=[request])
                assert engine.wait(batch_id, timeout=10) == (tent.COMPLETED, 64)
            expected = bytearray(pattern(7, 0, size))
            expected[1024:1088] = expected[:64]
            assert bytes(memory) == expected
            with pytest.raises(tent.InvalidEntryError):
                engine.get_transfer_status(batch_id, 0)
            engine.unregister_local_memory(address, size)
            with pytest.raises(tent.AddressNotRegisteredError):
                engine.unregister_local_memory(address, size)
        with pytest.raises(tent.AddressNotRegisteredError):
            engine.free_local_memory(address)


def test_a_guard_gives_back_once_and_its_copies_never() -> None:
    with tent.TransferEngine() as engine:
        guard = engine.allocate_memory_guard(4096)
        assert guard == guard.address and guard.size == 4096 and hash(guard) == hash(int(guard))
        for other in (copy.copy(guard), copy.deepcopy(guard), pickle.loads(pickle.dumps(guard))):
            assert type(other) is int and other == guard
        with pytest.raises(ZeroDivisionError), guard:
            raise ZeroDivisionError
        guard.release()
        with pytest.raises(tent.AddressNotRegisteredError):
            engine.free_local_memory(guard)


def test_a_segment_is_made_ready_before_its_first_transfer() -> None:
    with tent.Engine() as peer, tent.TransferEngine() as engine:
        handle = engine.open_segment(peer.address)
        engine.warmup_segment(handle)
        engine.close_segment(handle)
        with pytest.raises(tent.InvalidEntryError):
            engine.warmup_segment(handle)


# Keys of upstream's sample file and of its documentation that nothing here reads, or that other keys stand for.
NEWER = {
    "metadata_servers": "P2PHANDSHAKE",
    "rpc_server_port": "0",
    "log_level": "critical",
    "merge_requests": False,
    "use_legacy_transport_selection": False,
    "staging": {"shutdown_drain_timeout_ms": 5000},
    "receiver_credit": {"mode": "optional", "capacity": {"data_bytes": 1 << 20, "request_slots": 16}},
    "transports": {
        "hp_tcp": {
            "enable": False,
            "bind_address": "",
            "advertise_address": "",
            "rail_addresses": [],
            "port": 0,
            "worker_count": 16,
            "connections_per_peer": 4,
            "max_outstanding_tasks": 4096,
            "max_outstanding_bytes": 1 << 32,
            "max_transfer_bytes": 1 << 30,
            "connect_timeout_ms": 2000,
            "progress_timeout_ms": 30000,
        },
        "ascend_direct": {
            "transfer_timeout_ms": 10000,
            "fabric_mem": False,
            "global_resource_config": "",
            "agent_mode": False,
            "store_te_init": False,
        },
        "rdma": {"strict_local_numa": False},
        "shm": {"cxl_mount_path": "", "async_memcpy_threshold": 4},
    },
    "policy": [
        {"name": "amd", "segment_type": "memory", "local_memory": "hip", "transports": ["nvlink", "tcp", "hp_tcp"]},
        {"name": "files", "segment_type": "file", "transports": ["gds", "io_uring", "rdma"]},
    ],
}


def test_files_of_newer_versions_load(tmp_path: Path) -> None:
    path = tmp_path / "transfer-engine.json"
    path.write_text(json.dumps(NEWER))
    with tent.TransferEngine(str(path)) as engine:
        assert engine.available()
        settings = engine.engine.config
        assert settings["log_level"].value == "error"
        workers = settings["transports/hp_tcp/worker_count"]
        assert (workers.value, workers.active) == (16, False)


@pytest.mark.parametrize("level", ["trace", "debug", "info", "warning", "warn", "error", "critical", "off"])
def test_levels_of_upstreams_log_are_taken(level: str) -> None:
    tent.Engine(log_level=level).close()


def test_nothing_is_logged_where_the_log_is_off(caplog: pytest.LogCaptureFixture) -> None:
    unused = {"transports": {"tcp": {"max_concurrent_tasks": 8}}}  # which an engine warns of
    for level, warned in (("warning", True), ("off", False)):
        caplog.clear()
        with tent.Engine(unused, log_level=level) as engine:
            engine.metrics()
        assert any("no effect" in record.getMessage() for record in caplog.records) is warned


def test_the_other_tcp_of_upstream_is_named_where_it_is_demanded() -> None:
    with pytest.raises(tent.TentError, match="leave it out to use tcp, which does the same"):
        tent.TransferEngine({"transports": {"hp_tcp": {"enable": True}}})


def test_variables_of_upstream_set_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MC_GID_INDEX", "3")
    monkeypatch.setenv("MC_TE_FILTERS", "mlx5_0,mlx5_1")
    monkeypatch.setenv("MC_TENT_RPC_THREADS", "4")
    with tent.Engine({"rpc_server_threads": 2}) as engine:
        gid, filters = engine.config["transports/rdma/device/gid_index"], engine.config["topology/rdma_whitelist"]
        assert (gid.value, gid.origin) == (3, "environment MC_GID_INDEX")
        assert (filters.value, filters.origin) == (["mlx5_0", "mlx5_1"], "environment MC_TE_FILTERS")
        assert engine.config["rpc_server_threads"].value == 2
    monkeypatch.setenv("MC_GID_INDEX", "third")
    with pytest.raises(tent.InvalidArgumentError, match="environment MC_GID_INDEX: transports/rdma/device/gid_index"):
        tent.Engine()
