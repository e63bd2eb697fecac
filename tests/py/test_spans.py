"""OpenTelemetry spans of transfers, taken by the exporter that keeps them in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import tent
from tent import batch, moves
from tent.testing import Oracle, Pair

sdk = pytest.importorskip("opentelemetry.sdk.trace")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")


class Spans(NamedTuple):
    """The spans that have ended."""

    exporter: Any
    provider: Any

    def take(self, n: int) -> list[Any]:
        """The next n; they end on tent's thread, a moment after their transfers."""
        with self.exporter.more:
            self.exporter.more.wait_for(lambda: len(self.exporter.get_finished_spans()) >= n, timeout=10)
        found = list(self.exporter.get_finished_spans())
        self.exporter.clear()
        assert len(found) == n
        return found


@pytest.fixture
def spans() -> Iterator[Spans]:
    class Exporter(memory.InMemorySpanExporter):
        """It tells of every span that has come."""

        def __init__(self) -> None:
            super().__init__()
            self.more = threading.Condition()

        def export(self, spans: Any) -> Any:
            with self.more:
                self.more.notify_all()
                return super().export(spans)

    exporter = Exporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    tent.instrument(provider)
    yield Spans(exporter, provider)
    tent.uninstrument()


def test_a_span_a_transfer_with_peer_bytes_and_transport(spans: Spans) -> None:
    with (
        tent.Engine(name="near") as engine,
        tent.Engine() as other,
        engine.allocate(4096) as region,
        other.allocate(4096, name="kv"),
        engine.open(other.address) as peer,
    ):
        engine.write(region[0:64], peer["kv"][0:64]).result(timeout=10)
        engine.read(region, peer["kv"], hint="tcp").result(timeout=10)
        engine.write_pages(region, [0], peer["kv"], [1], page_bytes=64).result(timeout=10)
        ours, theirs = engine.pages([region], 64), peer.pages([peer["kv"]], 64)
        engine.read_pages(ours, [0, 1], theirs, [2, 3]).result(timeout=10)
        engine.notify(peer, "page", "1").result(timeout=10)
        with engine.batch() as many:
            many.write(region[0:64], peer["kv"][0:64])
            many.read(region[64:128], peer["kv"][64:128])
            many.submit().result(timeout=10)
        ours.close()
        theirs.close()
        found = spans.take(6)
        assert sorted((span.name, span.attributes["tent.bytes"]) for span in found) == [
            ("tent.batch", 128),
            ("tent.notify", 0),
            ("tent.read", 128),
            ("tent.read", 4096),
            ("tent.write", 64),
            ("tent.write", 64),
        ]
        for span in found:
            assert span.attributes["tent.engine"] == "near" and span.attributes["tent.peer"] == other.address, span.name
            assert span.attributes["tent.state"] == "COMPLETED" and span.status.is_unset
            assert span.attributes["tent.failovers"] == 0 and span.kind.name == "CLIENT"
            assert 0 <= span.end_time - span.start_time < 10e9
            assert bool(span.attributes["tent.transports"]) == (span.name != "tent.notify")


def test_a_span_is_a_child_of_the_callers(spans: Spans) -> None:
    with tent.Engine() as engine, engine.allocate(64, name="kv") as region, engine.open(engine.address) as peer:
        with spans.provider.get_tracer("program").start_as_current_span("step") as outer:
            engine.write(region, peer["kv"]).result(timeout=10)
        found = {span.name: span for span in spans.take(2)}
        assert found["tent.write"].parent.span_id == outer.get_span_context().span_id


def test_a_failure_is_the_error_of_its_span(spans: Spans) -> None:
    with Pair(rails=1, log_level="error") as pair:
        src, dst = Oracle(seed=1).regions(pair, 4096)
        pair.faults.blackhole()
        transfer = pair.engine.write(src, dst, timeout=0.05)
        with pytest.raises(tent.TransferTimeoutError) as error:
            transfer.result()
        (span,) = spans.take(1)
        assert span.attributes["error.type"] == error.value.code and span.attributes["tent.state"] == "TIMEOUT"
        assert not span.status.is_ok and str(error.value) in span.status.description


def test_a_call_that_is_refused_has_a_span_that_failed(spans: Spans) -> None:
    with tent.Engine() as engine, engine.allocate(64, name="kv") as region:
        with engine.open(engine.address) as peer, pytest.raises(tent.InvalidArgumentError):
            engine.write(region[0:32], peer["kv"])
        (span,) = spans.take(1)
        assert span.attributes["error.type"] == "INVALID_ARGUMENT" and not span.status.is_ok


def test_nothing_is_replaced_unless_it_was_asked_for() -> None:
    before = [moves.Moves._move, moves.Moves._many, moves.Moves.notify, batch.Batch.submit]
    tent.instrument(sdk.TracerProvider())
    tent.instrument(sdk.TracerProvider())  # again: nothing
    assert moves.Moves._move is not before[0]
    tent.uninstrument()
    assert [moves.Moves._move, moves.Moves._many, moves.Moves.notify, batch.Batch.submit] == before
