"""`tent top HOST:PORT...`: a live view of engines: rails, rates, classes and events.

It reads the places where engines serve their metrics (`metrics/listen`, tent.serve_metrics()), twice a second or as
asked. An engine pays one snapshot for a look, and nothing while nobody looks.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import re
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tent.events import Event, event_of
from tent.traffic import LABEL

from .. import _text
from .screen import Section, printable, screen

FETCH_S = 5.0  # for a whole answer
ANSWER_BYTES = 16 << 20  # a larger answer is none of an engine
EVENTS_SHOWN = 10

_LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")

Labels = frozenset[tuple[str, str]]

# An address of nobody, another program, or one that answers like an engine and is none.
NO_ENGINE = (
    OSError,
    http.client.HTTPException,
    ValueError,
    LookupError,
    TypeError,
    OverflowError,
    RecursionError,
)


@dataclass
class Look:
    """An engine at one moment: its series by name and labels, and the events since the look before."""

    at: float
    series: dict[str, dict[Labels, float]]
    events: list[Event] = field(default_factory=list)
    now: float = 0.0  # of the clock of events

    def of(self, name: str) -> dict[Labels, float]:
        return self.series.get(name, {})


def run(options: argparse.Namespace) -> int:
    """Shows rails, rates, classes and events of engines that serve metrics, until it is interrupted."""
    engines = [Watched(address) for address in options.address]
    with screen() as show:
        for number in range(options.looks or 1 << 62):
            if number:
                time.sleep(options.interval)
            show([section for engine in engines for section in engine.sections()])
    return int(all(engine.failed for engine in engines))


class Watched:
    """One engine: its last two looks, between which rates are taken, and its latest events."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.failed = ""
        self._before: Look | None = None
        self._next = 0
        self._events: deque[tuple[float, Event]] = deque(maxlen=EVENTS_SHOWN)

    def sections(self) -> Iterator[Section]:
        """A new look, as tables."""
        try:
            now = self._look()
            found = list(sections(self.address, now, self._before or now, list(self._events)))
        except NO_ENGINE as error:
            self.failed = str(error) or type(error).__name__
            yield Section(f"{self.address}: no metrics: {printable(self.failed)}", (), [])
            return
        self.failed = ""
        yield from found
        self._before = now

    def _look(self) -> Look:
        text = fetch(self.address, "/metrics").decode("utf-8", "replace")
        if "tent_build_info" not in text:
            raise ValueError("something else answers there; tent serves metrics where metrics/listen says")
        look = Look(time.monotonic(), parse(text))
        if self._before and fallen(look, self._before):
            self._restart()
        found = self._found()
        if int(found["next"]) < self._next:
            self._restart()
            found = self._found()
        self._next = int(found["next"])
        look.now = found["now_ns"] / 1e9
        for entry in found["events"]:
            event = event_of(entry)
            self._events.append((time.time() - (look.now - event.time), event))
        return look

    def _found(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(fetch(self.address, f"/events?after={self._next}"))
        return found

    def _restart(self) -> None:
        """Another engine answers at the place: its totals and its events begin anew."""
        self._before, self._next = None, 0


def fallen(now: Look, before: Look) -> bool:
    """Whether a total of the engine is less than it was. Those of a rail begin anew with each link to its peer."""
    names = (name for name in now.series if name.endswith("_total") and not name.startswith("tent_rail_"))
    return any(n < before.of(name).get(labels, n) for name in names for labels, n in now.of(name).items())


def fetch(address: str, path: str) -> bytes:
    """The body of an answer. It has FETCH_S altogether, however it comes. Raises those of NO_ENGINE."""
    over = time.monotonic() + FETCH_S
    connection = http.client.HTTPConnection(address, timeout=FETCH_S)
    with contextlib.closing(connection):
        connection.connect()
        cut = threading.Timer(FETCH_S, end, (connection.sock,))
        cut.daemon = True  # a Ctrl-C behind its start leaves it, and nobody waits for it
        cut.start()
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            body = reply.read(ANSWER_BYTES)
        except http.client.HTTPException as error:
            if time.monotonic() < over:
                raise OSError(f"something else answers there: {error!r}") from None
        except OSError as error:  # also a reset by a peer that sends into the end of the connection
            if isinstance(error, TimeoutError) or time.monotonic() >= over:
                raise slow() from None
            raise
        finally:
            cut.cancel()
    if time.monotonic() >= over:
        raise slow()
    if reply.status != http.client.OK:
        raise OSError(f"HTTP {reply.status} {reply.reason}")
    return body


def slow() -> TimeoutError:
    return TimeoutError(f"no whole answer within {FETCH_S:g} s")


def end(connection: socket.socket) -> None:
    """Ends a connection from another thread than the one that reads from it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def parse(text: str) -> dict[str, dict[Labels, float]]:
    """Prometheus' text by name and labels; histograms as their _sum and _count."""
    series: dict[str, dict[Labels, float]] = defaultdict(dict)
    for line in text.splitlines():
        if (found := _LINE.fullmatch(line)) and not found[1].endswith("_bucket"):
            labels = frozenset(LABEL.findall(found[2] or ""))
            series[found[1]][labels] = float(found[3])
    return series


RAILS = ("transport", "rail", "peer", "state", "health", "MB/s", "in flight", "total")
CLASSES = ("transport", "class", "write MB/s", "read MB/s", "requests/s", "waiting", "failed", "late")


def sections(address: str, now: Look, before: Look, events: list[tuple[float, Event]]) -> Iterator[Section]:
    """The tables of one engine."""
    span = max(now.at - before.at, 1e-9)

    def rate(name: str, labels: Labels) -> float:
        value = now.of(name)[labels]
        was = before.of(name).get(labels, value)
        return (value - was if value >= was else value) / span

    totals = {name: sum(now.of(name).values()) for name in ("tent_regions", "tent_peers", "tent_pending_requests")}
    regions = (
        f"{totals['tent_regions']:.0f} regions of {_text.size(int(sum(now.of('tent_registered_bytes').values())))}"
    )
    title = f"{address}: {totals['tent_peers']:.0f} peers, {regions}, {totals['tent_pending_requests']:.0f} requests"
    yield Section(title, RAILS, rail_rows(now, rate))
    if classes := class_rows(now, rate):
        yield Section("", CLASSES, classes)
    if events:
        rows = [[time.strftime("%H:%M:%S", time.localtime(at)), *event_texts(event)] for at, event in events]
        yield Section("", ("time", "event", "where", "why"), rows)


def rail_rows(now: Look, rate: Callable[[str, Labels], float]) -> list[list[str]]:
    """A row for each rail."""
    rows = []
    states = {labels - {pair}: pair[1] for labels in now.of("tent_rail_state") for pair in labels if pair[0] == "state"}
    for labels, total in now.of("tent_rail_bytes_total").items():
        rail = {name: printable(text) for name, text in labels}
        in_flight, health = (
            now.of(name).get(labels, 0.0) for name in ("tent_rail_in_flight_bytes", "tent_rail_health")
        )
        speed = rate("tent_rail_bytes_total", labels) / 1e6
        where = [rail["transport"], f"{rail['local']} -> {rail['remote']}", rail["peer"], states.get(labels, "")]
        rows.append([*where, f"{health:.0f}", f"{speed:.1f}", _text.size(int(in_flight)), _text.size(int(total))])
    return sorted(rows)


def class_rows(now: Look, rate: Callable[[str, Labels], float]) -> list[list[str]]:
    """A row for each class of a transport in which something happens or went wrong."""
    rows = []
    late: dict[Labels, float] = defaultdict(float)
    for labels, n in now.of("tent_deadline_misses_total").items():
        late[frozenset(pair for pair in labels if pair[0] != "stage")] += n
    for labels in now.of("tent_write_bytes_total"):
        moved = [rate(f"tent_{op}_bytes_total", labels) / 1e6 for op in ("write", "read")]
        ended = sum(rate(f"tent_{op}_requests_total", labels) for op in ("write", "read"))
        waiting = now.of("tent_queue_depth").get(labels, 0.0)
        failed = sum(now.of(f"tent_{op}_failures_total").get(labels, 0.0) for op in ("write", "read"))
        if any((*moved, ended, waiting, failed, late[labels])):
            names = dict(labels)
            numbers = [*(f"{n:.1f}" for n in moved), *(f"{n:.0f}" for n in (ended, waiting, failed, late[labels]))]
            rows.append([names["transport"], names["class"], *numbers])
    return sorted(rows)


def event_texts(event: Event) -> list[str]:
    where = " ".join(text for text in (event.transport, event.rail, event.peer) if text)
    if event.to_transport:
        where = f"{event.from_transport} -> {event.to_transport} {where}"
    return [printable(text) for text in (event.kind, where, event.error or event.note)]
