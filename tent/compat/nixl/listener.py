"""Metadata over a socket, as NIXL's listen thread gives it. One request and one answer a connection.

A frame is the length of its text, four bytes, then the text: "send", "fetch" or "forget", a line feed, the metadata.
The answer has the same form: "ok" or "no", a line feed, metadata or a reason. Metadata has no secrets, and an engine is
let in by its key alone, so this is no way around the security of the engine. With security on, no request takes an
agent away that lives: a socket does not prove that the agent sent it.

Anybody may reach the port. So requests have bounds in number, bytes and time, of the agents that they name few stay
that do not answer, and no answer says why an address gave no agent.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
import time
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING

from ... import _native
from ..._text import shown
from .errors import nixlBackendError, nixlInvalidParamError, nixlMismatchError, nixlNotSupportedError
from .seldom import Seldom

if TYPE_CHECKING:
    from .agent import nixl_agent

logger = logging.getLogger("tent.compat.nixl")

LIMIT = 5.0  # seconds for a whole exchange
LONGEST = 64 << 20  # bytes of a frame
_PAUSE = 1.0  # seconds, after a connection that could not be accepted
_AT_ONCE = 16  # connections that are served at a time
_EACH = 4 << 20  # bytes that a request may always have; those beyond are of one room for all, of LONGEST
_SILENT_MOST = 64  # agents from sockets that did not answer

_LENGTH = struct.Struct("!I")
_TOLD = (ValueError, nixlInvalidParamError, nixlMismatchError)  # errors of a request itself


class Listener:
    """Serves metadata on a port, on the address on which the engine listens."""

    def __init__(self, agent: nixl_agent, port: int) -> None:
        if not isinstance(port, int) or not 0 <= port < 1 << 16:
            raise nixlInvalidParamError(f"listen_port is {shown(port)}: it must be a number from 0 to 65535")
        host = agent.engine.address.rpartition(":")[0].strip("[]")
        self._agent = weakref.ref(agent)  # an agent that is dropped closes, and its listener with it
        settings = agent.engine.config
        self._secured = any(settings[f"security/{key}"].value for key in ("cluster_key", "cert"))
        self._room = threading.BoundedSemaphore(_AT_ONCE)
        self._bytes = _Bytes()
        self._lock = _native.renewed(threading.RLock())
        self._silent: OrderedDict[bytes, None] = OrderedDict()  # agents that did not answer, the oldest first
        self._warn = Seldom(logger, logging.WARNING)
        self._closed = threading.Event()
        try:
            self._socket = socket.create_server((host, port), family=_family(host))
        except OSError as error:
            raise nixlBackendError(
                f"nobody can listen on {host}:{port}: {error}; give another listen_port to nixl_agent_config"
            ) from error
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="tent-nixl-listener", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if self._closed.is_set():
                    return
                logger.warning("metadata is not served for %s s: %s", _PAUSE, error)  # no descriptors, or no memory
                self._closed.wait(_PAUSE)
                continue
            if not self._room.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        room = _Room(self._bytes)
        try:
            with connection:
                over = time.monotonic() + LIMIT
                word, _, metadata = _received(connection, over, room).partition(b"\n")
                try:
                    answer = b"ok\n" + self._done(word, metadata)
                except Exception as error:
                    self._warn("metadata from a socket was refused: %s", shown(str(error)))
                    told = error if isinstance(error, _TOLD) else "the log there says why"
                    answer = b"no\n" + str(told).encode()
                _send(connection, answer, over)
        except (OSError, ValueError):
            pass  # the other side went away, or spoke another language
        finally:
            room.close()
            self._room.release()

    def _done(self, word: bytes, metadata: bytes) -> bytes:
        agent = self._agent()
        if agent is None:
            raise ValueError("the agent has gone")
        if word == b"fetch":
            return agent.get_agent_metadata()
        if word not in (b"send", b"forget"):
            raise ValueError("the request is none of send, fetch and forget")
        if self._secured and (name := agent.takes_away(metadata, forgets=word == b"forget")):
            raise ValueError(
                f"the agent {name!r} lives, and with security on a socket does not take it away: it is forgotten by "
                "remove_remote_agent(), or replaced when it has ended"
            )
        if word == b"send":
            self._added(agent, agent.add_remote_agent(metadata))
        else:
            agent.forget_agent(metadata)
        return b""

    def _added(self, agent: nixl_agent, name: bytes) -> None:
        """Notes an agent that is known now and does not answer. It may stand still for a moment; of too many the oldest
        is forgotten, for anybody may name addresses at which nobody is."""
        if agent.check_remote_metadata(name):
            return
        with self._lock:
            self._silent[name] = None
            if len(self._silent) <= _SILENT_MOST:
                return
            oldest, _ = self._silent.popitem(last=False)
        if not agent.check_remote_metadata(oldest):
            agent.remove_remote_agent(oldest)

    def close(self) -> None:
        """Listens no more. Again: no effect."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
        self._socket.close()
        if threading.current_thread() is not self._thread:  # which the collector may use to drop the agent
            self._thread.join(LIMIT)


