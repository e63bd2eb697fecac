"""One server of a disaggregated SGLang, from its scheduler's queue to the engine: SGLang's own manager, senders,
receivers and bootstrap server, in a process of their own, over pools of host memory in a known pattern.

    sglang_role.py prefill|decode BACKEND BOOTSTRAP_PORT SEED

It runs the commands of its standard input, one JSON object a line, and answers with one each:

    {"rooms": [{"room": 7, "pages": [3, 1], "chunks": [1, 1], "aux": 0}]}    on both sides; "chunks" on the first
    {"rooms": [...], "kill": 4711}    that process dies when a room waits for its pages, and they are given then
    {"check": [{"pages": [5, 2], "from": [3, 1], "aux": 1, "from_aux": 0}], "seed": 1}    on the second

No model runs: SGLang's engine on CPUs needs kernels that are not on PyPI.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
import time
from typing import Any

import numpy as np

from tent.buffers import address_of
from tent.testing import Memory

LAYERS, PAGES, PAGE, SLOTS, AUX = 4, 256, 16384, 16, 512
TOKENS = 16  # of a page
LIMIT = 60.0  # seconds for all rooms of a command


def main() -> None:
    role, backend, port, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    os.environ.setdefault("SGLANG_HOST_IP", "127.0.0.1")
    importlib.import_module("sglang.srt.plugins").load_plugins()
    check_the_line(role, backend)
    context = importlib.import_module("sglang.srt.runtime_context")
    settings = {
        "host": "127.0.0.1", "device": "cpu", "disaggregation_mode": role,
        "disaggregation_transfer_backend": backend, "disaggregation_bootstrap_port": port,
    }  # fmt: skip
    arguments = context.get_context().override_server_args(**settings).install()
    alone = dict.fromkeys(("attn_tp_rank", "attn_cp_rank", "attn_dp_rank", "attn_dcp_rank"), 0)
    context.get_parallel().override_permanently(**alone, pp_group=None)
    server = Server(role, backend, port, seed, arguments)
    print(json.dumps({"ready": type(server.manager).__name__}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if "rooms" in command:
            answer = server.rooms(command["rooms"], command.get("kill"))
        else:
            answer = {"wrong": server.wrong(command["check"], command["seed"])}
        print(json.dumps(answer), flush=True)
    os._exit(0)  # SGLang's threads never end


def check_the_line(role: str, backend: str) -> None:
    """Ends the process where SGLang's own command does not know these options."""
    parser = argparse.ArgumentParser()
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    line = ["--model-path", "M", "--disaggregation-mode", role, "--disaggregation-transfer-backend", backend]
    parser.parse_args(line)


class Pool:
    """Pages for K and for V of each layer, and aux slots."""

    def __init__(self, seed: int) -> None:
        self.kv = [Memory(PAGES * PAGE, seed + i) for i in range(2 * LAYERS)]
        self.aux = Memory(SLOTS * AUX, seed + 2 * LAYERS)

    def describe(self, arguments: Any) -> Any:
        """Fills in SGLang's description of a scheduler's memory, as its queues do."""
        arguments.engine_rank = arguments.pp_rank = arguments.gpu_id = arguments.num_draft_entries = 0
        arguments.system_dp_rank = arguments.kv_layout = arguments.ib_device = arguments.rust_http_port = None
        arguments.kv_cache_dtype_str, arguments.page_size = "auto", TOKENS
        arguments.kv_head_num = arguments.total_kv_head_num = 4
        arguments.prefill_start_layer, arguments.prefill_end_layer = 0, LAYERS
        arguments.kv_layer_ids = [*range(LAYERS)] * 2
        arguments.kv_data_ptrs = [address_of(memory.view) for memory in self.kv]
        arguments.kv_data_lens, arguments.kv_item_lens = [PAGES * PAGE] * 2 * LAYERS, [PAGE] * 2 * LAYERS
        arguments.aux_data_ptrs, arguments.aux_data_lens = [address_of(self.aux.view)], [self.aux.size]
        arguments.aux_item_lens = [AUX]
        for name in ("types", "data_ptrs", "data_lens", "item_lens", "layer_ids", "dim_per_tensor"):
            setattr(arguments, f"state_{name}", [])
        arguments.state_slice_outer_counts, arguments.state_conv_shard_groups = [], []
        arguments.is_hybrid_mla_backend, arguments.mla_compression_ratios = False, None
        return arguments


