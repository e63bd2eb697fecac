"""Metrics over HTTP, and the live view that reads them."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import tent
from tent.command import screen, top


def fetch(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as reply:
        return str(reply.read().decode())


def test_prometheus_gets_the_text_of_the_engine() -> None:
    with tent.Engine() as engine, engine.allocate(4096, name="kv") as region, engine.open(engine.address) as peer:
        with tent.serve_metrics(engine) as server:
            assert server.address.startswith("127.0.0.1:") and server.url in repr(server)
            engine.write(region[0:64], peer["kv"][64:128]).result(timeout=10)
            names = {line.partition("{")[0].split()[0] for line in fetch(server.url).splitlines() if line[:1] != "#"}
            assert names == {
                line.partition("{")[0].split()[0] for line in engine.metrics_text().splitlines() if line[:1] != "#"
            }
        with pytest.raises(urllib.error.URLError):
            fetch(server.url)
        server.close()  # again: nothing
        last = tent.serve_metrics(engine)
    with pytest.raises(urllib.error.URLError):
        fetch(last.url)
    last.close()
    with pytest.raises(tent.EngineClosedError):
        tent.serve_metrics(engine)


def test_a_port_that_is_taken_and_ports_that_are_none() -> None:
    with tent.Engine() as engine, tent.serve_metrics(engine) as server:
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(tent.RpcServiceError, match="in use"):
            tent.serve_metrics(engine, port)
        for wrong in (-1, 65536, "9400", True):
            with pytest.raises(tent.InvalidArgumentError, match="from 0 to 65535"):
                tent.serve_metrics(engine, wrong)  # type: ignore[arg-type]


def test_the_setting_serves_and_a_taken_port_costs_only_the_metrics() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with tent.Engine({"metrics/listen": place}) as engine, engine.events() as events:
            off = events.wait_for("metrics_off", timeout=10)
            assert off.note == place and "in use" in off.error
            with engine.allocate(64, name="kv") as region, engine.open(engine.address) as peer:
                assert engine.write(region, peer["kv"]).result(timeout=10) == 64
    with tent.Engine({"metrics/listen": place}):
        assert "tent_build_info" in fetch(f"http://{place}/metrics")


def test_events_over_http_are_those_of_the_engine() -> None:
    with (
        tent.Engine() as other,
        tent.Engine() as engine,
        tent.serve_metrics(engine) as server,
        engine.events() as events,
    ):
        engine.open(other.address).close()
        events.wait_for("segment_opened", timeout=10)
        found = json.loads(fetch(f"http://{server.address}/events"))
        kinds = [entry["kind"] for entry in found["events"]]
        assert "segment_opened" in kinds and found["next"] == len(kinds) and found["lost"] == 0
        again = json.loads(fetch(f"http://{server.address}/events?after={found['next']}"))
        assert again["events"] == [] and again["next"] == found["next"]


def test_top_shows_rails_classes_and_events() -> None:
    with (
        tent.Engine() as other,
        tent.Engine() as engine,
        engine.allocate(1 << 16) as region,
        other.allocate(1 << 16, name="kv"),
        engine.open(other.address) as peer,
    ):
        engine.write(region, peer["kv"], hint="tcp", priority=tent.PRIO_LOW).result(timeout=10)
        with tent.serve_metrics(engine) as server:
            watched = top.Watched(server.address)
            list(watched.sections())
            over = time.monotonic() + 10
            while True:  # two looks within a tenth of a second see the same text
                engine.write(region, peer["kv"], priority=tent.PRIO_LOW).result(timeout=10)
                title, *_ = second = list(watched.sections())
                if any(row[1] == "low" and float(row[2]) > 0 for row in second[1].rows) or time.monotonic() > over:
                    break
            text = "\n".join(line for section in second for line in screen.plain(section))
            assert server.address in title.title and "1 regions of 64.0 KiB" in title.title
            assert {row[0] for row in second[0].rows} & {"shm", "tcp"} and " up " in text
            assert any(row[1] == "low" and float(row[2]) > 0 for row in second[1].rows), "a rate is that between looks"
            assert "segment_opened" in text
            command = [sys.executable, "-W", "error", "-m", "tent", "top", server.address, "127.0.0.1:1"]
            done = subprocess.run(
                [*command, "--looks", "2", "--interval", "0.05"], capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0 and done.stdout.count("127.0.0.1:1: no metrics") == 2, done.stderr
        nobody = subprocess.run(
            [*command[:-2], "127.0.0.1:1", "--looks", "1"], capture_output=True, text=True, timeout=60
        )
        assert nobody.returncode == 1
        with pytest.raises((OSError, ValueError)):
            top.Watched(engine.address)._look()  # the control plane speaks something else


@contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """A server of something else; the value is its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as connection, contextlib.suppress(OSError):
                        connection.recv(4096)
                        answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


