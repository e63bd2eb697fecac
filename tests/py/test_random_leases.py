"""Random programs over leases, beside a model of every byte.

An owner shares parts of a region, as one range or as pages, for a time or until it takes them back. A peer moves bytes
by their tokens. Nothing is written outside of a lease, nor by one that only reads, nor from its end on: not by a
transfer that began before, and not by a lease that has ended by its time.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from random_model import Ranges

import tent

np = pytest.importorskip("numpy")

STEPS, SIZE, PAGE, LIMIT = 200, 1 << 20, 4096, 30
READ_ONLY = tent.Permission.GLOBAL_READ_ONLY
WAYS: dict[str, dict[str, Any]] = {
    "shm": {},
    "tcp": {"transports/shm/enable": False, "allow_faults": True, "faults": "slow=200MiB"},
}


class Bytes(Ranges):
    """A region and its model. Bytes that a transfer under way may write are not known."""

    def __init__(self, region: tent.Region, dice: random.Random) -> None:
        super().__init__()
        self.region, self.array = region, np.asarray(region)
        self.array[:] = np.frombuffer(dice.randbytes(SIZE), np.uint8)
        self.model, self.known = self.array.copy(), np.ones(SIZE, bool)

    def learn(self, begin: int, end: int) -> None:
        """Takes the bytes as they are: nobody writes there any more."""
        self.model[begin:end], self.known[begin:end] = self.array[begin:end], True

    def check(self, when: str) -> None:
        wrong = np.flatnonzero((self.array != self.model) & self.known)
        assert not wrong.size, f"{when}: {wrong.size} bytes are wrong, from {wrong[0]} on"


@dataclass(eq=False)
class Lease:
    lease: Any
    parts: list[tuple[int, int]]  # begin and length in the region
    expires: bool
    read_only: bool
    remote: Any = None  # the peer's operand for it
    ended: bool = False


@dataclass(eq=False)
class Flight:
    """A transfer under way, of (offset at the peer, offset in the lease, offset in the region, length)."""

    lease: Lease
    writes: bool
    moves: list[tuple[int, int, int, int]]
    sent: list[Any]  # the source's bytes of each, and whether they were known
    transfer: Any = None
    late: bool = False  # its lease had ended when it began
    cut: bool = False  # its lease has ended


class Program:
    """The owner's memory, the peer's, leases, and transfers."""

    def __init__(self, owner: tent.Engine, mover: tent.Engine, seed: int) -> None:
        self.dice, self.mover = random.Random(seed), mover
        self.shared, self.own = Bytes(owner.allocate(SIZE), self.dice), Bytes(mover.allocate(SIZE), self.dice)
        self.peer = mover.open(owner.address)
        self.peer.connect(LIMIT)
        self.leases: list[Lease] = []
        self.flights: list[Flight] = []
        self.seen: Counter[str] = Counter()

    def share(self) -> None:
        terms: dict[str, Any] = {}
        if self.dice.random() < 0.5:
            begin = self.dice.randrange(SIZE - 1)
            n = self.dice.randrange(1, min(300_000, SIZE - begin) + 1)
            parts, what = [(begin, n)], slice(begin, begin + n)
        else:
            pages = self.dice.sample(range(SIZE // PAGE), self.dice.choice([1, 3, 40]))
            parts, what = [(page * PAGE, PAGE) for page in pages], self.shared.region.pages(pages, PAGE)
        if expires := self.dice.random() < 0.4:
            terms["expires"] = self.dice.choice([0.003, 0.02, 0.1])
        if read_only := self.dice.random() < 0.2:
            terms["permission"] = READ_ONLY
        self.leases.append(Lease(self.shared.region.share(what, **terms), parts, expires, read_only))

    def begin(self) -> None:
        if not self.leases:
            return
        lease = self.dice.choice(self.leases)
        try:
            lease.remote = lease.remote or self.peer.lease(lease.lease.token)
        except tent.TentError:
            assert lease.expires or lease.ended
            return
        flight = Flight(lease, self.dice.random() < 0.6, [], [])
        source, destination = (self.own, self.shared) if flight.writes else (self.shared, self.own)
        for _ in range(self.dice.choice([1, 3, 20])):
            part = self.dice.randrange(len(lease.parts))
            at, size = lease.parts[part]
            n = min(size, self.dice.choice([1, 100, PAGE, 70_000]))
            skip, here = self.dice.randrange(size - n + 1), self.dice.randrange(SIZE - n)
            x, y = (here, at + skip) if flight.writes else (at + skip, here)
            if source.take(x, x + n, "source"):
                if destination.take(y, y + n, "destination"):
                    before = sum(length for _, length in lease.parts[:part])
                    flight.moves.append((here, before + skip, at + skip, n))
                    flight.sent.append((source.model[x : x + n].copy(), source.known[x : x + n].copy()))
                    if not lease.ended and not (flight.writes and lease.read_only):  # else nothing may come
                        destination.known[y : y + n] = False
                else:
                    source.busy.pop()
        if not flight.moves:
            return
        here, there, _, lengths = zip(*flight.moves)
        flight.cut = flight.late = lease.ended
        try:
            move = self.mover.write_ranges if flight.writes else self.mover.read_ranges
            flight.transfer = move(self.own.region, here, lease.remote, there, lengths)
            self.flights.append(flight)
        except tent.TentError as error:
            self.settle(flight, error)

    def finish(self) -> None:
        if self.flights:
            flight = self.flights.pop(self.dice.randrange(len(self.flights)))
            self.settle(flight, flight.transfer.exception(LIMIT))

    def settle(self, flight: Flight, error: Exception | None) -> None:
        lease = flight.lease
        forbidden = flight.writes and lease.read_only
        assert error or not forbidden, "a lease that only reads has written"
        assert error or not flight.late, "a lease that has ended has moved bytes"
        assert not error or forbidden or lease.expires or lease.ended, repr(error)
        source, destination = (self.own, self.shared) if flight.writes else (self.shared, self.own)
        for (here, _, there, n), (sent, known) in zip(flight.moves, flight.sent):
            x, y = (here, there) if flight.writes else (there, here)
            source.busy.remove((x, x + n, "source"))
            destination.busy.remove((y, y + n, "destination"))
            if not forbidden and not (flight.writes and flight.cut):  # the model has those bytes already
                destination.learn(y, y + n)
                if error is None:
                    destination.model[y : y + n][known] = sent[known]
        self.seen["completed" if error is None else "failed"] += 1
        self.own.check("at the peer")
        self.shared.check("in the shared region")

    def cut_off(self, leases: list[Lease]) -> None:
        """Nothing lands by these leases from now on."""
        for flight in self.flights:
            if flight.lease in leases and not flight.cut:
                flight.cut = True
                for _, _, there, n in flight.moves if flight.writes else ():
                    self.shared.learn(there, there + n)

    def close(self) -> None:
        """The owner takes a lease back. Its peer may go on to use it, in vain."""
        if self.leases:
            lease = self.dice.choice(self.leases)
            lease.lease.close(LIMIT)
            lease.ended = True
            self.cut_off([lease])
            self.seen["closed"] += 1

    def look(self) -> None:
        """Finds the leases that have ended by their time, and drops some that have ended."""
        for lease in self.leases:
            if not lease.ended and lease.lease.closed:
                lease.ended = True
                self.cut_off([lease])
                self.seen["expired"] += 1
        if len(self.leases) > 8:
            self.leases = [lease for lease in self.leases if not lease.ended or self.dice.random() < 0.3]

    def renew(self) -> None:
        for lease in self.dice.sample(self.leases, min(1, len(self.leases))):
            if lease.expires and not lease.ended:
                try:
                    lease.lease.renew(self.dice.choice([0.001, 0.05]))
                except tent.InvalidEntryError:  # its time was up a moment ago
                    over = time.monotonic() + LIMIT
                    while not lease.lease.closed:
                        assert time.monotonic() < over


@pytest.mark.parametrize("way", WAYS)
def test_every_byte_beside_a_lease_is_where_the_model_has_it(
    way: str, engines: Callable[..., tent.Engine], keep: Callable[[Any], Any], seed: int
) -> None:
    program = keep(Program(engines(**WAYS[way]), engines(**WAYS[way]), seed))
    steps = {program.share: 15, program.begin: 60, program.finish: 40, program.close: 5, program.look: 15}
    steps |= {program.renew: 4}
    for step in program.dice.choices(list(steps), list(steps.values()), k=STEPS):
        step()
    while program.flights:
        program.finish()
    for lease in program.leases:
        lease.lease.close()
    program.mover.close()
    program.shared.check("behind the end")
    assert program.seen["completed"] > 10, program.seen