class Server:
    """The disaggregation of one side."""

    def __init__(self, role: str, backend: str, port: int, seed: int, arguments: Any) -> None:
        utils = importlib.import_module("sglang.srt.disaggregation.utils")
        kinds = utils.KVClassType
        self.base = importlib.import_module("sglang.srt.disaggregation.base.conn")
        self.role, self.address, self.pool = role, f"127.0.0.1:{port}", Pool(seed)

        def found(kind: Any) -> Any:
            return utils.get_kv_class(utils.TransferBackend(backend), kind)

        described = self.pool.describe(found(kinds.KVARGS)())
        if backend == "nixl":  # which takes the kinds at their word
            described.kv_data_mem_kinds = ["DRAM"] * 2 * LAYERS
        if backend == "mooncake":  # its engine is of the process
            os.environ.setdefault("MOONCAKE_PROTOCOL", "tcp")
            place = "sglang.srt.distributed.device_communicators.mooncake_transfer_engine"
            importlib.import_module(place).init_mooncake_transfer_engine("127.0.0.1", 0)
        if role == "prefill":
            self.bootstrap = found(kinds.BOOTSTRAP_SERVER)(host="127.0.0.1", port=port)
        self.manager = found(kinds.MANAGER)(described, utils.DisaggregationMode(role), arguments, False)
        self.kind = found(kinds.SENDER if role == "prefill" else kinds.RECEIVER)

    def rooms(self, rooms: list[dict[str, Any]], kill: int | None) -> dict[str, Any]:
        """Runs rooms side by side to their ends, as the scheduler polls them; the ends by room."""
        until, ends = time.monotonic() + LIMIT, dict[int, str]()
        if self.role == "decode":
            self._meet(until)
        open_rooms = {room["room"]: (room, self._begun(room)) for room in rooms}
        waiting = set(open_rooms)
        while open_rooms and time.monotonic() < until:
            for number, (room, party) in list(open_rooms.items()):
                state = party.poll()
                if state == self.base.KVPoll.WaitingForInput and number in waiting:
                    waiting.discard(number)
                    if kill is not None:
                        os.kill(kill, signal.SIGKILL)
                    self._give(room, party)
                elif state in (self.base.KVPoll.Success, self.base.KVPoll.Failed):
                    ends[number] = "success" if state == self.base.KVPoll.Success else self._failure(party)
                    party.clear()
                    del open_rooms[number]
        return {"ends": ends | dict.fromkeys(open_rooms, "it has not ended")}

    def _meet(self, until: float) -> None:
        """Learns of the prefill server; it may still be starting."""
        while not self.manager.try_ensure_parallel_info(self.address) and time.monotonic() < until:
            time.sleep(0.1)

    def _begun(self, room: dict[str, Any]) -> Any:
        party = self.kind(mgr=self.manager, bootstrap_addr=self.address, bootstrap_room=room["room"])
        if self.role == "prefill":
            party.init(len(room["pages"]), room["aux"])
        else:
            party.init(0)
        return party

    def _give(self, room: dict[str, Any], party: Any) -> None:
        """Sends a room's pages in its chunks, or says where they belong."""
        pages = np.array(room["pages"], np.int32)
        if self.role == "decode":
            party.send_metadata(pages, room["aux"], [])
            return
        at = 0
        for chunk in room["chunks"]:
            party.send(pages[at : at + chunk], [] if at + chunk == len(pages) else None)
            at += chunk

    def _failure(self, party: Any) -> str:
        try:
            party.failure_exception()
        except Exception as error:  # any error of the backend is the answer
            return f"{type(error).__name__}: {error}"
        return "failed without an error"

    def wrong(self, moves: list[dict[str, Any]], seed: int) -> str:
        """The first byte that is not as it must be after these rooms, "" without one; `seed` is the other side's."""
        theirs, mine = Pool(seed), self.pool
        for move in moves:
            for source, target in zip(theirs.kv, mine.kv):
                for i, j in zip(move["from"], move["pages"]):
                    target.expect(j * PAGE, source.expected[i * PAGE : (i + 1) * PAGE])
            i, j = move["from_aux"], move["aux"]
            mine.aux.expect(j * AUX, theirs.aux.expected[i * AUX : (i + 1) * AUX])
        return next(filter(None, (memory.unexpected() for memory in [*mine.kv, mine.aux])), "")


if __name__ == "__main__":
    main()
