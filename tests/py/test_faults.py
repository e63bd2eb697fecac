"""Faults from Python and the environment, over real rails between two processes: the view of users, which is
nothing but the metrics and the events."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

import tent
from tent.testing import Faults, Oracle, Pair, inject, injected

BIG = 64 << 20


# Permission, and the messages for mistakes


def test_faults_are_refused_unless_they_were_allowed(engines: Any) -> None:
    engine = engines()
    with pytest.raises(tent.PermissionDeniedError, match=r"not allowed.*allow_faults=True"):
        inject(engine, "heal")
    assert injected(engine) == ""
    assert engine.metrics()["tent_faults"] == engine.metrics()["tent_faults_injected_total"] == 0
    with pytest.raises(tent.PermissionDeniedError, match=r"faults is set .argument., but allow_faults is false"):
        tent.Engine(faults="rail=1 down")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rail=1 blackhol", 'line 1, column 8: unknown word "blackhol"; did you mean blackhole?'),
        ("heal\nrail=x drop", 'line 2, column 1: rail takes * or 0 to 65535, not "x"'),
        ("rail=1", 'nothing happens in "rail=1"'),
        ("slow=fast", 'slow takes bytes a second such as 64KiB or 10MB/s, not "fast"'),
        ("corrupt silent", "corrupt cannot be silent"),
    ],
)
def test_mistakes_are_told_with_their_place(engines: Any, text: str, message: str) -> None:
    engine = engines(allow_faults=True, faults="rail=9 down")
    for call in (lambda: inject(engine, text), lambda: tent.Engine(allow_faults=True, faults=text)):
        with pytest.raises(tent.InvalidArgumentError) as caught:
            call()
        assert message in str(caught.value)
    assert injected(engine) == "rail=9 down", "a text with a mistake changes nothing"


def test_the_same_text_from_the_environment(engines: Any) -> None:
    text = "rail=1 blackhole after_bytes=8MiB; op=READ delay=2ms"
    program = (
        "import tent\n"
        "from tent.testing import Faults, injected\n"
        "with tent.Engine() as engine:\n"
        "    active = engine.metrics()['tent_faults{transport=\"tcp\"}']\n"
        "    print(injected(engine), engine.config['faults'].origin, active, sep='|')\n"
        "    Faults(engine).op('READ').heal()\n"
        "    print(injected(engine))\n"
    )

    def run(faults: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "error", "-c", program]
        environment = {**os.environ, "TENT_FAULTS": faults}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    done = run(text)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{text}|environment TENT_FAULTS|2\nrail=1 blackhole after_bytes=8MiB\n"
    assert 'unknown word "nonsense"' in run("nonsense").stderr
    engine = engines(allow_faults=True, faults=text)
    assert injected(engine) == text


def test_method_calls_make_texts(engines: Any) -> None:
    engine = engines(allow_faults=True)
    faults = Faults(engine)
    faults.rail(1).op("WRITE").blackhole(after_bytes=8 << 20, silent=True)
    faults.transport("tcp").to("h:1").priority(tent.PRIO_LOW).delay(0.002, rate=0.5)
    faults.nth(3).drop()
    faults.every(10).slow(1e6)
    faults.reject(code="LOST", scope="link", side="remote", collateral=True)
    assert injected(engine) == (
        "rail=1 op=WRITE blackhole after_bytes=8388608 silent; transport=tcp peer=h:1 class=2 delay=2000us rate=0.5; "
        "nth=3 drop; every=10 slow=1000000; reject code=LOST scope=link side=remote collateral"
    )
    faults.heal()
    assert injected(engine) == ""
    for fault in ("lose", "drop_completion", "duplicate", "reorder", "truncate", "corrupt", "down", "fail_register"):
        getattr(faults, fault)()
    for fault in ("fail_attach", "control_down"):
        getattr(faults, fault)()
    assert injected(engine).split("; ")[3] == "reorder=3"
    faults.heal()
    faults.reset()
    assert injected(engine) == "", "it happens once"


# Rails


# Each fault strikes one direction here, and the rails of both are silent, broken and losing; the others are long.
BRIEF = {
    "rail=1 blackhole after_bytes=4MiB": ("write", "read"),
    "rail=1 reset": ("write",),
    "rail=1 down": ("read",),
    "rail=1 slow=4MiB": ("write",),
    "rail=1 drop rate=0.2": ("read",),
    "rail=1 drop_completion rate=0.2": ("write",),
    "rail=1 reject rate=0.3": ("read",),
    "rail=1 lose rate=0.3; rail=0 lose rate=0.1 unused_ok": ("write",),
    "duplicate rate=0.3; reorder=3 rate=0.3; delay=2ms rate=0.2": ("read",),
    "every=5 truncate": ("write", "read"),
}


@pytest.mark.parametrize(
    ("text", "direction"),
    [
        pytest.param(text, direction, marks=[] if direction in brief else [pytest.mark.long])
        for text, brief in BRIEF.items()
        for direction in ("write", "read")
    ],
)
def test_a_bad_rail_costs_time_and_nothing_else(
    tent_pair: Any, tent_faults: Faults, tent_oracle: Oracle, text: str, direction: str
) -> None:
    pair = tent_pair(rails=2)
    local, remote = tent_oracle.regions(pair, BIG // 2, direction)
    tent_faults.inject(text)
    transfer = getattr(pair.engine, direction)(local, remote)
    assert transfer.result(timeout=30) == BIG // 2
    if "reset" not in text:
        assert pair.engine.metrics()["tent_faults_injected_total"] > 0
    tent_oracle.check()


def test_all_rails_break_and_come_back(tent_pair: Any, tent_faults: Faults, tent_oracle: Oracle) -> None:
    pair = tent_pair(rails=2)
    src, dst = tent_oracle.regions(pair, BIG)
    transfer = pair.engine.write(src, dst)
    with pair.engine.events() as events:
        for _ in range(2):
            tent_faults.down()
            events.wait_for("rail_down", timeout=10)
            tent_faults.heal()
            events.wait_for("rail_up", timeout=10)
    assert transfer.result(timeout=30) == BIG
    tent_oracle.check()


def test_faults_of_the_peer_hit_the_peers_bytes(tent_pair: Any, tent_faults: Faults, tent_oracle: Oracle) -> None:
    pair = tent_pair(rails=2)
    src, dst = tent_oracle.regions(pair, 1 << 20)
    tent_faults.peer.down(unused_ok=True)  # the peer has opened no rail of its own
    assert pair.peer.metrics()['tent_faults{transport="tcp"}'] == 1, "its own rate is not counted"
    pair.engine.write(src, dst).result(10)  # we send, the peer only answers
    tent_faults.peer.heal()
    assert pair.peer.metrics()['tent_faults{transport="tcp"}'] == 0
    tent_oracle.check()


def test_events_tell_the_story_of_a_rail(tent_pair: Any, tent_faults: Faults, tent_oracle: Oracle) -> None:
    pair = tent_pair(rails=2)
    src, dst = tent_oracle.regions(pair, BIG)
    with pair.engine.events() as events:
        tent_faults.rail(1).blackhole()
        transfer = pair.engine.write(src, dst)
        suspected = events.wait_for("rail_suspected", timeout=10)
        assert suspected.local == "127.0.0.2" and suspected.peer == pair.peer.address
        assert suspected.bytes > 0 and suspected.took > 0 and suspected.scope == "rail"
        assert transfer.result(timeout=30) == BIG
        tent_faults.heal()
        back = events.wait_for(lambda e: e.kind in ("rail_recovered", "rail_up") and e.local == "127.0.0.2", timeout=30)
        assert back.time > suspected.time
    tent_oracle.check()


# Damage that only the oracle, or a checksum, can see


def test_corruption_is_found_by_the_checksum(tent_pair: Any, tent_faults: Faults, tent_oracle: Oracle) -> None:
    pair = tent_pair(rails=2, rate=None)
    src, dst = tent_oracle.regions(pair, BIG // 4)
    tent_faults.corrupt(count=3)
    transfer = pair.engine.write(src, dst, integrity="crc32c")
    assert transfer.result(10) == BIG // 4
    assert transfer.attempts > 1
    tent_faults.corrupt()
    with pytest.raises(tent.TransferError) as caught:
        pair.engine.write(src, dst, integrity="crc32c").result(20)
    assert caught.value.code == "CORRUPTED"
    tent_faults.heal()
    pair.engine.write(src, dst).result(10)
    tent_oracle.check()


@pytest.mark.parametrize("direction", ["write", "read"])
def test_corruption_is_found_in_every_form(
    tent_pair: Any, tent_faults: Faults, tent_oracle: Oracle, direction: str
) -> None:
    """Each form by itself and in a batch, on one pair, which moves right bytes in between."""
    pair = tent_pair(rate=None)
    local, remote = tent_oracle.regions(pair, 1 << 16, direction)
    ranges = (local, [0, 8192], remote, [0, 8192], [4096, 4096])
    forms: dict[str, tuple[tuple[Any, ...], dict[str, int]]] = {
        direction: ((local, remote), {}),
        f"{direction}_ranges": (ranges, {}),
        f"{direction}_pages": ((local, [0, 2], remote, [0, 2]), {"page_bytes": 4096}),
    }

    def batched(form: str, operands: tuple[Any, ...], own: dict[str, int]) -> tent.Transfer:
        with pair.engine.batch(integrity="crc32c") as batch:
            getattr(batch, form)(*operands, **own)
            return batch.submit()

    def called(form: str, operands: tuple[Any, ...], own: dict[str, int]) -> tent.Transfer:
        return getattr(pair.engine, form)(*operands, **own, integrity="crc32c")

    for form, given in forms.items():
        for begin in (called, batched):
            tent_faults.corrupt()
            with pytest.raises(tent.TransferError) as caught:
                begin(form, *given).result(20)
            assert caught.value.code == "CORRUPTED", (form, begin.__name__)
            tent_faults.heal()
            begin(form, *given).result(20)


@pytest.mark.parametrize(
    ("text", "direction"), [("corrupt", "write"), ("corrupt", "read"), ("truncate silent", "write")]
)
def test_without_a_checksum_only_the_oracle_finds_it(
    tent_pair: Any, tent_faults: Faults, tent_oracle: Oracle, text: str, direction: str
) -> None:
    pair = tent_pair(rate=None)
    local, remote = tent_oracle.regions(pair, 1 << 20, direction)
    tent_faults.inject(text + " count=1")
    assert getattr(pair.engine, direction)(local, remote).result(10) == 1 << 20, "nobody has noticed"
    with pytest.raises(AssertionError, match=r"byte \d+ of 1048576 is"):
        tent_oracle.check()


# The control plane


@pytest.mark.parametrize("silent", [False, True])
def test_a_transfer_under_way_does_not_need_the_control_plane(
    tent_pair: Any, tent_faults: Faults, tent_oracle: Oracle, silent: bool
) -> None:
    pair = tent_pair(rails=2)
    src, dst = tent_oracle.regions(pair, BIG)
    pair.engine.write(src[0:10], dst[0:10]).result(10)  # links are made by the first use
    for faults in (tent_faults, tent_faults.peer):
        faults.control_down(silent=silent, unused_ok=True)  # the peer calls nobody
    transfer = pair.engine.write(src, dst)
    tent_faults.rail(1).blackhole(after_bytes=4 << 20)
    assert transfer.result(timeout=30) == BIG
    with pytest.raises((tent.TentError, TimeoutError)):  # it is really dead
        pair.engine.open(pair.peer.address, timeout=0.3)
    for faults in (tent_faults, tent_faults.peer):
        faults.heal()
    tent_oracle.check()
    with pair.engine.open(pair.peer.address) as segment:
        assert segment.alive(timeout=10)


def test_any_address_of_the_peer_is_used(tent_pair: Any, tent_faults: Faults) -> None:
    pair = tent_pair(rails=2)
    assert pair.segment.alive(timeout=10)
    tent_faults.to(pair.peer.address).control_down()
    began = time.monotonic()
    assert pair.segment.alive(timeout=10), "127.0.0.2 answers, although 127.0.0.1 does not"
    assert time.monotonic() - began < 5
    pair.segment.refresh()


# Without pytest


def test_pairs_without_pytest() -> None:
    with Pair(rails=4, rate=None) as pair:
        oracle = Oracle(seed=5)
        src, dst = oracle.regions(pair, 1 << 20)
        pair.faults.rail(2).down()
        pair.engine.write(src, dst).result(10)
        carried = {
            name: n
            for name, n in pair.engine.metrics().items()
            if name.startswith("tent_rail_bytes_total{") and "local=" in name
        }
        assert sum(n for name, n in carried.items() if 'local="127.0.0.3"' not in name) == 1 << 20, carried
        oracle.check()
    oracle.look_again()  # the peer is gone, and the memory here is as it was


def test_a_selector_that_is_none_is_named(engines: Callable[..., tent.Engine]) -> None:
    """A class that there is not would hit nothing, and the test be worthless."""
    faults = Faults(engines(allow_faults=True))
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("op is 7", lambda: faults.op(7)),  # type: ignore[arg-type]
        ("priority(9)", lambda: faults.priority(9)),
        ("priority('x')", lambda: faults.priority("x")),  # type: ignore[arg-type]
        ("text is 7", lambda: faults.inject(7)),  # type: ignore[arg-type]
    ]
    for words, call in wrong:
        with pytest.raises(tent.InvalidArgumentError) as caught:
            call()
        assert str(caught.value).startswith(words)
