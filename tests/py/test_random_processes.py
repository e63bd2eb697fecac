"""Random programs over three processes, of which one is killed, stopped or started again now and then.

The test looks at all memory through the kernel, beside a model of every byte. A transfer that completes has moved the
bytes of the model; one that has failed writes nothing from its end on. Behind a fence, or a close, nothing of before
lands, also nothing of a process that was killed. A process that was started again at the address of another one has
other memory: descriptors of before lead nowhere.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import random_side as side
from random_model import Flight, Ranges

from tent.testing import PeerProcess

np = pytest.importorskip("numpy")

STEPS, PROCESSES, RESTARTS = 110, 3, 3
SIZES = {"small": 4096, "odd": 100_003, "large": 1 << 20}
GONE = ("PEER_UNREACHABLE", "PEER_RESTARTED")
WAYS: dict[str, dict[str, Any]] = {
    "tcp": {"transports/shm/trust": "none"},
    "shm": {"transports/tcp/enable": False},
    "both": {},
}


class Place(Ranges):
    """A region of a process, and the model of its bytes. Those that a transfer may write are not known."""

    def __init__(self, peer: PeerProcess, name: str, address: int, bytes_: bytes) -> None:
        super().__init__()
        self.peer, self.name, self.address = peer, name, address
        self.memory = os.open(f"/proc/{peer.pid}/mem", os.O_RDWR)
        self.model = np.frombuffer(bytes_, np.uint8).copy()
        self.known = np.ones(self.model.size, bool)
        self.write(0, bytes_)

    def read(self, begin: int, end: int) -> Any:
        return np.frombuffer(os.pread(self.memory, end - begin, self.address + begin), np.uint8)

    def write(self, begin: int, bytes_: bytes) -> None:
        assert os.pwrite(self.memory, bytes_, self.address + begin) == len(bytes_)

    def learn(self, begin: int, end: int) -> None:
        """Takes the bytes as they are: nobody writes there any more."""
        self.model[begin:end], self.known[begin:end] = self.read(begin, end), True

    def check(self, when: str) -> None:
        wrong = np.flatnonzero((self.read(0, self.model.size) != self.model) & self.known)
        assert not wrong.size, f"{when}: {wrong.size} bytes of {self.name} are wrong, from {wrong[0]} on"


class Program:
    """Three processes, their regions, and transfers between them."""

    def __init__(self, peers: list[PeerProcess], seed: int) -> None:
        self.peers, self.dice = peers, random.Random(seed)
        self.places: list[Place] = []
        self.flights: list[Flight] = []
        self.lost: list[Flight] = []  # their bytes may land until the region of their destination is fenced
        self.asked: dict[tuple[int, int, str], Place] = {}  # known regions by (pid of the peer, pid of the owner, name)
        self.stopped: PeerProcess | None = None
        self.seen: Counter[str] = Counter()
        for peer in peers:
            self.offer(peer)
        self.meet(peers)

    def meet(self, peers: list[PeerProcess]) -> None:
        """Lets peers and all others open each other."""
        for a in self.peers:
            for b in self.peers:
                if a is not b and (a in peers or b in peers):
                    a.run(side.meet, address=b.address)

    def running(self) -> list[PeerProcess]:
        return [peer for peer in self.peers if peer is not self.stopped]

    def offer(self, peer: PeerProcess) -> None:
        """Makes all regions of a process that are not there."""
        there = {place.name for place in self.places if place.peer is peer}
        for name, size in SIZES.items():
            if name not in there:
                address = peer.run(side.offer, name=name, size=size, own=self.dice.random() < 0.5)
                self.places.append(Place(peer, name, address, self.dice.randbytes(size)))

    def begin(self) -> None:
        """Begins a transfer between two processes that run."""
        near, far = self.dice.choice(self.places), self.dice.choice(self.places)
        if near.peer is far.peer or self.stopped in (near.peer, far.peer):
            return
        op = self.dice.choice(["read", "write"])
        flight = Flight(self.seen.total(), op, near, far, [], [], False)
        source, destination = flight.ends
        most = min(near.model.size, far.model.size)
        for _ in range(self.dice.choice([1, 1, 3, 20])):
            n = min(self.dice.choice([1, 4096, 65536, most]), most)
            a, b = self.dice.randrange(near.model.size - n + 1), self.dice.randrange(far.model.size - n + 1)
            x, y = (a, b) if op == "write" else (b, a)
            if source.take(x, x + n, "source"):
                if destination.take(y, y + n, "destination"):
                    flight.moves.append((a, b, n))
                    flight.sent.append((source.model[x : x + n].copy(), source.known[x : x + n].copy()))
                    destination.known[y : y + n] = False
                else:
                    source.busy.pop()
        if not flight.moves:
            return
        terms: dict[str, Any] = {"priority": self.dice.randrange(3)}
        if self.dice.random() < 0.15:
            terms["timeout"], flight.excused = self.dice.choice([0.001, 0.02]), True
        key = (near.peer.pid, far.peer.pid, far.name)
        anew = self.asked.get(key) is not far
        self.asked[key] = far
        code = near.peer.run(
            side.begin, number=flight.number, op=op, names=(near.name, far.name), address=far.peer.address,
            moves=flight.moves, terms=terms, anew=anew,
        )  # fmt: skip
        self.seen["begun"] += 1
        if code:  # nothing has moved
            assert flight.excused, f"{op} {terms} is refused: {code}"
            destination.known[:] = True
            self.release(flight)
        else:
            self.flights.append(flight)

    def release(self, flight: Flight) -> None:
        for place, kind in zip(flight.ends, ("source", "destination")):
            for begin, end in flight.ranges(place):
                place.busy.remove((begin, end, kind))

    def finish(self) -> None:
        """Waits for a transfer, and looks at its bytes."""
        ready = [flight for flight in self.flights if self.stopped not in (flight.near.peer, flight.far.peer)]
        if ready:
            self.end(self.dice.choice(ready))

    def end(self, flight: Flight) -> None:
        self.flights.remove(flight)
        code, dirty = flight.near.peer.run(side.outcome, number=flight.number)
        source, destination = flight.ends
        assert not code or flight.excused, f"{flight.op} of {flight.moves} has failed: {code}"
        assert not (dirty and flight.op == "read"), "a READ writes here, where everybody can be asked"
        self.seen[code or "COMPLETED"] += 1
        if dirty and destination in self.places:
            self.lost.append(flight)
            return
        if destination in self.places:  # its process lives, and it is not closed
            for (begin, end), (sent, known) in zip(flight.ranges(destination), flight.sent):
                destination.learn(begin, end)
                if not code:
                    destination.model[begin:end][known] = sent[known]
            destination.check(f"behind a {flight.op}")
        self.release(flight)
        if source in self.places:
            source.check(f"at the source of a {flight.op}")

    def cancel(self) -> None:
        flights = [flight for flight in self.flights if flight.near.peer is not self.stopped]
        if flights:
            flight = self.dice.choice(flights)
            flight.excused = True
            flight.near.peer.run(side.cancel, number=flight.number)

    def fence(self) -> None:
        """Fences a region, or closes it and offers another one of its name. Nothing of before lands from then on."""
        place = self.dice.choice([place for place in self.places if place.peer is not self.stopped])
        for flight in self.flights:
            flight.excused |= place in flight.ends
        closes = self.dice.random() < 0.5
        own = [flight for flight in self.flights if flight.near is place]
        if closes and not own:  # transfers of the owner would go on
            place.peer.run(side.close, name=place.name)
            for flight in [flight for flight in self.lost if flight.ends[1] is place]:
                self.lost.remove(flight)
            self.places.remove(place)
            self.offer(place.peer)
            self.seen["close"] += 1
            return
        place.peer.run(side.fence, name=place.name)
        self.seen["fence"] += 1
        for flight in self.flights + self.lost:
            if flight.ends[1] is place is flight.far:
                for begin, end in flight.ranges(place):
                    place.learn(begin, end)
        for flight in [flight for flight in self.lost if flight.ends[1] is place]:
            self.lost.remove(flight)
            self.release(flight)

    def restart(self) -> None:
        """Kills a process and starts another one at its address."""
        self.seen["restarts"] += 1
        if self.seen["restarts"] > RESTARTS:
            return
        peer = self.dice.choice(self.peers)
        if peer is self.stopped:
            self.stopped = None
        elif self.stopped:  # it opens the new one
            self.pause()
        for flight in self.flights:
            flight.excused |= flight.far.peer is peer
        mine = [flight for flight in self.flights if flight.near.peer is peer]
        self.flights = [flight for flight in self.flights if flight not in mine]
        self.lost = [flight for flight in self.lost + mine if flight.ends[1].peer is not peer]
        for flight in mine:
            if flight not in self.lost:
                self.release(flight)
        known = {key: place for key, place in self.asked.items() if key[1] == peer.pid}
        self.places = [place for place in self.places if place.peer is not peer]
        peer.restart()
        self.offer(peer)
        for (pid, _, name), old in known.items():
            self.use(pid, peer, name, old)
        self.meet([peer])

    def use(self, pid: int, peer: PeerProcess, name: str, old: Place) -> None:
        """A process that knows a region of the one before writes to it. There is another one of that name."""
        for by in self.running():
            near = next((place for place in self.places if place.peer is by and place.name == "small"), None)
            if by.pid != pid or near is None or not near.take(0, 64, "source"):
                continue
            number = self.seen.total()
            self.seen["old regions"] += 1
            code = by.run(
                side.begin, number=number, op="write", names=("small", name), address=peer.address,
                moves=[(0, 0, 64)], terms={}, anew=False,
            ) or by.run(side.outcome, number=number)[0]  # fmt: skip
            near.busy.remove((0, 64, "source"))
            assert code in GONE, f"a region of the process before is {code or 'written'}"
        for place in self.places:
            if place.peer is peer:
                place.check("in the process that came behind")

    def pause(self) -> None:
        """Stops a process, or lets it go on."""
        if self.stopped:
            self.stopped.resume()
            self.stopped = None
            return
        self.stopped = self.dice.choice(self.peers)
        self.stopped.stop()
        for flight in self.flights:
            flight.excused |= self.stopped in (flight.near.peer, flight.far.peer)

    def scribble(self) -> None:
        """A process writes where no transfer is."""
        place = self.dice.choice(self.places)
        begin = self.dice.randrange(place.model.size)
        end = min(place.model.size, begin + self.dice.randrange(1, 70_000))
        if place.take(begin, end, "destination"):
            place.busy.pop()
            place.write(begin, self.dice.randbytes(end - begin))
            place.learn(begin, end)


@pytest.mark.parametrize("way", WAYS)
def test_every_byte_of_three_processes_is_where_the_model_has_it(
    way: str, peers: Callable[..., PeerProcess], keep: Callable[[Any], Any], seed: int
) -> None:
    settings: dict[str, Any] = {
        "transports/shm/trust": "same-uid",
        "allow_faults": True,
        "faults": "slow=200MiB",
        **WAYS[way],
    }
    program = keep(Program([peers(size=1, settings=settings) for _ in range(PROCESSES)], seed))
    steps = {program.begin: 60, program.finish: 35, program.cancel: 3, program.fence: 6, program.restart: 2}
    steps |= {program.pause: 4, program.scribble: 6}
    for step in program.dice.choices(list(steps), list(steps.values()), k=STEPS):
        step()
    if program.stopped:
        program.pause()
    while program.flights:
        program.end(program.flights[0])
    for place in program.places:
        place.check("at the end")
    assert program.seen["COMPLETED"] > 5, program.seen
