"""Events of rails, links and peers while transfers go on, for views, logs and tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from . import _html, _native
from ._text import shown
from .errors import EngineClosedError, InvalidArgumentError, InvalidEntryError, TentError
from .stream import Stream

if TYPE_CHECKING:
    from .handle import Handle

R = TypeVar("R")

_SHOWN = 20  # events that a notebook shows


class Event(NamedTuple):
    """One thing that happened. Texts that do not apply are empty, numbers 0.

    `kind` is one of these. A rail is `rail_up` or `rail_down`; `rail_suspected` when it says nothing for `took` seconds
    while `bytes` are outstanding; `rail_paused` for `took` seconds, `note` has the reason; `rail_probed` (`n` good ones
    of `m`, or an error); `rail_recovered`, `note` has the means; `rail_condemned` when all of it was fenced. A peer is
    `link_up` or `link_down` over one transport, `peer_gone` on all; `peer_silent` when it owes answers and has said
    nothing for `took` seconds, `peer_back` when it goes on. A transfer makes a `failover` (attempt `n` of `m`),
    or ends after `failover_exhausted`, `failover_no_route`, `stalled`, `dirty`; a withdrawal that stayed open is
    `withdrawn` at last. `deadline_missed` tells of `n` requests to a peer since the last such event, at most ten times
    a second; nothing of `m` of them was ever sent. `sharing_off` says that slots and load are not known across
    processes any more (`error` has the cause), `sharing_on` that they are again. `metrics_off`: they are not served at
    the place in `note`. `peer_admitted` and `peer_refused` tell of callers, `access_refused` of something that a peer
    may not touch. `slow_path`: a full rail carried `n` percent of its nominal or usual rate for `took` seconds, `note`
    has cause and knob; `slow_path_over` is its end. `insecure`: the engine admits anybody. `traced`: a peer
    reports how its transfer `trace` with this engine went on, in `note`. `segment_opened`, `segment_closed` and
    `region_closed` are acts of the user. `stray_completion`: the transport ended a slice twice, `n` times so far; from
    `m` times on its links go down. `name_lost`: the metadata service does not hold the engine's name, for the reason in
    `error`; `name_back`: it holds it again. `peer_disconnected`: the peers of the identities in `note` lost
    their access, for the reason in `error`. `security_reloaded`: the files of mode mtls were replaced and read again;
    with `error` those of before count on. `lease_made` gives the lease named in `rail` to the peers in `note`: `bytes`,
    for `took` seconds or without an end; after `lease_ended` no peer touches them by it, `note` says why.
    `transport_stuck`: a transport stands still on a rail for `took` seconds as `note` says, and transfers may wait.
    `region_held`: a driver has not let the closed region named in `rail` go for `took` seconds.
    """

    kind: str
    time: float  # seconds on time.monotonic()'s clock
    peer: str = ""
    transport: str = ""
    rail: str = ""  # "local -> remote", and both ends apart:
    local: str = ""
    remote: str = ""
    from_transport: str = ""
    to_transport: str = ""
    n: int = 0
    m: int = 0
    note: str = ""
    took: float = 0.0  # seconds
    bytes: int = 0
    health: int = 0  # of the rail, 0 to 1000
    error: str = ""  # the cause in words; programs act on code, scope and side
    code: str = ""
    scope: str = ""
    side: str = ""
    trace: str = ""  # the caller's name for the transfer

    def __str__(self) -> str:
        where = " ".join(text for text in (self.transport, self.rail, self.peer) if text)
        moved = f" {self.from_transport} -> {self.to_transport}" if self.to_transport else ""
        why = f": {self.error}" if self.error else f" ({self.note})" if self.note else ""
        mark = f" [{self.trace}]" if self.trace else ""
        return f"{self.time:.6f} {self.kind}{moved} {where}{mark}{why}"


class Events(Stream[Event]):
    """The events of an engine, from the oldest of the last 4096 on, as engine.events() gives them. Any thread, and
    event loops; in a `with` block, or close() it.

    Example:
        with engine.events() as events:
            opened = events.wait_for("segment_opened", timeout=10)
            print(opened, [event.kind for event in events.drain()], events.fileno(), events.lost)
            engine.open(address).close()
            print(await events.get_async(timeout=10), events.get(timeout=10))
        assert events.closed

    get_nowait() does not wait. Each reader has a place of its own, so all see everything. The engine never waits for a
    reader: a late one loses the oldest, and `lost` counts them.
    """

    __slots__ = {"_closed": "", "_kinds": "", "lost": "Events that this reader has missed, because it was late."}

    def __init__(self, engine: Handle, kinds: Sequence[str]) -> None:
        """For engine.events(). `kinds` are the names of all kinds."""
        self._closed = True  # until there is something to close
        super().__init__(engine, engine._call(engine._library.pybind_EventsOpen), "event")
        self._closed = False
        self._kinds = kinds
        self.lost = 0
        engine._streams.add(self)

    @property
    def closed(self) -> bool:
        """Whether close() was called, or the engine is closed."""
        return self._closed or self._engine.closed

    def wait_for(self, wanted: str | Callable[[Event], bool], timeout: float | str | None = None) -> Event:
        """The next event of a kind, or the next that `wanted` says yes to; others before it are taken too. The builtin
        TimeoutError if none comes within `timeout` seconds, InvalidArgumentError for a kind that there is not."""
        if callable(wanted):
            return self._next(wanted, timeout)
        if wanted not in self._kinds:
            from difflib import get_close_matches

            near = get_close_matches(wanted, self._kinds, 1) if isinstance(wanted, str) and len(wanted) < 64 else []
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(self._kinds)}"
            raise InvalidArgumentError(f"there is no event of the kind {shown(wanted)}", hint=hint)
        return self._next(lambda event: bool(event.kind == wanted), timeout)

    def fileno(self) -> int:
        """A file descriptor that is readable while some wait; for select and epoll, not for reading."""
        self._check_open()
        return super().fileno()

    def close(self) -> None:
        """Ends reading. Again: no effect."""
        if self._closed:
            return
        _native.check_process()
        self._closed = True
        self._engine._streams.discard(self)
        try:
            self._engine._call(self._engine._library.pybind_EventsClose, self._fd)
        except TentError:
            pass  # the engine has closed, and the descriptor with it
        self._wake_all()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosedError("these events are closed", hint="engine.events() gives new ones")

    def _follow(self, function: Callable[..., R], *arguments: Any) -> R:
        """A call about this reader, which another thread may close meanwhile."""
        self._check_open()
        try:
            return self._engine._call(function, self._fd, *arguments)
        except InvalidEntryError:
            self._check_open()
            raise

    def _take(self, most: int) -> list[Event]:
        found = json.loads(self._follow(self._engine._library.pybind_EventsTake, most))
        self.lost += found["lost"]
        return [event_of(entry) for entry in found["events"]]

    def _wait(self, milliseconds: int) -> None:
        self._follow(self._engine._library.pybind_EventsWait, milliseconds)

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        lost = f", {self.lost} lost" if self.lost else ""
        return f"<Events of {self._engine!r}{lost}{' closed' if self.closed else ''}>"

    def _repr_html_(self) -> str:
        """The last events, for a notebook; nothing is taken from this reader."""
        if self.closed:
            return _html.table(("events", "closed"), ())
        with Events(self._engine, self._kinds) as others:
            last = others.drain()[-_SHOWN:]
        rows = ((f"{e.time:.3f}", e.kind, e.transport, e.peer, e.rail, e.error or e.note) for e in last)
        return _html.table(("time", "kind", "transport", "peer", "rail", "why"), rows, f"the last {len(last)} events")

    def __reduce__(self) -> str:
        raise TypeError("Events cannot be pickled; they belong to their engine")

    @_native.finalizer
    def __del__(self) -> None:
        if not self._closed and not self._engine.closed:
            self.close()


def event_of(entry: dict[str, Any]) -> Event:
    """An event from its JSON form, as the engine and /events of serve_metrics() have it."""
    error = entry["error"] or {}
    return Event(
        entry["kind"],
        entry["time_ns"] / 1e9,
        entry["peer"],
        entry["transport"],
        entry["rail"],
        entry["local"],
        entry["remote"],
        entry["from"],
        entry["to"],
        entry["n"],
        entry["m"],
        entry["note"],
        entry["took_ns"] / 1e9,
        entry["bytes"],
        entry["health"],
        error.get("message", ""),
        error.get("code", ""),
        error.get("scope", ""),
        error.get("side", ""),
        entry["trace"],
    )