BODY = b'tent_build_info 1\ntent_rail_bytes_total{transport="tcp"} 1\n'


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY),
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n[1,2] tent_build_info",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"",
    ],
)
def test_another_program_at_an_address_is_a_line_of_top(answer: bytes) -> None:
    with answering(lambda connection: connection.sendall(answer)) as address:
        (section,) = top.Watched(address).sections()
        assert section.title.startswith(f"{address}: no metrics: ") and not section.rows


@pytest.mark.parametrize("address", ["a b:90", "[::1:90", "127.0.0.1:70000", "127.0.0.1:x", ""])
def test_an_address_that_is_none_is_a_line_of_top(address: str) -> None:
    (section,) = top.Watched(address).sections()
    assert section.title.startswith(f"{address}: no metrics: ")


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"])
def test_an_answer_that_drips_ends_with_its_limit(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "FETCH_S", 0.2)
    pace = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(head)
        while not pace.wait(0.01):
            connection.sendall(b"x")

    guard = threading.Timer(20, pace.set)
    guard.start()
    with answering(drip) as address, pytest.raises(TimeoutError, match="no whole answer"):
        top.fetch(address, "/metrics")
    assert not pace.is_set()
    guard.cancel()


def test_an_answer_that_never_comes_ends_with_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the socket's own limit, which is the same, is the first."""
    monkeypatch.setattr(top, "FETCH_S", 0.05)
    monkeypatch.setattr(top, "end", lambda connection: None)
    over = threading.Event()
    with answering(lambda connection: over.wait(20)) as address:
        with pytest.raises(TimeoutError, match="no whole answer"):
            top.fetch(address, "/metrics")
        over.set()


Look = Callable[[int, int, int], tuple[float, list[str]]]


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Look:
    """A look at one engine with these totals of its own and of its rail, and this many events: the rail's rate in
    MB/s as top shows it, and the kinds of the events."""
    sent, moved, events = 0, 0, 0
    texts = dict.fromkeys(("peer", "transport", "rail", "local", "remote", "from", "to", "note", "trace"), "")
    event = texts | dict.fromkeys(("n", "m", "took_ns", "bytes", "health"), 0) | {"error": None}

    def answer(address: str, path: str) -> bytes:
        if path == "/metrics":
            rail = 'tent_rail_bytes_total{transport="tcp",local="a",remote="b",peer="c"}'
            return f"tent_build_info 1\n{rail} {moved}\ntent_notifications_sent_total {sent}\n".encode()
        found = [event | {"kind": f"event_{n}", "time_ns": n} for n in range(int(path.partition("=")[2]), events)]
        return json.dumps({"next": events, "now_ns": 100, "lost": 0, "events": found}).encode()

    monkeypatch.setattr(top, "fetch", answer)
    watched = top.Watched("here:1")

    def look(of_engine: int, of_rail: int, told: int) -> tuple[float, list[str]]:
        nonlocal sent, moved, events
        sent, moved, events = of_engine, of_rail, told
        rails, *others = watched.sections()
        return float(rails.rows[0][5]), [row[1] for section in others for row in section.rows]

    return look


def test_an_engine_that_restarts_begins_anew_in_top(look: Look) -> None:
    look(9, 1 << 40, 3)
    for told in (2, 5):  # a new engine with fewer events, and with more
        rate, seen = look(1, 1 << 20, told)
        assert rate == 0.0 and seen[-told:] == [f"event_{n}" for n in range(told)]
        look(9, 1 << 40, told)


def test_a_link_that_is_made_anew_is_no_new_engine_in_top(look: Look) -> None:
    look(9, 1 << 50, 2)
    rate, seen = look(9, 1 << 40, 3)
    assert rate > 0.0, "it is that of the bytes since"
    assert seen == ["event_0", "event_1", "event_2"], "each once"


def test_text_of_prometheus_is_read() -> None:
    text = '# HELP a b\na{x="1",y="q\\"u,}"} 2\nb 3e+06\nc_bucket{le="1"} 4\nc_sum 5\n'
    assert top.parse(text) == {
        "a": {frozenset({("x", "1"), ("y", 'q\\"u,}')}): 2.0},
        "b": {frozenset(): 3e6},
        "c_sum": {frozenset(): 5.0},
    }
