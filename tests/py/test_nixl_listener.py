"""Metadata of tent's NIXL agent over a socket, with others that are slow, and in want of descriptors."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import threading
import types
import weakref
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")

from nixl_agents import Agents

import tent
from tent.compat import nixl
from tent.compat.nixl import agent, listener, seldom

pytestmark = pytest.mark.adapters


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_an_agent_that_cannot_listen_leaves_no_engine_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tent.Engine] = []

    def engine(*given: Any) -> tent.Engine:
        made.append(tent.Engine(*given))
        return made[-1]

    monkeypatch.setattr(agent, "Engine", engine)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for port, kind, words in (
            (taken.getsockname()[1], nixl.nixlBackendError, "nobody can listen"),
            (1 << 16, nixl.nixlInvalidParamError, "listen_port is 65536"),
            ("8888", nixl.nixlInvalidParamError, "listen_port is '8888'"),
        ):
            with pytest.raises(kind, match=words) as caught:  # which keeps the agent
                nixl.nixl_agent("a", nixl.nixl_agent_config(enable_listen_thread=True, listen_port=port))
            assert caught.value.__traceback__ and made[-1].closed
    assert len(made) == 3


def test_an_exchange_has_one_limit_however_many_pieces_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "LIMIT", 0.3)
    server = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(listener._LENGTH.pack(listener.LONGEST))
            while True:
                connection.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    with server:
        assert listener.ask("127.0.0.1", server.getsockname()[1], "fetch", b"") is None
    thread.join()


def test_a_moment_without_descriptors_does_not_end_the_listener(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = agents("a", enable_listen_thread=True, listen_port=0)
    host, port = agent.engine.address.rpartition(":")[0], agent._listener.port
    accept, left = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")] * 2

    def scarce(server: socket.socket) -> object:
        if left:
            raise left.pop()
        return accept(server)

    monkeypatch.setattr(listener, "_PAUSE", 0.01)
    monkeypatch.setattr(socket.socket, "accept", scarce)
    for _ in range(3):  # the first one is accepted by a call that has begun
        assert listener.ask(host, port, "fetch", b"") == agent.get_agent_metadata()
    assert not left


def test_an_agent_that_is_dropped_closes_with_its_listener() -> None:
    port = 0
    for _ in range(2):  # the second one has the port of the first
        agent = nixl.nixl_agent("a", nixl.nixl_agent_config(enable_listen_thread=True, listen_port=port))
        assert agent._listener is not None
        port, thread, gone = agent._listener.port, agent._listener._thread, weakref.ref(agent)
        assert listener.ask("127.0.0.1", port, "fetch", b"") == agent.get_agent_metadata()
        del agent
        thread.join(10)
        assert gone() is None and not thread.is_alive()
        assert listener.ask("127.0.0.1", port, "fetch", b"") is None


def test_a_stranger_takes_no_agent_away_where_security_is_on(agents: Agents, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_bytes(os.urandom(32))
    secured = {"config": {"security": {"cluster_key": str(key)}}}
    one = agents("one", enable_listen_thread=True, listen_port=0, options=secured)
    two = agents("two", enable_listen_thread=True, listen_port=0, options=secured)
    assert one._listener is not None and two._listener is not None
    one.fetch_remote_metadata("two", "127.0.0.1", two._listener.port)
    segment = one._remotes.segment("two")
    known = listener.ask("127.0.0.1", two._listener.port, "fetch", b"")
    other = json.dumps(json.loads(known) | {"life": "made up"}).encode()
    for word, metadata in (("forget", known), ("send", other)):
        with pytest.raises(nixl.nixlBackendError, match=r"'two' lives.*remove_remote_agent"):
            listener.ask("127.0.0.1", one._listener.port, word, metadata)
    listener.ask("127.0.0.1", one._listener.port, "forget", other)  # of no agent that is known
    two.send_local_metadata("127.0.0.1", one._listener.port)
    assert one.check_remote_metadata("two") and one._remotes.segment("two") is segment
    two.close()
    listener.ask("127.0.0.1", one._listener.port, "forget", known)
    with pytest.raises(nixl.nixlNotFoundError):
        one.make_connection("two")


def test_all_requests_together_have_a_bound() -> None:
    shared = listener._Bytes()
    first, second, third = (listener._Room(shared) for _ in range(3))
    for _ in range(2):
        first.take((listener._EACH + listener.LONGEST) // 2)
    second.take(listener._EACH)
    with pytest.raises(ValueError, match="other long requests"):
        second.take(1)
    for room in (first, second):
        room.close()
    third.take(listener._EACH + listener.LONGEST)
    third.close()
    assert shared._left == listener.LONGEST


def test_a_request_is_not_told_what_was_found_at_an_address(agents: Agents, caplog: pytest.LogCaptureFixture) -> None:
    one, other = agents("one", enable_listen_thread=True, listen_port=0), agents("other")
    host, metadata = other.engine.address.rpartition(":")[0], other.get_agent_metadata()
    other.close()
    with pytest.raises(nixl.nixlBackendError, match=r"refused: the log there says why$"):
        listener.ask(host, one._listener.port, "send", metadata)
    assert "nobody listens at" in caplog.text
    with pytest.raises(nixl.nixlBackendError, match="not that of an agent of tent"):
        listener.ask(host, one._listener.port, "send", b"[" * (1 << 20))


def test_few_agents_stay_that_came_by_a_socket_and_are_silent(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_SILENT_MOST", 2)
    port = agents("a", enable_listen_thread=True, listen_port=0)._listener

    class Stand:
        def __init__(self) -> None:
            self.answering = {b"well"}
            self.removed: list[bytes] = []

        def check_remote_metadata(self, name: bytes) -> bool:
            return name in self.answering

        def remove_remote_agent(self, name: bytes) -> None:
            self.removed.append(name)

    stand = Stand()
    for name in (b"0", b"1", b"well", b"2", b"3"):
        port._added(stand, name)
    assert stand.removed == [b"0", b"1"]
    stand.answering.add(b"2")  # meanwhile
    port._added(stand, b"4")
    assert stand.removed == [b"0", b"1"]


def test_lines_that_others_can_cause_are_seldom(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [5.0]
    monkeypatch.setattr(seldom, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    warn = seldom.Seldom(logging.getLogger("tent.compat.nixl"), logging.WARNING)
    with caplog.at_level(logging.WARNING, "tent.compat.nixl"):
        for i in range(10):
            warn("line %d", i)
        now[0] += seldom.PAUSE
        warn("line %d", 10)
    assert caplog.messages == ["line 0", "line 10 (9 more such lines were left out)"]
