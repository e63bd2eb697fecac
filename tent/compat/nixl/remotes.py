"""The remote side of an agent: metadata, and the segments of the agents that are known."""

from __future__ import annotations

import base64
import json
import logging
import threading
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ... import _native
from ...errors import PeerUnreachableError, TentError
from .errors import nixlMismatchError, nixlNotFoundError, translating
from .messages import checked_name

if TYPE_CHECKING:
    from ...engine import Engine
    from ...segment import Segment

logger = logging.getLogger("tent.compat.nixl")

CONNECT_LIMIT = 10.0  # seconds in which a peer answers and a rail comes up
_MEET_LIMIT = 1.0  # the same for an agent that is added and perhaps silent
_ALIVE_LIMIT = 1.0  # seconds in which a peer says that it lives
_FORM = "tent-nixl-1"

Name = str | bytes


class _Remote:
    """A remote agent: its segment, and the life of the agent that it belongs to."""

    __slots__ = ("life", "segment")

    def __init__(self, segment: Segment, life: str) -> None:
        self.segment = segment
        self.life = life

    def lives(self) -> bool:
        try:
            return self.segment.alive(timeout=_ALIVE_LIMIT)
        except TentError:
            return False


class Remotes:
    """The agents that one agent knows, itself among them. Any thread may use them.

    A life is a random number of each agent object. By it a successor of the same name differs from its predecessor.
    """

    def __init__(self, engine: Engine, own: str) -> None:
        """`own` is this agent's name."""
        self._engine = engine
        self._own = own
        self._life = uuid.uuid4().hex
        self._lock = _native.renewed(threading.RLock())
        self._known: dict[str, _Remote] = {}

    def metadata(self, regions: Sequence[str] | None) -> bytes:
        """The facts that another agent needs about this one, with these regions or all."""
        with translating():
            blob = self._engine.export(regions)
        fields = {"form": _FORM, "name": self._own, "life": self._life, "engine": base64.b64encode(blob).decode()}
        return json.dumps(fields).encode()

    def add(self, metadata: bytes | str) -> str:
        """Connects to an agent and returns its name. It takes the place of one of that name with another life.

        An agent that gives no answer is kept, since it may stand still for a moment, and its first transfer waits for
        it or says more. The thread of a stack that adds agents serves other agents too, and ends with an error. One of
        that name which lives keeps its place until the other one answers.
        """
        fields = parsed(metadata)
        name, life = fields["name"], fields["life"]
        known = self._find(name)
        if known is not None and known.life == life and known.lives():
            return name
        with translating():
            segment = self._engine.open("") if life == self._life else self._connected(fields)
        self._keep(name, _Remote(segment, life))
        return name

    def _keep(self, name: str, made: _Remote) -> Segment:
        """Makes an agent known and returns its segment. That of the same life stays, for lists and transfers use it:
        the agent did not answer for a while, or another thread has added it meanwhile."""
        with self._lock:
            before = self._known.get(name)
            kept = before if before is not None and before.life == made.life else made
            self._known[name] = kept
        left = made if kept is before else before
        if left is not None:
            left.segment.close()
        return kept.segment

    def _connected(self, fields: dict[str, str]) -> Segment:
        segment = self._engine.open(base64.b64decode(fields["engine"]))
        try:
            self._meet(segment, fields)
        except BaseException:
            segment.close()
            raise
        return segment

    def _meet(self, segment: Segment, fields: dict[str, str]) -> None:
        """Connects to an agent. One that is silent may be kept; one that answers and is not reached is an error."""
        try:
            segment.connect(_MEET_LIMIT)
        except PeerUnreachableError as error:
            if error.side == "remote":  # its host has answered for it
                raise
            if segment.alive(_ALIVE_LIMIT):  # its rails are late, or no transport leads there
                segment.connect(CONNECT_LIMIT)
                return
            known = self._find(fields["name"])
            if known is not None and known.life != fields["life"] and known.lives():
                raise
            logger.warning("an agent was added and gives no answer yet: %s", error)

    def connect(self, name: str) -> None:
        """Connects again, or ahead of the first transfer."""
        with translating():
            self.segment(name).connect(CONNECT_LIMIT)

    def remove(self, name: str) -> None:
        """Forgets an agent, if it is known; transfers to it that are under way end as failed."""
        with self._lock:
            remote = self._known.pop(name, None)
        if remote is not None:
            remote.segment.close()

    def has(self, metadata: bytes) -> str | None:
        """The name of the agent of this metadata, if that very life is known."""
        fields = parsed(metadata)
        known = self._find(fields["name"])
        return None if known is None or known.life != fields["life"] else fields["name"]

    def displaced(self, metadata: bytes, forgets: bool) -> str | None:
        """The name of a known agent that lives, if it has this metadata's life and is to be forgotten, or another one
        and is to be replaced."""
        fields = parsed(metadata)
        known = self._find(fields["name"])
        if known is None or (known.life == fields["life"]) is not forgets or not known.lives():
            return None
        return fields["name"]

    def live(self, name: str) -> Segment | None:
        """The segment of an agent that is known and answers, else None."""
        known = self._find(name)
        return known.segment if known is not None and known.lives() else None

    def segment(self, name: str) -> Segment:
        """The segment of an agent; this agent is known without metadata."""
        known = self._find(name)
        if known is not None:
            return known.segment
        if name != self._own:
            raise nixlNotFoundError(f"the agent {name!r} is not known: add_remote_agent() takes its metadata")
        with translating():
            segment = self._engine.open("")
        return self._keep(name, _Remote(segment, self._life))

    def _find(self, name: str) -> _Remote | None:
        with self._lock:
            return self._known.get(name)


def text(name: Name) -> str:
    """An agent's name as text; upstream returns names as bytes and takes both."""
    if isinstance(name, bytes):
        return name.decode("utf-8", "surrogateescape")
    if not isinstance(name, str):
        raise TypeError(f"an agent's name is str or bytes, not {type(name).__name__}")
    return name


def parsed(metadata: bytes | str) -> dict[str, str]:
    """The fields of an agent's metadata."""
    try:
        fields = json.loads(metadata)
        if fields["form"] != _FORM or not all(isinstance(fields[k], str) for k in ("name", "life", "engine")):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise nixlMismatchError(
            "the metadata is not that of an agent of tent: the other side runs the real NIXL, or another version"
        ) from None
    checked_name(fields["name"])
    return dict(fields)
