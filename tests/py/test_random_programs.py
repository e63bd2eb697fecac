"""Random programs over two engines, beside a model of every byte.

A transfer that completes has moved the bytes of the model. One that fails has a reason: it was cancelled or timed out,
its region was closed or fenced, or nobody may do that. From its end on its destination stays as it is. Rails that break
beside a healthy one are no reason.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import tent
from tent.testing import inject

np = pytest.importorskip("numpy")

STEPS, LIMIT = 250, 30  # of a program; seconds for an end
OPEN, READ_ONLY, LOCAL = (
    tent.Permission.GLOBAL_READ_WRITE,
    tent.Permission.GLOBAL_READ_ONLY,
    tent.Permission.LOCAL_READ_WRITE,
)
WORLDS = {
    "shm": {},
    "tcp": {"transports/shm/enable": False},
    "rails": {
        "transports/shm/enable": False,
        "transports/tcp/addresses": ["127.0.0.1", "127.0.0.2"],
        "allow_faults": True,
    },
}
BREAKS = (
    "reset",
    "down",
    "reject rate=0.3",
    "lose rate=0.3",
    "drop rate=0.2",
    "drop_completion rate=0.2",
    "truncate rate=0.2",
)
NUISANCES = ("delay=2ms", "duplicate rate=0.5", "reorder=3", "short rate=0.2", "slow=20MiB")


class Memory:
    """Bytes of an engine and their model. Those that a transfer under way may write are not known."""

    def __init__(self, owner: int, array: Any) -> None:
        self.owner, self.array, self.model = owner, array, array.copy()
        self.known = np.ones(array.size, bool)
        self.busy: list[tuple[int, int, str]] = []  # begin, end, "source" or "destination"

    def check(self, when: str) -> None:
        """Looks at each byte that is known."""
        wrong = np.flatnonzero((self.array != self.model) & self.known)
        assert not wrong.size, f"{when}: {wrong.size} bytes are wrong, the first at {wrong[0]} of {self.array.size}"

    def free(self, begin: int, end: int, *kinds: str) -> bool:
        """Whether no transfer under way has these bytes as one of the kinds."""
        return not any(kind in kinds and a < end and begin < b for a, b, kind in self.busy)


@dataclass(eq=False)
class Place:
    """A region, and its part of a memory."""

    memory: Memory
    offset: int
    region: tent.Region
    permission: tent.Permission


@dataclass(eq=False)
class Flight:
    """A transfer under way. Its ranges are in the memories: source, destination, length."""

    text: str
    transfer: tent.Transfer
    source: Place
    destination: Place
    ranges: list[tuple[int, int, int]]
    excused: bool  # it may fail
    forbidden: bool  # it must
    sources: list[Any] = field(default_factory=list)  # bytes, and whether they are known


class Program:
    """Two engines, with the regions and transfers of a random program."""

    def __init__(self, engines: list[tent.Engine], seed: int) -> None:
        self.engines, self.dice = engines, random.Random(seed)
        self.peers = [engines[0].open(engines[1].address), engines[1].open(engines[0].address)]
        for peer in self.peers:
            peer.connect(LIMIT)  # one that has not heard of a fence may fail by it
        self.places: list[Place] = []
        self.flights: list[Flight] = []
        self.seen: Counter[str] = Counter()

    def allocate(self) -> None:
        """Makes a region, of own memory or over an array, which may get more regions."""
        if len(self.places) > 24:
            return
        owner, size = self.dice.randrange(2), self.dice.choice([1, 7, 4096, 65536, 100_003, 1 << 20])
        permission = self.dice.choice([OPEN, OPEN, OPEN, READ_ONLY, LOCAL])
        name = f"region {len(self.seen)} {self.seen.total()}"
        self.seen["regions"] += 1
        others = [place.memory for place in self.places if place.memory.owner == owner]
        if others and self.dice.random() < 0.3:  # a second region over a part of the same bytes
            memory = self.dice.choice(others)
            offset = self.dice.randrange(memory.array.size)
            part = memory.array[offset : offset + self.dice.randrange(1, memory.array.size - offset + 1)]
            region = self.engines[owner].register(part, name=name, permission=permission)
        else:
            region, offset = self.engines[owner].allocate(size, name=name, permission=permission), 0
            memory = Memory(owner, np.asarray(region))
            memory.array[:] = memory.model[:] = np.frombuffer(self.dice.randbytes(size), np.uint8)
        self.places.append(Place(memory, offset, region, permission))

    def submit(self) -> None:
        """Moves random ranges between two places, either of the same engine or of both."""
        if not self.places:
            return
        local, remote = self.dice.choice(self.places), self.dice.choice(self.places)
        writes = self.dice.random() < 0.5
        source, destination = (local, remote) if writes else (remote, local)
        ranges = []
        for _ in range(self.dice.choice([1, 1, 1, 2, 5, 33])):
            least = min(local.region.size, remote.region.size)
            length = min(self.dice.choice([1, 2, 100, 4096, 65536, least]), least)
            a = source.offset + self.dice.randrange(source.region.size - length + 1)
            b = destination.offset + self.dice.randrange(destination.region.size - length + 1)
            same = source.memory is destination.memory and a < b + length and b < a + length
            if same or not source.memory.free(a, a + length, "destination"):
                continue
            if destination.memory.free(b, b + length, "source", "destination"):
                source.memory.busy.append((a, a + length, "source"))
                destination.memory.busy.append((b, b + length, "destination"))
                ranges.append((a, b, length))
        if ranges:
            self.start(local, remote, writes, ranges)

    def start(self, local: Place, remote: Place, writes: bool, ranges: list[tuple[int, int, int]]) -> None:
        """Submits a transfer."""
        source, destination = (local, remote) if writes else (remote, local)
        terms: dict[str, Any] = {"priority": self.dice.randrange(3)}
        if self.dice.random() < 0.2:
            terms["integrity"] = "crc32c"
        if self.dice.random() < 0.1:
            terms["timeout"] = self.dice.choice([0.0005, 0.005])
        own = local.memory.owner == remote.memory.owner
        forbidden = not own and (remote.permission == LOCAL or (writes and remote.permission == READ_ONLY))
        offsets = [(a - source.offset, b - destination.offset) for a, b, _ in ranges]
        here, there = zip(*offsets if writes else [(b, a) for a, b in offsets], strict=True)
        engine, lengths = self.engines[local.memory.owner], [length for _, _, length in ranges]
        text = f"{'write' if writes else 'read'} {local.region.name} {remote.region.name} {ranges} {terms}"
        flight = Flight(text, None, source, destination, ranges, "timeout" in terms, forbidden)  # type: ignore[arg-type]
        memory = source.memory
        flight.sources = [(memory.model[a : a + n].copy(), memory.known[a : a + n].copy()) for a, _, n in ranges]
        move = engine.write_ranges if writes else engine.read_ranges
        try:
            there_is = remote.region if own else self.peers[local.memory.owner][remote.region.name]
            flight.transfer = move(local.region, here, there_is, there, lengths, **terms)
        except tent.TentError as error:
            self.release(flight)
            allowed = forbidden or (own and remote.permission == READ_ONLY and writes)
            if flight.excused and isinstance(error, tent.PeerTimeoutError):  # it was asked for new regions
                return
            assert allowed or (local.permission == READ_ONLY and not writes), f"{text}: {error!r}"
            self.seen["refused"] += 1
            return
        for _, b, n in ranges:
            destination.memory.known[b : b + n] = False
        self.flights.append(flight)

    def release(self, flight: Flight) -> None:
        """Gives the ranges of a transfer back."""
        for a, b, n in flight.ranges:
            flight.source.memory.busy.remove((a, a + n, "source"))
            flight.destination.memory.busy.remove((b, b + n, "destination"))

    def finish(self) -> None:
        """Waits for a transfer, and looks at its bytes."""
        if not self.flights:
            return
        flight = self.flights.pop(self.dice.randrange(len(self.flights)))
        memory = flight.destination.memory
        error = flight.transfer.exception(LIMIT)
        assert not (flight.forbidden and error is None), f"{flight.text}: completed"
        assert flight.forbidden or flight.excused or error is None, f"{flight.text}: {error!r}"
        for (_, b, n), (given, known) in zip(flight.ranges, flight.sources, strict=True):
            now = memory.array[b : b + n]
            if flight.forbidden:  # nothing was written, so the model holds
                memory.known[b : b + n] = True
            elif error is None:
                memory.model[b : b + n], memory.known[b : b + n] = np.where(known, given, now), known
            else:
                memory.model[b : b + n], memory.known[b : b + n] = now, True
        self.release(flight)
        self.seen["completed" if error is None else "failed"] += 1
        memory.check(f"after {flight.text}")
        flight.source.memory.check(f"the source of {flight.text}")

    def cancel(self) -> None:
        """Cancels a transfer."""
        if self.flights:
            flight = self.dice.choice(self.flights)
            flight.excused = True
            flight.transfer.cancel()

    def end(self) -> None:
        """Closes or fences a region. Transfers under way to its memory may fail."""
        if not self.places:
            return
        place = self.dice.choice(self.places)
        for flight in self.flights:
            flight.excused |= place.memory in (flight.source.memory, flight.destination.memory)
        if self.dice.random() < 0.3:
            place.region.fence(timeout=LIMIT)
        else:
            place.region.close(LIMIT)
            self.places.remove(place)

    def scribble(self) -> None:
        """The program writes where no transfer is."""
        for place in self.dice.sample(self.places, min(1, len(self.places))):
            memory = place.memory
            begin = self.dice.randrange(memory.array.size)
            end = min(begin + self.dice.randrange(1, 70_000), memory.array.size)
            if memory.free(begin, end, "source", "destination"):
                memory.array[begin:end] = memory.model[begin:end] = self.dice.randrange(256)
                memory.known[begin:end] = True

    def spoil(self) -> None:
        """Breaks the first rail, is a nuisance to either, or heals."""
        engine = self.dice.choice(self.engines)
        text = self.dice.choice(["heal", f"rail=0 {self.dice.choice(BREAKS)}",
                                 f"rail={self.dice.randrange(2)} {self.dice.choice(NUISANCES)}"])  # fmt: skip
        inject(engine, text)


@pytest.mark.parametrize("world", WORLDS)
def test_every_byte_is_where_the_model_has_it(
    world: str, engines: Callable[..., tent.Engine], keep: Callable[[Any], Any], seed: int
) -> None:
    settings = WORLDS[world]
    program = keep(Program([engines(**settings), engines(**settings)], seed))
    steps = {program.allocate: 12, program.submit: 60, program.finish: 45, program.cancel: 4, program.end: 6}
    steps |= {program.scribble: 6} | ({program.spoil: 4} if "allow_faults" in settings else {})
    for step in program.dice.choices(list(steps), list(steps.values()), k=STEPS):
        step()
    while program.flights:
        program.finish()
    for place in program.places:
        place.memory.check("at the end")
    assert program.seen["completed"] > 10, program.seen
