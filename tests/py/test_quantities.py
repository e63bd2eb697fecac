"""One language for sizes and times, everywhere; and the class of calls that name none."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tent
from tent import command
from tent.quantities import bytes_of, seconds_of
from tent.testing import Faults, Memory, Oracle, Pair, injected

np = pytest.importorskip("numpy")  # one interpreter of the suite has it

# gocore/config/quantity_test.go reads the same table.
TABLE = json.loads(
    (Path(__file__).resolve().parents[2] / "gocore/config/testdata/quantities.json").read_text(encoding="utf-8")
)
INVALID = tent.InvalidArgumentError


def test_the_table_of_sizes_and_times() -> None:
    assert {text: bytes_of(text, "size") for text in TABLE["sizes"]} == TABLE["sizes"]
    assert {text: round(seconds_of(text) * 1e9) for text in TABLE["times"]} == TABLE["times"]
    for text in TABLE["no sizes"]:
        with pytest.raises(INVALID, match=r'size is .* it must be a number of bytes, or a text like "64MiB"'):
            bytes_of(text, "size")
    for text in TABLE["no times"]:
        with pytest.raises(INVALID, match=r'timeout is .* it must be seconds, at least 0, or a text like "20ms"'):
            seconds_of(text)


def test_numbers_are_bytes_and_seconds() -> None:
    assert bytes_of(np.int64(7), "size") == 7 and bytes_of((1 << 63) - 1, "size") == (1 << 63) - 1
    assert [seconds_of(n) for n in (0, 5, 0.25, np.float32(0.5), np.int64(3))] == [0, 5, 0.25, 0.5, 3]
    for wrong in (-1, 1 << 63, 1.5, 8.0, None, True, b"8", [8], math.nan):
        with pytest.raises(INVALID, match="size is"):
            bytes_of(wrong, "size")
    for wrong in (-1, -0.1, math.nan, math.inf, 10**400, None, True, b"5s", [5]):
        with pytest.raises(INVALID, match="timeout is"):
            seconds_of(wrong)


def test_calls_take_both(engine: tent.Engine) -> None:
    with engine.allocate("64KiB", name="kv") as region, engine.open("", timeout="5s") as own:
        assert region.size == 65536
        assert engine.write(region[0:64], own["kv"][64:128], timeout="20 s").result("5 s") == 64
        assert engine.write(region, own["kv"], timeout=np.float32(20)).wait("5s") == tent.TransferStatusEnum.COMPLETED
        moved = engine.write_pages(region, [0], own["kv"], [1], page_bytes="4KiB", timeout=20)
        assert moved.result("5s") == 4096
        with engine.pages(region, "4KiB", stride="8KiB", offset="4K") as grid:
            assert grid.page_bytes == 4096 and grid.n_pages == 8
        with pytest.raises(TimeoutError, match="no notification came within 20 ms"):
            engine.notifications.get("20 ms")
        region.fence(timeout="5s")
        assert own.alive("5s")
        assert tent.wait([moved], timeout="5s")[1] == set() and list(tent.as_completed([moved], timeout="1min"))


@pytest.mark.parametrize("wrong", ["5", "soon", -1, math.nan, math.inf, True, b"5"])
def test_what_is_no_time_is_one_error_everywhere(engine: tent.Engine, wrong: Any) -> None:
    region = engine.allocate(4096, name="kv")
    own = engine.open("")
    moved = engine.write(region[0:64], region[64:128])
    moved.result(10)
    calls: list[Callable[[], object]] = [
        lambda: engine.write(region[0:64], region[64:128], timeout=wrong),
        lambda: engine.write_ranges(region, [0], region, [64], [64], timeout=wrong),
        lambda: engine.batch(timeout=wrong),
        lambda: engine.open("127.0.0.1:1", timeout=wrong),
        lambda: moved.result(wrong),
        lambda: moved.exception(wrong),
        lambda: moved.wait(wrong),
        lambda: asyncio.run(moved.result_async(wrong)),
        lambda: tent.wait([moved], timeout=wrong),
        lambda: tent.as_completed([moved], timeout=wrong),
        lambda: engine.notifications.get(wrong),
        lambda: region.fence(timeout=wrong),
        lambda: own.alive(wrong),
        lambda: engine.close(wrong),
    ]
    for call in calls:
        with pytest.raises(INVALID, match=r'timeout is .*: it must be seconds, at least 0, or a text like "20ms"'):
            call()
    assert not engine.closed
    region.close()


@pytest.mark.parametrize("wrong", ["lots", "", 0, -1, 1.5, True, 1 << 63])
def test_what_is_no_size_is_one_error_everywhere(engine: tent.Engine, wrong: Any, tmp_path: Path) -> None:
    with engine.allocate(4096) as region:
        calls: list[Callable[[], object]] = [
            lambda: engine.allocate(wrong),
            lambda: engine.pages(region, wrong),
            lambda: engine.write_pages(region, [0], region, [0], page_bytes=wrong),
        ]
        if wrong != 0:
            calls.append(lambda: engine.open(tmp_path / "file", create=True, size=wrong))
            calls.append(lambda: engine.pages(region, 64, stride=wrong))
        for call in calls:
            with pytest.raises(INVALID, match=r"(size|page_bytes|stride) is .*: it must be a number of bytes"):
                call()
    assert not (tmp_path / "file").exists()


def test_settings_take_both(engines: Callable[..., tent.Engine]) -> None:
    engine = engines(inline_bytes="64 KiB", transfer_stall_timeout="1.5min", rail_suspect_ms="7000us")
    found = {key: engine.config[key].value for key in ("inline_bytes", "transfer_stall_timeout", "rail_suspect_ms")}
    assert found == {"inline_bytes": 65536, "transfer_stall_timeout": 90, "rail_suspect_ms": 7}
    with pytest.raises(INVALID, match=r'rail_suspect_ms: "5" is not a time with its unit .* or a text like "20ms"'):
        tent.Engine(rail_suspect_ms="5")
    with pytest.raises(INVALID, match=r'"64 apples" is not a size'):
        tent.Engine(inline_bytes="64 apples")


def test_faults_take_both(engines: Callable[..., tent.Engine]) -> None:
    engine = engines(allow_faults=True)
    faults = Faults(engine)
    faults.delay("2 ms")
    faults.rail(0).delay(0.5)
    faults.blackhole(after_bytes="8MB")
    faults.slow("10MiB")
    assert [line.strip() for line in injected(engine).split(";")] == [
        "delay=2000us",
        "rail=0 delay=500000us",
        "blackhole after_bytes=8000000",
        "slow=10485760",
    ]
    wrong: list[Callable[[], object]] = [
        lambda: faults.delay("2"),
        lambda: faults.slow("fast"),
        lambda: faults.drop(after_bytes="some"),
    ]
    for call in wrong:
        with pytest.raises(INVALID, match="it must be"):
            call()


def test_the_rate_of_a_pair_is_a_size() -> None:
    with Pair(rate="1GiB") as pair:
        assert "slow=1073741824" in injected(pair.engine)


def test_the_command_line_takes_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert [command.size(text) for text in ("4096", "64K", "64MiB", "8MB")] == [4096, 65536, 64 << 20, 8_000_000]
    with pytest.raises(SystemExit):
        command.main(["serve", "--size", "some"])
    assert 'it must be a number of bytes, at least 1, or a text like "64MiB"' in capsys.readouterr().err


def test_an_engine_has_a_default_priority(engines: Callable[..., tent.Engine]) -> None:
    engine = engines(default_priority=tent.PRIO_LOW)
    region = engine.allocate(8192, name="kv")

    own = engine.open("")["kv"]

    def moved(klass: str) -> float:
        """Bytes written so far in a class."""
        return engine.metrics().get(f'tent_write_bytes_total{{transport="shm",class="{klass}"}}', 0)

    def after(call: Callable[[], tent.Transfer]) -> tuple[float, float]:
        before = moved("low"), moved("high")
        assert call().wait(10) == tent.TransferStatusEnum.COMPLETED
        return moved("low") - before[0], moved("high") - before[1]

    def batched(**terms: Any) -> tent.Transfer:
        with engine.batch(**terms) as batch:
            batch.write(region[0:64], own[64:128])
            return batch.submit()

    low: list[Callable[[], tent.Transfer]] = [
        lambda: engine.write(region[0:64], own[64:128]),
        lambda: engine.write(region[0:64], own[64:128], timeout=10),
        lambda: engine.write(memoryview(region.view)[0:64], own[64:128]),
        lambda: engine.write_ranges(region, [0], own, [64], [64]),
        lambda: engine.write_pages(region, [0], own, [1], page_bytes=64),
        batched,
    ]
    high: list[Callable[[], tent.Transfer]] = [
        lambda: engine.write(region[0:64], own[64:128], priority=tent.PRIO_HIGH),
        lambda: engine.write(region[0:64], own[64:128], priority=0),
        lambda: engine.write_ranges(region, [0], own, [64], [64], priority=tent.PRIO_HIGH),
        lambda: batched(priority=tent.PRIO_HIGH),
    ]
    assert [after(call) for call in low] == [(64, 0)] * len(low)
    assert [after(call) for call in high] == [(0, 64)] * len(high)
    region.close()
    with pytest.raises(INVALID, match="default_priority: 3 is out of range"):
        tent.Engine(default_priority=3)


def test_priorities_are_members(engine: tent.Engine) -> None:
    assert [repr(p) for p in (tent.PRIO_HIGH, tent.PRIO_MEDIUM, tent.PRIO_LOW)] == [
        "<Priority.HIGH: 0>",
        "<Priority.MEDIUM: 1>",
        "<Priority.LOW: 2>",
    ]
    assert (tent.PRIO_HIGH, tent.PRIO_MEDIUM, tent.PRIO_LOW) == (0, 1, 2)
    assert "priority=<Priority.LOW: 2>" in repr(tent.Request(priority=tent.PRIO_LOW))
    with engine.allocate(4096) as region, engine.batch() as batch:
        wrongs: tuple[Any, ...] = (True, False, "high", -1, 3, int)
        for wrong in wrongs:
            calls: list[Callable[[], object]] = [
                lambda: engine.write(region[0:64], region[64:128], priority=wrong),
                lambda: engine.read_pages(region, [0], region, [1], page_bytes=64, priority=wrong),
                lambda: engine.batch(priority=wrong),
                lambda: batch.write(region[0:64], region[64:128], priority=wrong),
            ]
            for call in calls:
                with pytest.raises(INVALID, match=r"priority.*PRIO_HIGH \(0\), .*_MEDIUM \(1\) or .*_LOW \(2\)"):
                    call()


def test_the_kit_for_tests_takes_texts_too() -> None:
    oracle = Oracle(seed=1)
    assert Memory("4 KiB", seed=3).size == 4096
    with Pair(transports="tcp") as pair:
        src, dst = oracle.regions(pair, "1 MiB", alignment="64")
        assert pair.engine.write(src, dst).result(10) == 1 << 20
        oracle.check()
        for size in (0, -4, 1.5, "many", None):
            for call in (partial(oracle.regions, pair, size), partial(Memory, size, 3)):
                with pytest.raises(INVALID, match="size is"):
                    call()
        for rate in (float("inf"), float("nan"), -1.0, "fast"):
            with pytest.raises(INVALID, match="slow is"):
                pair.faults.slow(rate)
        oracle.look_again()
