"""SGLang's disaggregation over tent: its own manager, senders, receivers and bootstrap server, in two processes that
move pages between pools of host memory. By the backend "tent", and by SGLang's own with tent in the place of NIXL and
of Mooncake. The same once more over the real engines, so that a difference is ours.

It needs sglang; `make test-clients` has its wheel. No model runs: its engine on CPUs needs kernels that PyPI lacks.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from channel import why_missing
from counters import Counters
from ports import free_ports

pytestmark = pytest.mark.timeout(480)

ROLE = Path(__file__).with_name("sglang_role.py")
PAGES, SLOTS = 256, 16  # of a server
QUICK = {
    "HF_HUB_OFFLINE": "1", "SGLANG_HOST_IP": "127.0.0.1",
    "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "2", "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE": "1",
}  # fmt: skip
MANAGERS = {"tent": "TentKVManager", "nixl": "NixlKVManager", "mooncake": "MooncakeKVManager"}


@dataclass(frozen=True)
class Backend:
    """A transfer backend of SGLang, and the module behind it."""

    name: str
    stands_for: str = ""  # the module that tent stands for
    needs: str = ""  # the module that must be there


BACKENDS = {
    "tent": Backend("tent"),
    "tent-as-nixl": Backend("nixl", stands_for="nixl"),
    "tent-as-mooncake": Backend("mooncake", stands_for="mooncake"),
    "nixl": Backend("nixl", needs="nixl"),
    "mooncake": Backend("mooncake", needs="mooncake.engine"),
}


class Side:
    """One server."""

    def __init__(
        self, role: str, backend: Backend, port: int, seed: int, log: Path, settings: dict[str, Any] | None = None
    ) -> None:
        """`settings` are those of the engine of tent."""
        self.seed, self.backend, self.log = seed, backend, log
        stands = ["-m", "tent", "run", "--as", backend.stands_for, "--", sys.executable] if backend.stands_for else []
        command = [sys.executable, *stands, str(ROLE), role, backend.name, str(port), str(seed)]
        environment = {**os.environ, **QUICK}
        if settings is not None:
            environment["TENT_COMPAT"] = json.dumps({"config": settings})
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True
            )

    def ready(self) -> Side:
        """Waits for its manager."""
        assert self.hear() == {"ready": MANAGERS[self.backend.name]}, self.said()
        return self

    def say(self, **command: Any) -> None:
        """Sends a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Its next answer; the engines' own lines are left out."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise AssertionError(f"it has ended with {self.process.wait(30)}:\n{self.said()}")

    def said(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        """Ends it. Again: no effect."""
        self.process.kill()
        self.process.communicate()


class Pair:
    """A prefill and a decode server."""

    def __init__(
        self, backend: Backend, folder: Path, seed: int, here: dict[str, Any] | None = None,
        there: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """`here` and `there` are settings of the engines of tent, on the prefill and on the decode server."""
        (self.port,) = free_ports(1)
        self.backend, self.folder, self.dice = backend, folder, random.Random(seed)
        self.settings = {"prefill": here, "decode": there}
        self.seed, self.rooms = seed, 0
        self.prefill, self.decode = self.started("prefill"), self.started("decode")
        for side in (self.prefill, self.decode):
            side.ready()

    def started(self, role: str) -> Side:
        """A new server, with memory in a pattern of its own."""
        self.seed += 100
        log = self.folder / f"{role}-{self.seed}.log"
        return Side(role, self.backend, self.port, self.seed, log, self.settings[role])

    def drawn(self, n: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Rooms as each side has them, with pages and aux slots of their own over there, and chunks of any size."""
        free, rooms = self.dice.sample(range(PAGES), 8 * n), []
        for aux in self.dice.sample(range(SLOTS), n):
            self.rooms += 1
            pages = [free.pop() for _ in range(self.dice.randint(1, 8))]
            here = {"room": self.rooms, "pages": self.dice.sample(range(PAGES), len(pages)), "aux": aux}
            cut = self.dice.randint(0, len(pages) - 1)
            here["chunks"] = [cut, len(pages) - cut] if cut else [len(pages)]
            rooms.append((here, {"room": self.rooms, "pages": pages, "aux": aux}))
        return rooms

    def move(self, n: int) -> None:
        """Moves rooms side by side, and looks at every byte of the decode server, those of earlier rooms too."""
        rooms = self.drawn(n)
        self.prefill.say(rooms=[here for here, _ in rooms])
        self.decode.say(rooms=[there for _, there in rooms])
        for side in (self.prefill, self.decode):
            ends = side.hear()["ends"]
            assert ends == {str(here["room"]): "success" for here, _ in rooms}, side.said()
        moved = [{**there, "from": here["pages"], "from_aux": here["aux"]} for here, there in rooms]
        self.decode.say(check=moved, seed=self.prefill.seed)
        assert self.decode.hear() == {"wrong": ""}

    def close(self) -> None:
        """Ends both."""
        for side in (self.prefill, self.decode):
            side.kill()


@pytest.fixture(scope="module", params=BACKENDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    backend = BACKENDS[request.param]
    if missing := why_missing(backend.needs):
        pytest.skip(f"{backend.needs} cannot be imported here: {missing}")
    made = Pair(backend, tmp_path_factory.mktemp("sglang"), seed=random.randrange(1 << 20))
    yield made
    made.close()


def test_rooms_arrive_whole(pair: Pair) -> None:
    pair.move(1)
    pair.move(8)
    assert ("stands for" in pair.decode.log.read_text()) == bool(pair.backend.stands_for)


def test_a_decode_server_that_dies_fails_its_room_and_is_replaced(pair: Pair) -> None:
    """Its pages are known and it is gone when they are sent. The prefill server lives, and serves the successor."""
    ((here, there),) = pair.drawn(1)
    pair.decode.say(rooms=[there])
    pair.prefill.say(rooms=[here], kill=pair.decode.process.pid)
    (end,) = pair.prefill.hear()["ends"].values()
    assert end not in ("success", "it has not ended"), pair.prefill.said()
    pair.decode.kill()
    pair.decode = pair.started("decode").ready()
    pair.move(4)


def test_a_prefill_server_that_dies_fails_its_room_and_is_replaced(pair: Pair) -> None:
    """SGLang's decode server hears of it by its heartbeats. It lives, meets the successor at the same address, and
    the bytes that had come before are untouched."""
    ((_, there),) = pair.drawn(1)
    pair.decode.say(rooms=[there], kill=pair.prefill.process.pid)
    (end,) = pair.decode.hear()["ends"].values()
    assert end not in ("success", "it has not ended"), pair.decode.said()
    pair.prefill.kill()
    pair.prefill = pair.started("prefill").ready()
    pair.move(4)


@pytest.mark.parametrize("name", [name for name, backend in BACKENDS.items() if not backend.needs])
def test_a_rail_that_is_cut_costs_no_room(name: str, tmp_path: Path) -> None:
    """Two rails, one of which loses everything from the middle of a WRITE on: every room ends well. Where the engine
    uses the other rail more, further rooms reach the middle."""
    (port,) = free_ports(1)
    rails = {"shm": {"enable": False}, "tcp": {"addresses": ["127.0.0.1", "127.0.0.2"]}}
    faults = {"allow_faults": True, "faults": "rail=1 op=WRITE blackhole after_bytes=512KiB"}
    cut = {"transports": rails, "metrics": {"listen": f"127.0.0.1:{port}"}, **faults}
    pair = Pair(BACKENDS[name], tmp_path, random.randrange(1 << 20), cut, {"transports": rails})
    try:
        with Counters(port) as seen:
            for moves in range(10):
                if moves > 1 and seen.most.get("tent_reroutes_total"):
                    break
                pair.move(8)
    finally:
        pair.close()
    assert seen.most["tent_faults_injected_total"] > 0, "the rail was not cut"
    assert seen.most["tent_reroutes_total"] > 0
    assert seen.most["tent_write_failures_total"] == 0
