"""Priorities and deadlines: the seed's configurations and calls as printed there, and their effect on transfers over a
slow rail.

Order and bytes are looked at, never times: the rail is slowed by a fault, so that a request that must wait does wait.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peer_side
import pytest

import tent
from tent import buffers
from tent.testing import Memory, PeerProcess
from tent.testing.faults import Faults

pytestmark = pytest.mark.clock  # times, and a file of the host that all of its tests share

Open = Callable[..., tent.Engine]

MIB = 1 << 20
SHM = Path("/dev/shm/mooncake_rdma_slots")

# The configurations of the seed's three examples, as printed there.
EXAMPLES = {
    "latency-critical": """
{
  "transports": {
    "rdma": {
      "enable_priority_filtering": true,
      "slot_rotation_interval_ms": 1,
      "shared_quota_shm_path": "/mooncake_rdma_slots"
    }
  }
}
""",
    "single-process": """
{
  "transports": {
    "rdma": {
      "enable_priority_filtering": true,
      "shared_quota_shm_path": ""
    }
  }
}
""",
    "bulk-friendly": """
{
  "transports": {
    "rdma": {
      "slot_rotation_interval_ms": 10,
      "shared_quota_shm_path": "/mooncake_rdma_slots"
    }
  }
}
""",
}


@pytest.fixture(autouse=True)
def nothing_left_in_shm() -> Iterator[None]:
    """The seed's configurations name a file of the whole machine."""
    before = SHM.exists()
    yield
    if not before:
        SHM.unlink(missing_ok=True)


class Slow:
    """A pair of engines with one rail of `rate` bytes a second, with `size` bytes at both ends."""

    def __init__(
        self, make: Open, keep: Any, seed: int, size: int, rate: float, config: Any = None, **settings: Any
    ) -> None:
        settings = {
            "transports/shm/enable": False,
            "transports/tcp/window_bytes": MIB,
            "allow_faults": True,
            **settings,
        }
        near = {"config": config, **settings} if config is not None else settings
        self.near, self.far = make(**near), make(**settings)
        self.mine, self.theirs = Memory(size, seed % 1000), Memory(size, seed % 1000 + 1)
        self.local = keep(self.near.register(self.mine.view))
        keep(self.far.register(self.theirs.view, name="kv"))
        self.remote = self.near.open(self.far.address)["kv"]
        self.write(0, 1, timeout=10).result(10)  # the rail is up
        Faults(self.near).slow(rate)

    def write(self, at: int, n: int, **common: Any) -> tent.Transfer:
        return self.near.write(self.local[at : at + n], self.remote[at : at + n], **common)

    def arrives(self, at: int, n: int) -> None:
        """Expect the bytes of a write, whole."""
        self.theirs.expect(at, self.mine.expected[at : at + n])

    def missed(self, stage: str, priority: str = "low") -> float:
        labels = f'transport="tcp",class="{priority}",stage="{stage}"'
        return self.near.metrics()[f"tent_deadline_misses_total{{{labels}}}"]

    def check(self) -> None:
        """Every byte, now and after the engines have closed."""
        for _ in range(2):
            self.mine.check()
            self.theirs.check()
            self.near.close(timeout=0)
            self.far.close(timeout=0)


@pytest.fixture
def slow(engines: Open, keep: Any, seed: int) -> Callable[..., Slow]:
    def make(size: int = 16 * MIB, rate: float = 32 * MIB, **settings: Any) -> Slow:
        return Slow(engines, keep, seed, size, rate, **settings)

    return make


# The three configurations


