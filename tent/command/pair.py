"""`tent doctor --peer HOST:PORT`: the way to a peer, step by step, and back from it.

Every engine can be checked; one of `tent serve` completely. It offers a region for the check, so that bytes can be
written there and compared, and when it is asked to, it checks the way back to the engine that asks, and leaves its
answer in a region that the other one reads. The answer needs no way back, so it can say that there is none.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import tent

from .. import _text
from . import guest
from .route import detour, settle
from .screen import printable

REGION, ANSWER = "tent-doctor", "tent-doctor-answer"
BYTES = 1 << 20  # written and read back over each transport
ANSWER_BYTES = 1 << 16
CONNECT_S, MOVE_S, ANSWER_S = 5.0, 10.0, 40.0

READY, NOT_READY, LIMITED = "ready", "not ready", "limited"
STATUS = {READY: 0, NOT_READY: 1, LIMITED: 3}  # by verdict


@dataclass
class Step:
    """One step of a check. `ok` is None for a way that is not meant for this pair; `cure` is the advice."""

    name: str
    ok: bool | None
    found: str
    cure: str = ""


def run(options: argparse.Namespace) -> int:
    """Prints each step as it ends. The exit status is 0 when all went well, 3 when only some transports work or there
    is no way back, and 1 when no byte can be moved."""
    steps = []
    for step in check(options.peer, options.config):
        steps.append(step)
        if not options.json:
            print("\n".join(step_lines(step)), flush=True)
    moved = [step.name for step in steps if step.ok and step.name.startswith("over ")]
    wrong = [step.name for step in steps if step.ok is False]
    verdict = NOT_READY if not moved else LIMITED if wrong else READY
    if options.json:
        print(json.dumps({"verdict": verdict, "steps": [asdict(step) for step in steps]}, indent=2))
    else:
        print(f"\nverdict: {verdict}" + (f" (see: {', '.join(wrong)})" if wrong else ""))
    return STATUS[verdict]


def step_lines(step: Step) -> Iterator[str]:
    mark = "-" if step.ok is None else "ok" if step.ok else "no"
    yield f"{mark:3} {step.name:19} {step.found}"
    if step.cure:
        yield f"{'':24}{step.cure}"


def check(target: str, config: str | None) -> Iterator[Step]:
    """The steps towards a peer. It ends with the first one that leaves nothing to go on with."""
    address = target.partition("/")[0]
    for look in (resolve, connect):
        yield (step := look(address))
        if not step.ok:
            return
    with guest.engine(config, quiet=True) as engine, engine.allocate(BYTES, name=REGION):
        try:
            peer = engine.open(address, timeout=CONNECT_S)
        except (tent.TentError, TimeoutError) as error:
            yield refused(error)
            return
        with peer:
            yield Step("control plane", True, f"{printable(peer.name)} at {peer.address} admits this engine")
            yield from verify(engine, peer)
            if ANSWER in peer.regions:
                yield from back(engine, peer)
            else:
                yield Step("back", None, "only `tent serve` checks the way back, and this peer is another program")


def resolve(address: str) -> Step:
    """Asks the resolver for the host's addresses."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        return Step("name", False, f"{address!r} is not HOST:PORT", "print(engine.address) on the other side gives it")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        cure = "use the host's address, or put its name into DNS or /etc/hosts"
        return Step("name", False, f"{host} does not resolve: {error.strerror}", cure)
    addresses = ", ".join(dict.fromkeys(str(entry[4][0]) for entry in found))
    return Step("name", True, f"{host} is {addresses}" if addresses != host.strip("[]") else f"{host} is an address")


