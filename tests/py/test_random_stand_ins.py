"""Random programs over the stand-ins for Mooncake and NIXL, beside a model of every byte.

Three engines register parts of their memory, in other pieces each time, and move bytes between them and within their
own. A transfer completes if all of its ranges are registered, and fails otherwise and writes nothing. It may fail where
memory of it is taken back, or its peer is started again.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tent.compat import nixl
from tent.compat.mooncake import TransferEngine, TransferOpcode
from tent.testing.ports import keep_port, port_of

np = pytest.importorskip("numpy")
pytestmark = pytest.mark.adapters

STEPS, SIZE, GUARD, PIECE = 250, 1 << 20, 8192, 4096
LENGTHS = (PIECE, 65536, 100_003, 300_000)
OFF = {"shm": "tcp", "tcp": "shm"}
REFUSED = (nixl.nixlNotFoundError, nixl.nixlInvalidParamError, nixl.nixlRemoteDisconnectError)

Move = tuple[int, int, int]  # offset here, offset there, length


class Face:
    """An engine behind a stand-in, with memory between guard bands, and a model of that. Bytes that a transfer under
    way may write are not known."""

    def __init__(self, config: dict[str, Any], dice: random.Random) -> None:
        self.options = {"config": config}
        self.whole = np.full(SIZE + 2 * GUARD, 0xA5, np.uint8)
        self.memory = self.whole[GUARD : GUARD + SIZE]
        self.memory[:] = np.frombuffer(dice.randbytes(SIZE), np.uint8)
        self.model, self.known = self.memory.copy(), np.ones(SIZE, bool)
        self.base = int(self.memory.ctypes.data)
        self.busy: list[tuple[int, int, str]] = []  # begin, end, "source" or "destination"
        self.registered: dict[int, tuple[int, Any]] = {}  # length and handle of each piece, by its offset
        self.open()

    def open(self) -> None: ...
    def close(self) -> None: ...
    def register(self, pieces: list[tuple[int, int]]) -> Any: ...
    def deregister(self, handle: Any, pieces: list[tuple[int, int]]) -> None: ...
    def meet(self, other: Any) -> None: ...
    def begin(self, peer: Any, op: str, moves: list[Move]) -> Any:
        """Returns None if it could not begin."""

    def ended(self, handle: Any) -> bool:
        """Waits for the end, and returns whether it has completed."""
        raise NotImplementedError

    def take(self, begin: int, end: int, kind: str) -> bool:
        if any(a < end and begin < b and "destination" in (kind, other) for a, b, other in self.busy):
            return False
        self.busy.append((begin, end, kind))
        return True

    def touched(self, begin: int, end: int) -> bool:
        """Whether a registered piece has one of these bytes."""
        return any(at < end and begin < at + n for at, (n, _) in self.registered.items())

    def check(self, when: str) -> None:
        wrong = np.flatnonzero((self.memory != self.model) & self.known)
        assert not wrong.size, f"{when}: {wrong.size} bytes are wrong, from {wrong[0]} on"
        assert (self.whole[:GUARD] == 0xA5).all() and (self.whole[GUARD + SIZE :] == 0xA5).all(), when


class Mooncake(Face):
    """Mooncake's engine is opened by its address, and another one may follow there."""

    def __init__(self, *arguments: Any) -> None:
        self.kept = keep_port()
        super().__init__(*arguments)

    def open(self) -> None:
        self.address = f"127.0.0.1:{port_of(self.kept)}"
        self.engine = TransferEngine(options=self.options)
        assert self.engine.initialize(self.address, "P2PHANDSHAKE", "tcp", "") == 0

    def close(self) -> None:
        self.engine.close()

    def register(self, pieces: list[tuple[int, int]]) -> None:
        starts, sizes = zip(*pieces)
        assert self.engine.batch_register_memory([self.base + a for a in starts], list(sizes)) == 0

    def deregister(self, _: None, pieces: list[tuple[int, int]]) -> None:
        assert self.engine.batch_unregister_memory([self.base + a for a, _ in pieces]) == 0

    def begin(self, peer: Any, op: str, moves: list[Move]) -> Any:
        here, there, lengths = zip(*moves)
        code = TransferOpcode.WRITE if op == "WRITE" else TransferOpcode.READ
        lists = [self.base + a for a in here], [peer.base + b for b in there], list(lengths)
        return self.engine.batch_transfer_async(peer.address, *lists, code) or None

    def ended(self, handle: Any) -> bool:
        return self.engine.get_batch_transfer_status([handle]) == 0