@pytest.mark.parametrize("branch", ["rdma", "tcp"])
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_seed_loads_from_its_file(example: str, branch: str, engines: Open, tmp_path: Path) -> None:
    tree = json.loads(EXAMPLES[example])
    other = json.dumps({"transports": {branch: tree["transports"]["rdma"]}})
    text = EXAMPLES[example] if branch == "rdma" else other
    path = tmp_path / "transfer-engine.json"
    path.write_text(text)
    engine = engines(config=str(path))
    for key, value in tree["transports"]["rdma"].items():
        setting = engine.config[f"transports/{branch}/{key}"]
        assert setting.value == value and setting.origin != "default"
        assert setting.active == (branch == "tcp" or engine.config["transports/rdma/enable"].active), key
    with tent.TransferEngine(str(path)) as integers:
        assert integers.engine.config[f"transports/{branch}/enable_priority_filtering"].value is True


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_seed_keeps_its_table(example: str, slow: Callable[..., Slow], tmp_path: Path) -> None:
    settings = json.loads(EXAMPLES[example])["transports"]["rdma"]
    path = tmp_path / "transfer-engine.json"
    path.write_text(json.dumps({"transports": {"tcp": settings}}))
    before = SHM.exists()
    world = slow(rate=8 * MIB, config=str(path))  # LOW takes a second, in which a busy machine finds time for HIGH
    if settings["shared_quota_shm_path"]:
        assert SHM.exists(), "the processes of this host meet here"
    else:
        assert SHM.exists() == before, "no coordination, no file"

    # HIGH comes before LOW that was there first.
    low = world.write(0, 8 * MIB, priority=tent.PRIO_LOW)
    for i in range(4):
        ended_before = low.done()
        assert world.write((8 + i) * MIB, 65536, priority=tent.PRIO_HIGH).result(30) == 65536
        world.arrives((8 + i) * MIB, 65536)
        assert i > 0 or not ended_before
    assert low.bytes < 8 * MIB, "four small requests of HIGH took longer than all of LOW, which was there first"
    assert low.result(60) == 8 * MIB
    world.arrives(0, 8 * MIB)

    # LOW ends although HIGH never stops.
    low = world.write(0, 65536, priority=tent.PRIO_LOW)
    high = [world.write(12 * MIB, MIB, priority=tent.PRIO_HIGH), world.write(13 * MIB, MIB, priority=tent.PRIO_HIGH)]
    rounds = 0
    while not low.done():
        at = (12 + rounds % 2) * MIB
        high.append(world.write(at, MIB, priority=tent.PRIO_HIGH))
        assert high.pop(0).result(30) == MIB
        rounds += 1
        assert rounds < 200, "LOW starves"
    for transfer in high:
        transfer.result(30)
    assert low.result() == 65536
    world.arrives(12 * MIB, 2 * MIB)
    world.check()


# The calls of the seed, as printed


def test_the_python_calls_of_the_seed(pair: Any) -> None:
    both = pair(1 << 16)
    memory = Memory(1 << 12, 5)
    engine = tent.TransferEngine()
    buffer_addr, size = buffers.address_of(memory.view), 1 << 12
    engine.register_local_memory(buffer_addr, size)
    segment_id = engine.open_segment(both.far.address + "/kv")
    batch_id = engine.allocate_transfer_batch(4)
    # fmt: off
    # Create request with default priority (HIGH)
    req = tent.Request(
        opcode=tent.OpCode.READ,
        source=buffer_addr,
        target_id=segment_id,
        target_offset=0,
        length=size
    )
    # req.priority is tent.PRIO_HIGH by default
    assert req.priority == tent.PRIO_HIGH == 0

    # Or specify priority in constructor
    req = tent.Request(
        opcode=tent.OpCode.READ,
        source=buffer_addr,
        target_id=segment_id,
        target_offset=0,
        length=size,
        priority=tent.PRIO_LOW  # or PRIO_HIGH, PRIO_MEDIUM
    )

    # Or set after creation
    req.priority = tent.PRIO_MEDIUM

    # Submit the request
    engine.submit_transfer(batch_id, [req])
    # fmt: on
    assert engine.wait(batch_id, 10) == (tent.TransferStatusEnum.COMPLETED, size)
    memory.expect(0, both.theirs.expected[:size])
    served = engine.engine.metrics()
    assert sum(served[f'tent_read_bytes_total{{transport="{name}",class="medium"}}'] for name in ("tcp", "shm")) == size
    engine.close()
    memory.check()