def ask(host: str, port: int, word: str, metadata: bytes) -> bytes | None:
    """Sends one request to a listener and returns its answer, within 5 s. None where nobody answers: NIXL queues these
    requests, and its callers ask again until check_remote_metadata() is true. A refusal is an error."""
    if not host:
        raise nixlNotSupportedError(
            "metadata servers are not supported: give ip_addr, or carry get_agent_metadata() over"
        )
    over = time.monotonic() + LIMIT
    try:
        with socket.create_connection((host, port), LIMIT) as connection:
            _send(connection, word.encode() + b"\n" + metadata, over)
            kind, _, answer = _received(connection, over, _Room(_Bytes())).partition(b"\n")
    except (OSError, ValueError) as error:
        logger.warning("no agent of tent answers at %s:%s: %s; it needs enable_listen_thread=True", host, port, error)
        return None
    if kind != b"ok":
        raise nixlBackendError(f"the agent at {host}:{port} refused: {answer.decode('utf-8', 'replace')}")
    return answer


def _send(connection: socket.socket, frame: bytes, over: float) -> None:
    connection.settimeout(_left(over))  # sendall() counts it as a whole
    connection.sendall(_LENGTH.pack(len(frame)) + frame)


class _Bytes:
    """The room that requests share which are longer than most."""

    def __init__(self) -> None:
        self._lock = _native.renewed(threading.RLock())
        self._left = LONGEST

    def take(self, n: int) -> None:
        with self._lock:
            if n > self._left:
                raise ValueError("other long requests are under way")
            self._left -= n

    def give(self, n: int) -> None:
        with self._lock:
            self._left += n


class _Room:
    """The room that one request takes."""

    def __init__(self, shared: _Bytes) -> None:
        self._shared = shared
        self._own = _EACH  # bytes of it that are left
        self._taken = 0

    def take(self, n: int) -> None:
        self._own -= n
        if (more := -self._own - self._taken) > 0:
            self._shared.take(more)
            self._taken += more

    def close(self) -> None:
        self._shared.give(self._taken)


def _received(connection: socket.socket, over: float, room: _Room) -> bytes:
    (n,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size, over, room))
    if n > LONGEST:
        raise ValueError(f"a frame of {n} bytes is longer than {LONGEST}")
    return _exactly(connection, n, over, room)


def _exactly(connection: socket.socket, n: int, over: float, room: _Room) -> bytes:
    data = bytearray()
    while len(data) < n:
        connection.settimeout(_left(over))
        piece = connection.recv(min(n - len(data), 1 << 20))
        if not piece:
            raise ValueError("the connection ended early")
        room.take(len(piece))
        data += piece
    return bytes(data)


def _left(over: float) -> float:
    """The seconds until a moment of the monotonic clock."""
    if (left := over - time.monotonic()) > 0:
        return left
    raise TimeoutError(f"the exchange took more than {LIMIT:g} s")


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