class Nixl(Face):
    """NIXL's agents know each other by metadata, and anew when one was started again."""

    names = iter(range(1 << 30))

    def open(self) -> None:
        self.name = f"agent {next(Nixl.names)}"
        self.agent = nixl.nixl_agent(self.name, nixl.nixl_agent_config(), options=self.options)

    def close(self) -> None:
        self.agent.close()

    def register(self, pieces: list[tuple[int, int]]) -> Any:
        return self.agent.register_memory([(self.base + a, n, 0, "") for a, n in pieces], "DRAM")

    def deregister(self, handle: Any, _: list[tuple[int, int]]) -> None:
        self.agent.deregister_memory(handle)

    def meet(self, other: Any) -> None:
        self.agent.add_remote_agent(other.agent.get_agent_metadata())

    def begin(self, peer: Any, op: str, moves: list[Move]) -> Any:
        try:
            own, theirs = (
                self.agent.get_xfer_descs([(face.base + move[i], move[2], 0) for move in moves], "DRAM")
                for i, face in enumerate((self, peer))
            )
            handle = self.agent.initialize_xfer(op, own, theirs, peer.name)
            self.agent.transfer(handle)
        except REFUSED:
            return None
        return handle

    def ended(self, handle: Any) -> bool:
        for transfer in handle._sent:
            transfer.exception(30)
        state = self.agent.check_xfer_state(handle)
        self.agent.release_xfer_handle(handle)
        return state == "DONE"


