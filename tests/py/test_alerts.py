"""The alerts of docs/operate: each fires in the situation for which it is made, and no other does.

TentStrayCompletions watches for defects of the build's transports, which no fault makes; gocore/dispatch counts them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tent
from tent.command.top import Labels, parse
from tent.testing import Pair

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "operate" / "alerts.yml").read_text(encoding="utf-8")
RULES: dict[str, str] = dict(re.findall(r"- alert: (\w+)\n +expr: (.*) > 0$", TEXT, re.M))
MIB = 1 << 20

Scrape = dict[str, dict[Labels, float]]


def firing(before: Scrape, after: Scrape) -> set[str]:
    """The rules of which the sum is above 0: of counters it is their growth, of gauges their value."""
    found = set()
    for alert, expression in RULES.items():
        total = 0.0
        for function, name, selector in re.findall(r"(rate\(|increase\()?(tent_\w+)(\{[^}]*\})?", expression):
            wanted = set(re.findall(r'(\w+)="(\w+)"', selector))
            for labels, value in after[name].items():
                if wanted <= labels:
                    total += value - (before[name].get(labels, 0.0) if function else 0.0)
        if total > 0:
            found.add(alert)
    return found


@contextmanager
def watched(engine: tent.Engine) -> Iterator[Callable[[], set[str]]]:
    """The value returns the alerts that fire since the block began."""
    before = parse(engine.metrics_text())
    yield lambda: firing(before, parse(engine.metrics_text()))


def test_every_rule_is_a_sum_above_nothing() -> None:
    assert len(RULES) == TEXT.count("- alert:") > 3


def test_nothing_fires_while_all_is_well() -> None:
    with Pair(rails=2) as pair, pair.engine.allocate(MIB) as own, watched(pair.engine) as alerts:
        pair.peer.region("kv", MIB, 7)
        pair.engine.write(own, pair.segment["kv"], notify=("done", "1")).result(timeout=20)
        assert alerts() == set()


def test_nothing_fires_for_a_peer_that_has_ended() -> None:
    """Its segment may stay open for long; no path of anybody is broken."""
    with Pair(rails=2) as pair, watched(pair.engine) as alerts, pair.engine.events() as events:
        pair.segment.connect()
        pair.peer.kill()
        events.wait_for("peer_gone", 20)
        assert alerts() == set()


def test_requests_that_fail() -> None:
    with Pair() as pair, pair.engine.allocate(MIB) as own, watched(pair.engine) as alerts:
        pair.peer.region("kv", MIB, 7)
        pair.faults.inject("submit_fail_rate=1")
        with pytest.raises(tent.TransferError):
            pair.engine.write(own, pair.segment["kv"]).result(timeout=20)
        assert alerts() == {"TentRequestsFail"}


def test_a_rail_that_is_out() -> None:
    with Pair(rails=2) as pair, pair.engine.allocate(MIB) as own, watched(pair.engine) as alerts:
        pair.peer.region("kv", MIB, 7)
        with pair.engine.events() as events:
            pair.engine.write(own, pair.segment["kv"]).result(timeout=20)
            pair.faults.rail(1).down()
            events.wait_for("rail_down", 20)
            assert alerts() - {"TentRailErrors"} == {"TentRailDown"}
            pair.faults.heal()
            pair.engine.write(own, pair.segment["kv"]).result(timeout=20)
            events.wait_for("rail_up", 60)
        assert alerts() <= {"TentRailErrors"}


@pytest.mark.parametrize("fault, told", [("lose", "rail_paused"), ("blackhole", "rail_condemned")])
def test_a_rail_that_fails_again_and_again(fault: str, told: str) -> None:
    """Probes and new connections pass, so it is up in between, and a scrape may never see it out."""
    with Pair(rails=2) as pair, pair.engine.allocate(16 * MIB) as own, watched(pair.engine) as alerts:
        pair.peer.region("kv", 16 * MIB, 7)
        with pair.engine.events() as events:
            getattr(pair.faults.rail(1), fault)()
            pair.engine.write(own, pair.segment["kv"]).result(timeout=20)
            events.wait_for(told, 20)
        assert alerts() - {"TentRailDown"} == {"TentRailErrors"}


def test_a_rail_that_is_slow() -> None:
    with Pair(rate="64MiB") as pair, pair.engine.allocate(64 * MIB) as own, watched(pair.engine) as alerts:
        pair.peer.region("kv", 64 * MIB, 7)
        with pair.engine.events() as events:
            for _ in range(2):
                pair.engine.write(own, pair.segment["kv"]).result(timeout=20)
            pair.faults.slow("8MiB")
            slow = pair.engine.write(own, pair.segment["kv"])
            events.wait_for("slow_path", 20)
            assert alerts() == {"TentSlowPath"}
            pair.faults.heal()
            slow.result(timeout=20)


def test_requests_that_change_their_transport() -> None:
    with Pair(transports=("shm", "tcp")) as pair, pair.engine.allocate(MIB) as own, watched(pair.engine) as alerts:
        pair.peer.region("kv", MIB, 7)
        pair.faults.inject("transport=shm submit_fail_rate=1")
        assert pair.engine.write(own, pair.segment["kv"]).result(timeout=20) == MIB
        assert alerts() == {"TentFailover"}


def test_a_request_of_which_bytes_may_still_land() -> None:
    with Pair() as pair, pair.engine.allocate(MIB) as own, watched(pair.engine) as alerts:
        pair.peer.region("kv", MIB, 7)
        pair.engine.write(own, pair.segment["kv"]).result(timeout=20)
        pair.faults.blackhole(silent=True)
        with pytest.raises(tent.TransferError) as caught:
            pair.engine.write(own, pair.segment["kv"], timeout=0.1).result(timeout=20)
        assert caught.value.dirty
        assert "TentDirty" in alerts()


def test_notifications_that_nobody_reads() -> None:
    with tent.Engine(notification_queue=1) as owner, tent.Engine() as engine, watched(owner) as alerts:
        with engine.open(owner.address) as peer:
            first = engine.notify(peer, "n", "1")
            first.result(timeout=10)
            held = engine.notify(peer, "n", "2")
            tent.wait([held], timeout=0.3)
            assert alerts() == {"TentNotificationsRefused"}
            assert [owner.notifications.get(10).message for _ in range(2)] == ["1", "2"]
            held.result(timeout=10)
