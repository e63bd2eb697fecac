"""The caller's name for a transfer, `trace=`, at both ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tent
from tent.testing import Faults, Pair

KB = 4096


@pytest.fixture
def near() -> Iterator[tuple[tent.Engine, tent.Engine, tent.Region, tent.RemoteRegion]]:
    """Two engines with memory."""
    with (
        tent.Engine() as engine,
        tent.Engine() as other,
        engine.allocate(KB) as region,
        other.allocate(KB, name="kv"),
        engine.open(other.address) as peer,
    ):
        yield engine, other, region, peer["kv"]


def test_every_move_takes_a_trace_and_its_notification_brings_it(near: Any) -> None:
    engine, other, region, kv = near
    moves: dict[str, Any] = {
        "one": lambda t: engine.write(region[0:64], kv[0:64], trace="one", notify=t),
        "reading": lambda t: engine.read(region[0:64], kv[0:64], trace="reading", notify=t),
        "ranges": lambda t: engine.write_ranges(region, [0], kv, [64], [64], trace="ranges", notify=t),
        "read ranges": lambda t: engine.read_ranges(region, [0], kv, [64], [64], trace="read ranges", notify=t),
        "pages": lambda t: engine.write_pages(region, [0], kv, [1], page_bytes=64, trace="pages", notify=t),
        "read pages": lambda t: engine.read_pages(region, [0], kv, [1], page_bytes=64, trace="read pages", notify=t),
        "alone": lambda t: engine.notify(kv.segment, *t, trace="alone"),
    }
    for trace, move in moves.items():
        transfer = move(("page", "7"))
        transfer.result(timeout=10)
        assert transfer.trace == trace
        note = other.notifications.get(timeout=10)
        assert (note.name, note.message, note.trace) == ("page", "7", trace)
        assert f"trace={trace!r}" in repr(note)
    with engine.batch(trace="séance-17", notify=("page", b"")) as batch:
        batch.write(region[0:64], kv[0:64])
        transfer = batch.submit()
    assert transfer.result(timeout=10) == 64 and transfer.trace == "séance-17"
    assert other.notifications.get(timeout=10).trace == "séance-17"
    engine.write(region[0:64], kv[0:64], notify=("page", "8")).result(timeout=10)
    note = other.notifications.get(timeout=10)
    assert note.trace == "" and "trace" not in repr(note)


def test_a_trace_alone_notifies_nobody(near: Any) -> None:
    engine, other, region, kv = near
    assert engine.write(region, kv, trace="quiet").result(timeout=10) == KB
    engine.notify(kv.segment, "last").result(timeout=10)
    assert [note.name for note in other.notifications.drain()] == ["last"]


def test_a_trace_has_at_most_64_bytes(near: Any) -> None:
    engine, _, region, kv = near
    engine.write(region, kv, trace="x" * 64).result(timeout=10)
    for wrong in ("x" * 65, "é" * 33, b"bytes", 5):
        with pytest.raises(tent.InvalidArgumentError, match="trace"):
            engine.write(region, kv, trace=wrong)
    with pytest.raises(tent.InvalidArgumentError, match="64"):
        engine.batch(trace="x" * 65)


def test_the_integer_level_takes_a_trace(near: Any) -> None:
    _, other, _, _ = near
    with tent.TransferEngine() as integers:
        source = integers.allocate_local_memory(KB)
        handle = integers.open_segment(f"{other.address}/kv")

        def request(trace: str | None = None) -> tent.Request:
            return tent.Request(tent.OpCode.WRITE, source, handle, 0, 64, trace=trace)

        many = tent.RequestArray(1)
        many.opcode, many.source, many.target_id, many.length = [tent.OpCode.WRITE], [source], [handle], [64]
        note = tent.Notification("page", "7")
        submits: dict[str, Callable[[int], None]] = {
            "request": lambda b: integers.submit_transfer(b, [request(), request("request")], note),
            "call": lambda b: integers.submit_transfer(b, [request()], note, trace="call"),
            "both": lambda b: integers.submit_transfer(b, [request("both")], note, trace="both"),
            "array": lambda b: integers.submit_transfer(b, many, note, trace="array"),
            "notif": lambda b: integers.submit_transfer_notif(b, many, "page", "7", trace="notif"),
            "note": lambda b: integers.submit_transfer(b, many, tent.Notification("page", "7", trace="note")),
            "": lambda b: integers.submit_transfer(b, [request()], note),
        }
        for trace, submit in submits.items():
            with integers.allocate_batch_guard(2) as batch:
                submit(batch.id)
                assert integers.wait(batch.id, timeout=10).state == tent.TransferStatusEnum.COMPLETED
                assert integers.engine._call_json(integers.engine._library.pybind_Summary, batch.id)["trace"] == trace
            found = other.notifications.get(timeout=10)
            assert (found.name, found.message, found.trace) == ("page", "7", trace)
        integers.send_notifi(handle, tent.Notification("alone", trace="alone"))
        assert other.notifications.get(timeout=10).trace == "alone"
        with other.events() as heard:
            integers.transfer_sync([request("sync")], timeout=10)
            assert heard.wait_for("traced", timeout=10).trace == "sync"
            integers.transfer_sync(many, timeout=10, trace="sync array")
            assert heard.wait_for("traced", timeout=10).trace == "sync array"


def test_one_call_of_the_integer_level_has_one_trace(near: Any) -> None:
    _, other, _, _ = near
    with tent.TransferEngine() as integers, integers.allocate_batch_guard(2) as batch:
        source = integers.allocate_local_memory(KB)
        handle = integers.open_segment(f"{other.address}/kv")
        one, two = (tent.Request(tent.OpCode.WRITE, source, handle, 0, 64, trace=trace) for trace in ("one", "two"))
        with pytest.raises(tent.InvalidArgumentError, match="the traces 'one' and 'two'"):
            integers.submit_transfer(batch.id, [one, two])
        with pytest.raises(tent.InvalidArgumentError, match="the traces 'call' and 'one'"):
            integers.submit_transfer(batch.id, [one], trace="call")
        with pytest.raises(tent.InvalidArgumentError, match="the traces 'note' and 'two'"):
            integers.submit_transfer(batch.id, [two], tent.Notification("page", trace="note"))
        for wrong in ("x" * 65, b"bytes", 5):
            one.trace = wrong
            with pytest.raises(tent.InvalidArgumentError, match="trace"):
                integers.submit_transfer(batch.id, [one])
        assert integers.get_transfer_status_list(batch.id) == []


def test_errors_and_events_bear_the_trace() -> None:
    with Pair(rails=1, log_level="error") as pair:
        pair.peer.region("kv", KB, seed=1)
        with pair.engine.allocate(KB) as region, pair.engine.events() as events:
            kv = pair.segment.refresh()["kv"]
            pair.faults.blackhole()
            transfer = pair.engine.write(region, kv, timeout=0.05, trace="req-17")
            error = transfer.exception()
            assert isinstance(error, tent.TransferTimeoutError) and error.trace == "req-17"
            late = events.wait_for("deadline_missed", timeout=10)
            assert late.trace == "req-17" and "[req-17]" in str(late)


def test_a_failover_and_its_log_line_bear_the_trace(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "tent")
    with (
        tent.Engine(allow_faults=True) as engine,
        tent.Engine() as other,
        engine.allocate(1 << 20) as region,
        other.allocate(1 << 20, name="kv"),
        engine.open(other.address) as peer,
        engine.events() as events,
    ):
        engine.write(region, peer["kv"], hint="tcp").result(timeout=10)
        Faults(engine).transport("shm").reject()
        assert engine.write(region, peer["kv"], trace="req-18").result(timeout=10) == 1 << 20
        event = events.wait_for("failover", timeout=10)
        assert (event.from_transport, event.to_transport, event.trace) == ("shm", "tcp", "req-18")
    assert any("failover" in r.getMessage() and "trace=req-18" in r.getMessage() for r in caplog.records)


def test_a_span_bears_the_trace(near: Any) -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    engine, _, region, kv = near
    exporter, provider = memory.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    tent.instrument(provider)
    try:
        engine.write(region, kv, trace="req-19").result(timeout=10)
        engine.close()  # the callbacks of its transfers have run
    finally:
        tent.uninstrument()
    (span,) = exporter.get_finished_spans()
    assert span.attributes["tent.trace"] == "req-19"


def test_the_peer_hears_of_a_traced_transfer_without_a_notification(near: Any) -> None:
    engine, other, region, kv = near
    with other.events() as heard:
        assert engine.write(region, kv, trace="req-20").result(timeout=10) == KB
        event = heard.wait_for("traced", timeout=10)
        assert (event.trace, event.note, event.bytes, event.error) == ("req-20", "completed", KB, "")
        assert event.peer == engine.address and "[req-20]" in str(event)
        engine.write(region, kv).result(timeout=10)
        engine.write(region, kv, trace="req-21", notify=("page", "7")).result(timeout=10)
        engine.read(region, kv, trace="req-22").result(timeout=10)
        assert heard.wait_for("traced", timeout=10).trace == "req-22"
    assert not [event for event in engine.events().drain() if event.kind == "traced"]


def test_a_peer_that_is_killed_holds_up_no_report() -> None:
    with Pair(rails=1, log_level="error") as pair:
        pair.peer.region("kv", KB, seed=1)
        with pair.engine.allocate(KB) as region:
            kv = pair.segment.refresh()["kv"]
            pair.peer.kill()
            for number in range(20):
                try:
                    transfer = pair.engine.write(region, kv, timeout=0.05, trace=f"req-{number}")
                except tent.TentError:
                    break  # the engine has learned of the end
                assert isinstance(transfer.exception(timeout=10), tent.TentError)
