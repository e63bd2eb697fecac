"""Processes of a host share slots and the load of NICs by a name in shared memory.

The living go on without the others, without the file, and without its name. The turns of the classes are tested in Go.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peer_side
import pytest

import tent
from tent.testing import Memory, PeerProcess, pattern

KEY = "transports/tcp/shared_quota_shm_path"
SIZE = 8 << 20
FOLDER = Path("/dev/shm")

pytestmark = pytest.mark.skipif(not os.access(FOLDER, os.W_OK), reason="/dev/shm cannot be written to")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A file of shared slots that nobody else has; gone at the end."""
    file = FOLDER / f"tent-test-{os.getpid()}-{tmp_path.name}"
    yield file
    file.unlink(missing_ok=True)


def settings(path: Path, **more: Any) -> dict[str, Any]:
    """By tcp, with slots."""
    return {KEY: f"/{path.name}", "transports/shm/trust": "none", **more}


def processes(engine: tent.Engine) -> float:
    """How many engines share the slots, as the engine sees it."""
    return engine.metrics()['tent_shared_processes{transport="tcp"}']


def until(what: Callable[[], bool], seconds: float = 20) -> None:
    """Waits for something that comes by itself."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it does not come"
        threading.Event().wait(0.005)


class Flood:
    """A peer that writes LOW to a target, again and again, until it is told to end."""

    def __init__(self, peer: PeerProcess, target: str) -> None:
        self.peer = peer
        peer.run(peer_side.flood, target=target, priority=tent.PRIO_LOW)

    def rounds(self) -> int:
        return int(self.peer.run(peer_side.flooded))

    def end(self) -> int:
        return int(self.peer.run(peer_side.ebb))


class Scene:
    """This process writes HIGH to a server, while a process beside it writes LOW there; all three share slots."""

    def __init__(
        self, path: Path, engines: Callable[..., tent.Engine], peers: Callable[..., PeerProcess], keep: Any, seed: int
    ) -> None:
        self.near = engines(**settings(path))
        self.mine = Memory(1 << 20, seed % 1000)
        self.local = keep(self.near.register(self.mine.view))
        self.server = peers(size=2 * SIZE, seed=1, settings=settings(path))
        self.other = peers(size=SIZE, seed=2, settings=settings(path))
        self.flood = Flood(self.other, self.server.address)
        self.kv = self.near.open(self.server.address)["kv"]
        self.written = 0

    def write(self, n: int = 20) -> None:
        """HIGH, to places of their own behind those of the flood, each with other bytes."""
        for _ in range(n):
            self.written += 1
            self.mine.view[:] = pattern(self.written, 0, self.mine.size)
            self.mine.expect(0, pattern(self.written, 0, self.mine.size))
            at = SIZE + self.written % 8 * self.mine.size
            assert self.near.write(self.local[:], self.kv[at : at + self.mine.size], priority=tent.PRIO_HIGH).result(20)
            self.mine.check()

    def check(self, flood: bool = True) -> None:
        """Every byte at the server; without those of the flood where it was cut off."""
        last = range(max(1, self.written - 7), self.written + 1)
        expected = [[SIZE + i % 8 * self.mine.size, self.mine.size, i, 0] for i in last]
        if flood:
            expected.append([0, SIZE, 2, 0])
        else:
            wrong = self.server.run(peer_side.forget, offset=0, n=SIZE, theirs=2)
            assert wrong == "", wrong
        wrong = self.server.run(peer_side.check, written=expected)
        assert wrong == "", wrong


@pytest.fixture
def scene(path: Path, engines: Any, peers: Any, keep: Any, seed: int) -> Scene:
    """Three processes with slots on."""
    return Scene(path, engines, peers, keep, seed)


def test_high_of_one_process_and_low_of_another_both_end(scene: Scene) -> None:
    scene.write()
    assert processes(scene.near) == 3
    before = scene.flood.rounds()
    until(lambda: scene.flood.rounds() > before)  # LOW goes on

    def waited() -> bool:
        scene.write(5)
        return bool(scene.other.metrics()['tent_slot_waits_total{transport="tcp",class="low"}'] > 0)

    until(waited)  # and leaves the slots to HIGH, of which it knows by the shared memory alone
    assert scene.flood.end() > 0
    scene.check()


def test_a_killed_process_holds_nobody_up(scene: Scene) -> None:
    scene.write()
    scene.other.kill()
    scene.write()
    assert processes(scene.near) == 2
    until(lambda: scene.near.metrics()['tent_shared_others_bytes{transport="tcp",device="lo"}'] == 0)
    scene.check(flood=False)


def test_a_stopped_process_holds_nobody_up_and_goes_on_later(scene: Scene) -> None:
    scene.write()
    scene.other.stop()
    began = time.monotonic()
    scene.write()
    assert time.monotonic() - began < 20
    until(lambda: scene.near.metrics()['tent_shared_others_bytes{transport="tcp",device="lo"}'] == 0)
    scene.other.resume()
    scene.write()
    before = scene.flood.rounds()
    until(lambda: scene.flood.rounds() > before)
    scene.flood.end()
    scene.check()


def test_a_forked_child_keeps_the_place_of_the_dead_and_nothing_else(scene: Scene) -> None:
    scene.write()
    scene.other.run(peer_side.fork)
    scene.other.kill()
    scene.write()
    until(lambda: scene.near.metrics()['tent_shared_others_bytes{transport="tcp",device="lo"}'] == 0)
    assert processes(scene.near) == 3
    assert scene.other.process.stdin
    scene.other.process.stdin.close()
    until(lambda: processes(scene.near) == 2)
    scene.check(flood=False)


def test_a_removed_file_is_followed_by_a_new_one(scene: Scene, path: Path) -> None:
    scene.write()
    old = path.stat().st_ino
    path.unlink()

    def moved() -> bool:
        scene.write(1)
        # The server sends nothing, so it sleeps; it would follow with its first transfer.
        return path.exists() and path.stat().st_ino != old and processes(scene.near) == 2

    until(moved)
    scene.write()
    scene.flood.end()
    scene.check()


@pytest.mark.parametrize("length", [0, 4096])
def test_a_file_cut_short_ends_sharing_and_no_transfer(scene: Scene, path: Path, length: int) -> None:
    scene.write()
    with scene.near.events() as events:
        os.truncate(path, length)
        scene.write()
        off = events.wait_for("sharing_off", 20)
        assert off.transport == "tcp"
        assert f"rm -f {path}" in off.error
        assert "are not shared at the moment" in sharing(scene)
        scene.write()
        path.unlink()
        scene.write()
        events.wait_for("sharing_on", 20)
    scene.write()
    assert "processes that share" in sharing(scene)
    scene.flood.end()
    scene.check()


def sharing(scene: Scene) -> str:
    """Returns the note of explain() about tcp."""
    (route,) = [r for r in scene.near.explain(scene.local, scene.kv)["routes"] if r["transport"] == "tcp"]
    return str(route["sharing"])


def test_explain_and_metrics_say_how_it_stands(scene: Scene, path: Path) -> None:
    scene.write()
    text = sharing(scene)
    assert re.match(rf"slot [012] of 0 to 2, 2ms each; processes that share {path}: 3", text), text
    assert "bytes in flight on lo" in text
    until(lambda: scene.near.metrics()['tent_shared_others_bytes{transport="tcp",device="lo"}'] > 0)
    assert 'tent_shared_processes{transport="tcp"} 3' in scene.near.metrics_text()
    scene.flood.end()


def test_without_a_name_nothing_is_shared(engines: Callable[..., tent.Engine]) -> None:
    before = mapped()
    for given in ({}, {KEY: ""}):
        engine = engines(**given)
        assert processes(engine) == 0
        assert mapped() <= before


def mapped() -> set[str]:
    """Files in shared memory that this process maps."""
    return {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if f"{FOLDER}/" in line}


def test_two_engines_of_a_process_are_two_and_leave_when_they_close(path: Path) -> None:
    with tent.Engine(**settings(path)) as first:
        with tent.Engine(**settings(path)) as second:
            assert processes(first) == processes(second) == 2
        assert processes(first) == 1
    assert path.name not in Path("/proc/self/maps").read_text()
    assert all(path.name not in os.readlink(f"/proc/self/fd/{fd}") for fd in descriptors())
    assert path.stat().st_mode & 0o777 == 0o600


def descriptors() -> list[str]:
    """Those of this process, without that of the listing itself."""
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]


@pytest.mark.parametrize(
    "content", [b"", b"somebody's notes", (0x2025082772805203).to_bytes(8, "little") + b"\x0a\x00\x00\x00" + bytes(100)]
)
def test_a_stale_or_foreign_file_is_refused_with_advice_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(tent.TentError) as caught:
        tent.Engine(**settings(path))
    assert f"rm -f {path}" in str(caught.value)
    assert KEY in str(caught.value)
    assert path.read_bytes() == content


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_another_users_file_is_refused(path: Path) -> None:
    tent.Engine(**settings(path)).close()
    os.chown(path, 12345, -1)
    with pytest.raises(PermissionError, match=rf"{path} belongs to the user with uid 12345.*set {KEY}"):
        tent.Engine(**settings(path))


def test_another_interval_is_refused_while_somebody_is_there(path: Path) -> None:
    other = settings(path, **{"transports/tcp/slot_rotation_interval_ms": 5})
    refused = pytest.raises(ValueError, match=r"slot_rotation_interval_ms is 5ms, but the processes .* have 2ms")
    with tent.Engine(**settings(path)), refused:
        tent.Engine(**other)
    with tent.Engine(**other) as engine:
        assert processes(engine) == 1


def test_doctor_says_whether_memory_can_be_shared(capfd: pytest.CaptureFixture[str]) -> None:
    from tent.__main__ import main

    assert main(["doctor"]) == 0
    assert re.search(r"^ok +shared memory ", capfd.readouterr().out, re.M)
