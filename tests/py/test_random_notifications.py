"""Random programs over notifications of three engines, of which one is closed and made anew now and then.

Each notification arrives once if its transfer completes, and once at most if it does not. It bears its sender, and the
bytes that it speaks of are there. Those without bytes come in the order in which they were sent. Queues are small, and
full most of the time; the rails break, and transfers are cancelled or run out of time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import tent
from tent.testing import inject

STEPS, ENGINES, LIMIT, CELL = 300, 3, 30, 8
WAYS: dict[str, dict[str, Any]] = {"shm": {}, "tcp": {"transports/shm/enable": False}}
FAULTS = ("heal", "heal", "reset", "lose rate=0.3 count=3", "delay=2ms", "duplicate rate=0.5", "reorder=3")


class End:
    """An engine with memory in which each transfer has a cell, and the numbers that have arrived there."""

    def __init__(self, engine: tent.Engine) -> None:
        self.engine = engine
        self.memory = engine.allocate(STEPS * CELL, name="cells")
        self.ones = engine.allocate(STEPS * CELL)
        for i in range(STEPS):
            self.ones.view[i * CELL : (i + 1) * CELL] = i.to_bytes(CELL, "little")
        self.arrived: set[int] = set()
        self.last: dict[str, int] = {}  # number of the last one without bytes, by sender


@dataclass(eq=False)
class Flight:
    number: int
    sender: End
    receiver: End
    bare: bool  # without bytes
    excused: bool  # it may fail
    transfer: tent.Transfer
    size: int


class Program:
    def __init__(self, make: Callable[[], tent.Engine], seed: int) -> None:
        self.make, self.dice = make, random.Random(seed)
        self.ends = [End(make()) for _ in range(ENGINES)]
        self.flights: list[Flight] = []
        self.sent: dict[int, tuple[End, End, bool, int]] = {}  # sender, receiver, whether without bytes, message size
        self.seen: Counter[str] = Counter()
        self.peers: dict[tuple[End, End], tent.Segment] = {}

    def peer(self, near: End, far: End) -> tent.Segment:
        if (near, far) not in self.peers:
            self.peers[near, far] = near.engine.open(far.engine.address)
        return self.peers[near, far]

    def begin(self) -> None:
        number = len(self.sent)
        if number >= STEPS:
            return
        near, far = self.dice.choice(self.ends), self.dice.choice(self.ends)
        terms: dict[str, Any] = {"priority": self.dice.randrange(3)}
        size, bare = self.dice.choice([0, 0, 100, 60_000]), self.dice.random() < 0.5
        if not bare and self.dice.random() < 0.1:
            terms["timeout"] = self.dice.choice([0.001, 0.02])
        message = f"{number} " + "x" * size
        self.sent[number] = (near, far, bare, len(message))
        try:
            if bare:
                transfer = near.engine.notify(self.peer(near, far), "n", message)
            else:
                cell = slice(number * CELL, (number + 1) * CELL)
                there = self.peer(near, far)["cells"][cell]
                transfer = near.engine.write(near.ones[cell], there, notify=("n", message), **terms)
        except tent.TentError as error:
            assert "timeout" in terms, repr(error)
            self.seen["refused"] += 1
            return
        self.flights.append(Flight(number, near, far, bare, "timeout" in terms, transfer, size))

    def read(self) -> None:
        self.take(self.dice.choice(self.ends), self.dice.choice([1, 1, 3, 100]))

    def take(self, end: End, most: int) -> int:
        """Takes notifications that have come, and looks at each."""
        notes = end.engine.notifications.drain(most)
        for note in notes:
            number = int(note.message.split()[0])
            sender, receiver, bare, size = self.sent[number]
            assert receiver is end and note.peer == sender.engine.address, f"{number} is at another engine, or of one"
            assert number not in end.arrived, f"{number} has arrived twice"
            assert len(note.message) == size
            end.arrived.add(number)
            if bare:
                key = note.peer
                assert end.last.get(key, -1) < number, f"{number} comes behind {end.last[key]}"
                end.last[key] = number
            else:
                at = number * CELL
                assert bytes(end.memory.view[at : at + CELL]) == number.to_bytes(CELL, "little"), "before its bytes"
        self.seen["arrived"] += len(notes)
        return len(notes)

    def finish(self) -> None:
        if self.flights:
            self.end(self.dice.choice(self.flights))

    def end(self, flight: Flight) -> None:
        """Waits for a transfer, and reads meanwhile: it may wait for room in the queue."""
        self.flights.remove(flight)
        while not flight.transfer.done():
            for end in self.ends:
                self.take(end, 100)
        error = flight.transfer.exception(0)
        assert error is None or flight.excused, f"{flight.number}: {error!r}"
        self.seen["completed" if error is None else "failed"] += 1
        if error is None and flight.receiver in self.ends:
            while self.take(flight.receiver, 100):
                pass
            assert flight.number in flight.receiver.arrived, f"{flight.number} is lost"

    def cancel(self) -> None:
        if self.flights:
            flight = self.dice.choice(self.flights)
            flight.excused = True
            flight.transfer.cancel()

    def restart(self) -> None:
        """Closes an engine, and makes another one."""
        old = self.dice.choice(self.ends)
        for flight in self.flights:
            flight.excused |= old in (flight.sender, flight.receiver)
        old.engine.close(timeout=self.dice.choice([0, 0.01]))
        self.ends[self.ends.index(old)] = End(self.make())
        self.seen["restarts"] += 1

    def spoil(self) -> None:
        inject(self.dice.choice(self.ends).engine, self.dice.choice(FAULTS))


@pytest.mark.filterwarnings("ignore:.*dropped without close:ResourceWarning")
@pytest.mark.parametrize("way", WAYS)
def test_each_notification_arrives_once_behind_its_bytes(
    way: str, engines: Callable[..., tent.Engine], keep: Callable[[Any], Any], seed: int
) -> None:
    dice = random.Random(seed)

    def make() -> tent.Engine:
        return engines(notification_queue=dice.choice([1, 3, 16, 300]), notification_bytes=1 << 20, allow_faults=True,
                       **WAYS[way])  # fmt: skip

    program = keep(Program(make, seed))
    steps = {program.begin: 60, program.read: 25, program.finish: 25, program.cancel: 4, program.restart: 1}
    steps |= {program.spoil: 4}
    for step in program.dice.choices(list(steps), list(steps.values()), k=STEPS):
        step()
    for end in program.ends:
        inject(end.engine, "heal")
    while program.flights:
        program.finish()
    assert program.seen["completed"] > 10, program.seen