@pytest.mark.parametrize("priority", [3, -1, 256, 1 << 40, "high", None, 1.5])
def test_a_wrong_priority_is_a_clear_error(priority: Any, engine: tent.Engine, keep: Any) -> None:
    local = keep(engine.allocate(4096))
    with tent.TransferEngine() as integers:
        address = integers.allocate_local_memory(4096)
        batch = integers.allocate_transfer_batch(1)
        req = tent.Request(opcode=tent.OpCode.WRITE, source=address, target_id=0, target_offset=address, length=64)
        req.priority = priority
        with pytest.raises(tent.InvalidArgumentError, match="priority"):
            integers.submit_transfer(batch, [req])
        assert integers.get_transfer_status_list(batch) == []
        integers.free_transfer_batch(batch)
    for call in (
        lambda: engine.write(local[0:64], local[64:128], priority=priority),
        lambda: engine.write_pages(local, [0], local, [1], page_bytes=64, priority=priority),
        lambda: engine.batch(priority=priority),
    ):
        if priority is None:  # the engine's default_priority
            call()
            continue
        with pytest.raises(tent.InvalidArgumentError, match="priority"):
            call()


# Deadlines


def test_a_request_whose_deadline_passes_in_the_queue_sends_no_byte(slow: Callable[..., Slow]) -> None:
    world = slow()
    with world.near.events() as events:
        first = world.write(0, 8 * MIB, priority=tent.PRIO_LOW)
        late = world.write(8 * MIB, MIB, priority=tent.PRIO_LOW, timeout=0.05)
        with pytest.raises(tent.TransferTimeoutError) as caught:
            late.result(30)
        assert (late.bytes, caught.value.attempts) == (0, 0)
        assert world.missed("queued") == 1 and world.missed("sent") == 0
        missed = events.wait_for("deadline_missed", timeout=10)
        assert (missed.n, missed.m, missed.transport, missed.peer) == (1, 1, "tcp", world.far.address)
    assert first.result(60) == 8 * MIB
    world.arrives(0, 8 * MIB)
    world.check()


def test_a_request_that_is_late_on_its_way_is_called_back(slow: Callable[..., Slow]) -> None:
    world = slow(rate=MIB)
    late = world.write(0, 8 * MIB, timeout=0.3)
    with pytest.raises(tent.TransferTimeoutError):
        late.result(30)
    assert late.bytes < 8 * MIB
    assert world.missed("sent", "high") == 1 and world.missed("queued", "high") == 0
    Faults(world.near).heal()
    assert world.write(0, 8 * MIB).result(30) == 8 * MIB
    world.arrives(0, 8 * MIB)
    world.check()


def test_deadline_ns_of_a_request_that_has_passed(pair: Any) -> None:
    both = pair(1 << 16)
    with tent.TransferEngine() as engine:
        address = engine.allocate_local_memory(4096)
        segment = engine.open_segment(both.far.address + "/kv")
        past = time.monotonic_ns() - 1
        request = tent.Request(tent.OpCode.WRITE, address, segment, 0, 4096, deadline_ns=past)
        batch = engine.allocate_transfer_batch(1)
        engine.submit_transfer(batch, [request])
        assert engine.wait(batch, 10) == (tent.TransferStatusEnum.TIMEOUT, 0)
        engine.free_transfer_batch(batch)
    both.check()


def test_a_deadline_bounds_the_first_question_to_a_peer(
    engine: tent.Engine, keep: Any, peers: Callable[..., PeerProcess]
) -> None:
    peer = peers()
    blob = bytes.fromhex(peer.run(peer_side.export))
    local = keep(engine.allocate(4096))
    peer.stop()
    with engine.open(blob) as far:  # does not contact it
        begun = time.monotonic()
        with pytest.raises(TimeoutError):  # nothing has begun, so no transfer has ended
            engine.write(local, far["kv"][0:4096], timeout=0.1)
        assert time.monotonic() - begun < 1.5, "a peer that is silent is waited for longer than the request has"
    peer.resume()