class Program:
    """Three faces and transfers between them: of a mover, a peer, an operation and moves."""

    def __init__(self, faces: list[Any], seed: int) -> None:
        self.faces, self.dice = faces, random.Random(seed)
        self.flights: list[dict[str, Any]] = []
        self.seen: Counter[str] = Counter()

    def register(self) -> None:
        face = self.dice.choice(self.faces)
        pieces: list[tuple[int, int]] = []
        for _ in range(self.dice.choice([1, 1, 3])):
            begin = self.dice.randrange(0, SIZE, PIECE)
            end = min(SIZE, begin + self.dice.choice(LENGTHS))
            if not face.touched(begin, end) and not any(a < end and begin < a + n for a, n in pieces):
                pieces.append((begin, end - begin))
        if pieces:
            handle = face.register(pieces)
            face.registered |= {a: (n, (handle, pieces)) for a, n in pieces}
            for other in self.faces:  # NIXL's metadata lists the registered memory
                if other is not face:
                    other.meet(face)

    def excuse(self, face: Any) -> None:
        for flight in self.flights:
            flight["excused"] |= face in (flight["near"], flight["far"])

    def deregister(self) -> None:
        face = self.dice.choice(self.faces)
        if face.registered:
            self.excuse(face)
            _, (handle, pieces) = self.dice.choice(list(face.registered.values()))
            face.deregister(handle, pieces)
            for at, _ in pieces:
                del face.registered[at]

    def restart(self) -> None:
        """An engine closes, and another one comes in its place, without registered memory."""
        face = self.dice.choice(self.faces)
        self.excuse(face)
        for flight in [flight for flight in self.flights if flight["near"] is face]:
            self.end(flight)
        face.close()
        face.registered.clear()
        face.open()
        for other in self.faces:
            if other is not face:
                face.meet(other)
                other.meet(face)

    def spot(self, face: Any, most: int, wrong: bool) -> tuple[int, int]:
        """Offset and length of bytes in a registered piece, or in none at all. A length of 0 is none."""
        if wrong or not face.registered:
            begin, n = self.dice.randrange(SIZE - PIECE), min(most, PIECE)
            return begin, 0 if not wrong or face.touched(begin, begin + n) else n
        at, (size, _) = self.dice.choice(list(face.registered.items()))
        n = min(most, size)
        return at + self.dice.randrange(size - n + 1), n

    def begin(self) -> None:
        near, far, op = self.dice.choice(self.faces), self.dice.choice(self.faces), self.dice.choice(["READ", "WRITE"])
        wrong = self.dice.random() < 0.1
        source, destination = (near, far) if op == "WRITE" else (far, near)
        flight: dict[str, Any] = {"near": near, "far": far, "op": op, "wrong": wrong, "excused": False,
                                  "moves": [], "sent": []}  # fmt: skip
        for _ in range(self.dice.choice([1, 1, 5, 40])):
            a, n = self.spot(near, self.dice.choice([1, 64, PIECE, 65536]), False)
            b, n = self.spot(far, n, wrong) if n else (0, 0)
            x, y = (a, b) if op == "WRITE" else (b, a)
            if not n or (near is far and a < b + n and b < a + n) or not source.take(x, x + n, "source"):
                continue
            if not destination.take(y, y + n, "destination"):
                source.busy.pop()
                continue
            flight["moves"].append((a, b, n))
            flight["sent"].append((source.model[x : x + n].copy(), source.known[x : x + n].copy()))
            destination.known[y : y + n] = False
        if flight["moves"]:
            flight["handle"] = near.begin(far, op, flight["moves"])
            self.flights.append(flight)
            if flight["handle"] is None:
                self.end(flight)

    def finish(self) -> None:
        if self.flights:
            self.end(self.dice.choice(self.flights))

    def end(self, flight: dict[str, Any]) -> None:
        self.flights.remove(flight)
        near, far, wrong = flight["near"], flight["far"], flight["wrong"]
        done = flight["handle"] is not None and near.ended(flight["handle"])
        assert not (wrong and done), f"{flight['op']} of {flight['moves']} has moved what is not registered"
        assert done or wrong or flight["excused"], f"{flight['op']} of {flight['moves']} has failed"
        source, destination = (near, far) if flight["op"] == "WRITE" else (far, near)
        for (a, b, n), (sent, known) in zip(flight["moves"], flight["sent"]):
            x, y = (a, b) if flight["op"] == "WRITE" else (b, a)
            now = destination.memory[y : y + n]
            if not wrong:  # of those nothing may have moved
                destination.model[y : y + n] = np.where(known, sent, now) if done else now
            destination.known[y : y + n] = True
            source.busy.remove((x, x + n, "source"))
            destination.busy.remove((y, y + n, "destination"))
        self.seen["completed" if done else "failed"] += 1
        destination.check(f"behind {flight['op']} of {flight['moves']}")
        source.check(f"at the source of {flight['moves']}")

    def scribble(self) -> None:
        face, begin = self.dice.choice(self.faces), self.dice.randrange(SIZE)
        end = min(SIZE, begin + self.dice.randrange(1, 70_000))
        if face.take(begin, end, "destination"):
            face.busy.pop()
            face.memory[begin:end] = face.model[begin:end] = self.dice.randrange(256)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Failures are a part of the programs: the stand-ins log each."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("transport", OFF)
@pytest.mark.parametrize("kind", [Mooncake, Nixl])
def test_every_byte_of_a_stand_in_is_where_the_model_has_it(
    kind: Callable[..., Any], transport: str, seed: int, quiet: None
) -> None:
    dice = random.Random(seed)
    config = {f"transports/{OFF[transport]}/enable": False}
    faces = [kind(config, dice) for _ in range(3)]
    try:
        program = Program(faces, seed)
        for a in faces:
            for b in faces:
                if a is not b:
                    a.meet(b)
        steps = {program.register: 20, program.deregister: 8, program.begin: 60, program.finish: 40}
        steps |= {program.restart: 1, program.scribble: 6}
        for step in program.dice.choices(list(steps), list(steps.values()), k=STEPS):
            step()
        while program.flights:
            program.finish()
        assert program.seen["completed"] > 10, program.seen
    finally:
        for face in faces:
            face.close()
            if kind is Mooncake:
                face.kept.close()
    for face in faces:
        face.check("behind the end")