def connect(address: str) -> Step:
    """Opens and closes a connection to the control plane."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except ConnectionRefusedError:
        cure = "start the engine there, with this rpc_server_port, and an rpc_server_hostname that this host reaches"
        return Step("port", False, f"nobody listens at {address}", cure)
    except OSError as error:
        cure = "a firewall may drop packets to this port; ports of the data are needed, too (docs/operate/security.md)"
        return Step("port", False, f"{address} does not answer: {error.strerror or error}", cure)
    return Step("port", True, f"{address} accepts connections")


def refused(error: Exception) -> Step:
    """Describes why the control plane did not open."""
    if isinstance(error, tent.PermissionDeniedError):
        cure = "give this command the settings of your program, with its key: --config FILE, or TENT_CONF"
        return Step("control plane", False, f"the peer does not admit this engine: {error}", cure)
    cure = getattr(error, "hint", "") or "is it an engine of tent, and of this version? (tent --version)"
    return Step("control plane", False, str(error), "" if cure in str(error) else cure)


def verify(engine: tent.Engine, peer: tent.Segment) -> Iterator[Step]:
    """Moves bytes over each transport that could carry them, and compares them."""
    name = REGION if REGION in peer.regions else next((n for n, r in peer.regions.items() if r.size), None)
    if name is None:
        yield Step("region", False, "the peer offers no region, so nothing can be moved", "run `tent serve` there")
        return
    remote = peer.regions[name]
    size = min(BYTES, remote.size)
    with engine.allocate(size) as local:
        plan = engine.explain(local, remote[:size])
        seen: list[bytes] = []
        for route in plan["routes"]:
            yield attempt(engine, local, remote[:size], route["transport"], name == REGION, seen)
        for rejected in plan["rejected"]:
            yield Step(f"over {rejected['transport']}", None, rejected["reason"])
        if not plan["routes"]:
            yield Step("routes", False, "no transport can carry bytes between these engines")


def attempt(
    engine: tent.Engine,
    local: tent.Region,
    remote: tent.segment.RemoteSlice,
    transport: str,
    own: bool,
    seen: list[bytes],
) -> Step:
    """Moves bytes over one transport: there and back in a region of ours, else only from there. The bytes must be
    those that the transports before have read."""
    step = f"over {transport}"
    pattern = random.randbytes(local.size)
    terms: dict[str, Any] = {"hint": transport, "timeout": MOVE_S}
    try:
        moves = []
        if own:
            local.view[:] = pattern
            moves.append(settle(lambda: engine.write(local, remote, **terms), transport))
            local.view[:] = bytes(local.size)
        moves.append(settle(lambda: engine.read(local, remote, **terms), transport))
    except tent.TentError as error:
        return Step(step, False, str(error))
    if others := next(filter(None, (detour(move, transport) for move in moves)), ""):
        cure = "its link did not come up; engine.events() and the log say why"
        return Step(step, False, f"the bytes went over {others} instead", cure)
    arrived = bytes(local.view)
    if arrived != (pattern if own else seen[0] if seen else arrived):
        cure = "" if own else "the region may have changed between the two; `tent serve` offers one that does not"
        return Step(step, False, "other bytes arrived than were sent", cure)
    seen.append(arrived)
    took = max(move.elapsed for move in moves)
    done = "WRITE and READ" if own else "READ"
    return Step(step, True, f"{done} of {_text.size(local.size)}, every byte right, {_text.duration(int(took * 1e9))}")


def back(engine: tent.Engine, peer: tent.Segment) -> list[Step]:
    """The steps of the way back. Where none is a way there, the peer cannot be asked."""
    try:
        return ask(engine, peer) or [Step("back", False, f"the peer gave no answer within {ANSWER_S:.0f} s")]
    except (tent.TentError, TimeoutError) as error:
        return [Step("back", False, f"the peer cannot be asked: {error}")]


def ask(engine: tent.Engine, peer: tent.Segment) -> list[Step]:
    """Asks the peer to check the way to this engine, and waits for its answer; none comes from one that is busy."""
    nonce = f"{random.getrandbits(64):016x}"
    engine.notify(peer, REGION, nonce).result(timeout=MOVE_S)
    over = time.monotonic() + ANSWER_S
    with engine.allocate(ANSWER_BYTES) as local:
        while time.monotonic() < over:
            engine.read(local, peer[ANSWER][:ANSWER_BYTES], timeout=MOVE_S).result()
            text = bytes(local.view).partition(b"\0")[0].decode("utf-8", "replace")
            if text.startswith(nonce) and (steps := told(text[len(nonce) :])):
                return steps
            time.sleep(0.05)
    return []


def told(text: str) -> list[Step]:
    """The steps of an answer; none where it is not whole, or no answer. It is the peer's text, perhaps of another
    version."""
    try:
        return [
            Step(f"back {printable(step['name'])}", step["ok"], printable(step["found"]), printable(step["cure"]))
            for step in json.loads(text)
        ]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []


class Answerer:
    """The side of `tent serve`: it checks the way to one asking peer at a time, on a thread of its own."""

    def __init__(self, engine: tent.Engine) -> None:
        self._engine = engine
        self._theirs = engine.allocate(BYTES, name=REGION)
        self._answer = engine.allocate(ANSWER_BYTES, name=ANSWER, permission=tent.Permission.GlobalReadOnly)
        self._busy = threading.Lock()

    def asked(self, note: tent.Notification) -> bool:
        """Whether a notification asks for a check. The check has begun then, unless another one is under way."""
        if note.name != REGION:
            return False
        if self._busy.acquire(blocking=False):
            threading.Thread(
                target=self._check, args=(note.peer, note.message), name="tent-doctor", daemon=True
            ).start()
        return True

    def __enter__(self) -> Answerer:
        return self

    def __exit__(self, *_: object) -> None:
        self._theirs.close()
        self._answer.close()

    def _check(self, address: str, nonce: str) -> None:
        try:
            self._say(nonce, list(self._steps(address)))
        except (tent.TentError, ValueError):  # the engine closes
            pass
        finally:
            self._busy.release()

    def _steps(self, address: str) -> Iterator[Step]:
        try:
            peer = self._engine.open_peer(address, timeout=CONNECT_S)  # a peer's word: it could name a file
        except (tent.TentError, TimeoutError) as error:
            cure = "give the side that asks an rpc_server_hostname that this peer reaches"
            yield Step("control plane", False, f"{address} cannot be opened from there: {error}", cure)
            return
        with peer:
            yield from verify(self._engine, peer)

    def _say(self, nonce: str, steps: Sequence[Step]) -> None:
        """Puts the answer into its region: text first, and the nonce that completes it last."""
        text = json.dumps([asdict(step) for step in steps]).encode()
        view, first = self._answer.view, nonce.encode()[:16]
        view[:] = bytes(len(view))
        view[len(first) : len(first) + len(text)] = text[: len(view) - len(first) - 1]
        view[: len(first)] = first