def test_the_earliest_deadline_is_first_where_the_setting_is_on(slow: Callable[..., Slow]) -> None:
    world = slow(**{"transports/tcp/deadline_bw_arbitration": True})
    before = world.write(0, 4 * MIB)
    last = world.write(4 * MIB, 4 * MIB)
    second = world.write(8 * MIB, 4 * MIB, timeout=600)
    first = world.write(12 * MIB, 4 * MIB, timeout=300)
    while not last.done():  # the one read first cannot have come later
        if last.bytes > 0:
            assert first.done(), "bytes without a deadline came before those of the earliest"
            break
        if second.bytes > 2 * MIB:
            assert first.bytes > 0
        tent.wait([last], timeout=0.005)
    for transfer in (before, first, second, last):
        assert transfer.result(60) == 4 * MIB
    world.arrives(0, 16 * MIB)
    world.check()


def test_a_request_that_cannot_make_it_is_not_sent_where_the_setting_is_on(slow: Callable[..., Slow]) -> None:
    world = slow(rate=4 * MIB, **{"transports/tcp/deadline_bw_arbitration": True})
    assert world.write(0, 8 * MIB).result(30) == 8 * MIB  # now the rate of the rail is known
    world.arrives(0, 8 * MIB)
    hopeless = world.write(8 * MIB, 8 * MIB, timeout=0.05)  # it takes two seconds
    with pytest.raises(
        tent.TransferTimeoutError, match="the deadline cannot be met: 8388608 bytes take at least"
    ) as caught:
        hopeless.result(30)
    assert "deadline_bw_arbitration" in caught.value.hint
    assert (hopeless.bytes, caught.value.attempts) == (0, 0)
    assert world.near.metrics()["tent_deadline_infeasible_total"] == 1
    assert world.missed("queued", "high") == 1
    assert world.write(8 * MIB, MIB, timeout=30).result(30) == MIB
    world.arrives(8 * MIB, MIB)
    world.check()


# Seen


def test_waiting_requests_are_seen_by_class(slow: Callable[..., Slow]) -> None:
    world = slow(rate=8 * MIB)
    low = world.write(0, 8 * MIB, priority=tent.PRIO_LOW)
    medium = world.write(8 * MIB, MIB, priority=tent.PRIO_MEDIUM)
    seen = world.near.metrics()
    for name, most in (("low", 8 * MIB), ("medium", MIB)):
        labels = f'{{transport="tcp",class="{name}"}}'
        assert seen["tent_queue_depth" + labels] <= 1
        assert seen["tent_queue_bytes" + labels] <= most
    assert seen["tent_queue_bytes"] + seen["tent_in_flight_bytes"] + low.bytes + medium.bytes >= 9 * MIB
    assert (
        seen['tent_queue_depth{transport="tcp",class="high"}']
        == seen['tent_queue_bytes{transport="tcp",class="high"}']
        == 0
    )
    assert medium.result(60) == MIB and low.result(60) == 8 * MIB
    seen = world.near.metrics()
    for name, n in (("low", 8 * MIB), ("medium", MIB)):
        labels = f'{{transport="tcp",class="{name}"}}'
        assert seen["tent_write_bytes_total" + labels] == n
        assert seen["tent_stage_queue_wait_us_count" + labels] == 1
        assert seen["tent_queue_bytes" + labels] == 0
    text = world.near.metrics_text()
    assert 'tent_queue_bytes{class="low",transport="tcp"} 0' in text
    assert 'tent_deadline_misses_total{class="low",stage="queued",transport="tcp"} 0' in text
    world.arrives(0, 9 * MIB)
    world.check()


def test_traffic_is_the_seeds_table(slow: Callable[..., Slow]) -> None:
    world = slow()
    world.write(0, 2_000_000).result(30)
    world.arrives(0, 2_000_000)
    (rail,) = world.near.traffic()
    assert (rail.transport, rail.peer, rail.local) == ("tcp", world.far.address, "127.0.0.1")
    assert rail.total == 2_000_001 and rail.rate > 0 and rail.in_flight == 0
    first, line = str(world.near.traffic()).splitlines()
    assert first == "=== Device Traffic Statistics ==="
    assert line.startswith(
        f"Dev 0: Total=2.0 MB, EWMA BW={rail.rate * 8 / 1e9:.2f} Gbps, Inflight=0 bytes (tcp 127.0.0.1 -> "
    )
    world.check()
