"""Random programs over memory of devices, of an emulated driver, and of the host.

The processes are killed or stopped. The memory is of two devices in each and of the host, pinned or not. That of GPUs
is of cudaMalloc and in chunks, on one host or on two. Regions are closed and registered again at their address, with
the same pages or others. Calls of the driver fail by chance, a device is lost, transfers wait for streams and streams
for transfers. The test looks at all bytes beside a model, also at those beside each region. A transfer that fails has a
reason, and writes nothing from its end on.
"""

from __future__ import annotations

import base64
import contextlib
import os
import random
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apart
import pytest
import random_devices_side as side
from gpu import REAL, driver, management
from npu import Libraries, built
from random_model import Flight, Ranges
from test_two_hosts import HOSTS, in_domain

from tent.testing import PeerProcess

__all__ = ["built", "driver", "in_domain", "management"]  # the fixtures `libraries`, `library`, `domain` and `nvml`

np = pytest.importorskip("numpy")

STEPS = int(os.environ.get("TENT_TEST_STEPS", "90"))
PROCESSES, RESTARTS, LOSSES = 2, 1, 1
SIZES = {"small": 4096, "odd": 100_003, "even": 1 << 18, "last": 12_288}
KINDS = ("legacy:0", "legacy:1", "chunks:0", "chunks:1", "host", "host", "pinned")
FAULTS = {
    "cuMemAlloc_v2": 2, "cuMemHostAlloc": 2, "cuMemHostRegister_v2": 2, "cuStreamCreate": 2, "cuEventCreate": 2,
    "cuEventRecord": 400, "cuIpcGetMemHandle": 2, "cuIpcOpenMemHandle_v2": 2, "cuMemAddressReserve": 2, "cuMemMap": 2,
    "cuMemSetAccess": 2, "cuMemExportToShareableHandle": 2, "cuMemcpyAsync": 1,
}  # fmt: skip
ACL_FAULTS = dict.fromkeys(["aclrtMalloc", "aclrtMemcpy", "aclrtMemset", "aclrtMallocHost"], 107000)


@dataclass(frozen=True)
class World:
    """Settings of the engines, the kinds of memory, and the calls that may fail."""

    settings: dict[str, Any]
    kinds: tuple[str, ...] = KINDS
    faults: dict[str, int] = field(default_factory=lambda: FAULTS)
    cuda: bool = True  # there are streams, and devices can be lost


WORLDS = {
    "nvlink": World({"transports/shm/trust": "same-uid"}),
    "pinned": World({"transports/shm/trust": "same-uid", "transports/nvlink/host_register": True}),
    "staged": World({"transports/shm/trust": "none", "transports/nvlink/trust": "none"}),
}
NPUS = World({}, ("npu:0", "npu:0", "npu:1", "host", "acl", "acl"), ACL_FAULTS, cuda=False)
TWO_HOSTS = World(
    {"rpc_server_hostname": "10.99.0.1"}, ("fabric:0", "fabric:0", "fabric:1", "chunks:1", "legacy:0", "host", "pinned")
)


class Place(Ranges):
    """Memory of a process, with the bytes beside its region, and the model of them. Those that a transfer may write
    are not known."""

    def __init__(self, peer: PeerProcess, name: str, kind: str) -> None:
        super().__init__(side.BAND)
        self.peer, self.name, self.kind, self.size = peer, name, kind, SIZES[name]
        self.model = np.zeros(self.size + 2 * side.BAND, np.uint8)
        self.known = np.ones(self.model.size, bool)
        self.fenced = False

    @property
    def device(self) -> str:
        return self.kind.partition(":")[2]

    def read(self) -> Any:
        return np.frombuffer(base64.b64decode(self.peer.run(side.load, name=self.name)), np.uint8)

    def write(self, begin: int, bytes_: bytes) -> None:
        self.peer.run(side.store, name=self.name, offset=begin, data=base64.b64encode(bytes_).decode())
        self.model[begin : begin + len(bytes_)] = np.frombuffer(bytes_, np.uint8)
        self.known[begin : begin + len(bytes_)] = True

    def learn(self, ranges: list[tuple[int, int]]) -> None:
        """Takes bytes as they are: nobody writes there any more."""
        now = self.read()
        for begin, end in ranges:
            self.model[begin:end], self.known[begin:end] = now[begin:end], True

    def check(self, when: str) -> None:
        wrong = np.flatnonzero((self.read() != self.model) & self.known)
        at = wrong[0] - side.BAND if wrong.size else 0
        assert not wrong.size, f"{when}: {wrong.size} bytes of {self.name} ({self.kind}) are wrong, from {at} on"


class Program:
    """Processes with memory of devices, and transfers between them."""

    def __init__(self, peers: list[PeerProcess], world: World, seed: int) -> None:
        self.peers, self.world, self.dice = peers, world, random.Random(seed)
        self.places: list[Place] = []
        self.flights: list[Flight] = []
        self.lost: list[Flight] = []  # their bytes may land until the region of their destination is fenced
        self.asked: dict[tuple[int, int, str], Place] = {}  # known regions by (pid of the peer, pid of the owner, name)
        self.ended: dict[int, str] = {}  # the device that a process has lost
        self.stopped: PeerProcess | None = None
        self.seen: Counter[str] = Counter()
        for peer in peers:
            self.offer(peer)
        self.meet()

    def meet(self) -> None:
        for a in self.peers:
            for b in self.peers:
                if a is not b:
                    a.run(side.meet, address=b.address)

    def offer(self, peer: PeerProcess) -> None:
        """Makes all regions of a process that are not there. A refusal needs a fault of before."""
        there = {place.name for place in self.places if place.peer is peer}
        for name in SIZES:
            kinds = [kind for kind in self.world.kinds if kind.partition(":")[2] != self.ended.get(peer.pid, "-")]
            if name not in there:
                why = self.open(Place(peer, name, self.dice.choice(kinds)), fresh=True)
                assert not why or self.seen["faults"], why

    def open(self, place: Place, fresh: bool) -> str:
        """Registers memory, and fills it if it is new. Returns why the driver refuses it."""
        if why := place.peer.run(side.offer, name=place.name, kind=place.kind, size=place.size):
            return str(why)
        self.places.append(place)
        if fresh:
            place.write(0, self.dice.randbytes(place.model.size))
        place.check("when it is registered")
        return ""

    def begin(self) -> None:
        """Begins a transfer between two processes that run."""
        if self.stopped:
            return
        owners = self.dice.sample(self.peers, 2)
        near, far = (self.dice.choice([place for place in self.places if place.peer is peer]) for peer in owners)
        op = self.dice.choice(["read", "write"])
        flight = Flight(self.seen.total(), op, near, far, [], [], bool(self.seen["faults"]))
        source, destination = flight.ends
        streams = self.world.cuda and op == "write" and near.device == "0"
        work = self.dice.choice([0, 0, 0, 1 + flight.number % 255]) if streams else 0
        most = min(near.size, far.size)
        for _ in range(self.dice.choice([1, 1, 3, 20])):
            n = min(self.dice.choice([1, 4096, 65536, most]), most)
            a, b = self.dice.randrange(near.size - n + 1), self.dice.randrange(far.size - n + 1)
            x, y = (a, b) if op == "write" else (b, a)
            x, y = x + side.BAND, y + side.BAND
            use = "destination" if work else "source"
            if source.take(x, x + n, use):
                if destination.take(y, y + n, "destination"):
                    flight.moves.append((a, b, n))
                    if work:
                        source.model[x : x + n], source.known[x : x + n] = work, True
                    flight.sent.append((source.model[x : x + n].copy(), source.known[x : x + n].copy()))
                    destination.known[y : y + n] = False
                else:
                    source.busy.pop()
        if not flight.moves:
            return
        terms: dict[str, Any] = {"priority": self.dice.randrange(3)}
        if self.dice.random() < 0.15:
            terms["timeout"], flight.excused = self.dice.choice([0.001, 0.02]), True
        flight.excused |= any(self.ended.get(place.peer.pid) for place in (near, far))
        key = (near.peer.pid, far.peer.pid, far.name)
        anew = self.asked.get(key) is not far
        self.asked[key] = far
        code = near.peer.run(
            side.begin, number=flight.number, op=op, names=(near.name, far.name), address=far.peer.address,
            moves=flight.moves, terms=terms, anew=anew, work=work, holds=self.world.cuda and self.dice.random() < 0.1,
        )  # fmt: skip
        self.seen["begun"] += 1
        if code:  # nothing has moved
            assert flight.excused, f"{op} {terms} from {near.kind} to {far.kind} is refused: {code}"
            destination.learn(flight.ranges(destination))
            self.release(flight)
        else:
            self.flights.append(flight)

    def release(self, flight: Flight) -> None:
        for place in flight.ends:
            for begin, end in flight.ranges(place):
                use = next(use for use in place.busy if use[:2] == (begin, end))
                place.busy.remove(use)

    def finish(self) -> None:
        """Waits for a transfer, and looks at its bytes."""
        if self.flights and not self.stopped:
            self.end(self.dice.choice(self.flights))

    def end(self, flight: Flight) -> None:
        self.flights.remove(flight)
        code, dirty = flight.near.peer.run(side.outcome, number=flight.number)
        source, destination = flight.ends
        what = f"{flight.op} of {flight.near.kind} and {flight.far.kind}"
        # A peer that has sent no order to the owner yet does not hear of a fence (design/decisions/0054).
        early = code == "ADDRESS_NOT_REGISTERED" and flight.far.fenced and flight.far.device
        assert not code or flight.excused or early, f"{what}, {flight.moves}, has failed: {code}"
        self.seen[code or "COMPLETED"] += 1
        if dirty and destination in self.places:
            self.lost.append(flight)
            return
        if destination in self.places:
            destination.learn(flight.ranges(destination))
            if not code:
                for (begin, end), (sent, known) in zip(flight.ranges(destination), flight.sent):
                    destination.model[begin:end][known] = sent[known]
            destination.check(f"behind a {what}")
        self.release(flight)
        if source in self.places:
            source.check(f"at the source of a {what}")

    def cancel(self) -> None:
        if self.flights and not self.stopped:
            flight = self.dice.choice(self.flights)
            flight.excused = True
            flight.near.peer.run(side.cancel, number=flight.number)

    def close(self) -> None:
        """Closes a region, and offers one of its name again: of the same memory, with other pages, or of other memory.
        Nothing of before lands from then on."""
        if self.stopped:
            return
        place = self.dice.choice(self.places)
        for flight in self.flights:
            flight.excused |= place in flight.ends
        if any(flight.near is place for flight in self.flights):  # transfers of the owner would go on
            place.peer.run(side.fence, name=place.name)
            place.fenced = True
            self.seen["fence"] += 1
            for flight in [flight for flight in self.lost if flight.ends[1] is place is flight.far]:
                place.learn(flight.ranges(place))
                self.lost.remove(flight)
                self.release(flight)
            return
        free, exchange = self.dice.random() < 0.4, self.dice.random() < 0.5
        self.seen["close"] += 1
        place.peer.run(side.close, name=place.name, free=free, exchange=exchange)
        self.places.remove(place)
        self.lost = [flight for flight in self.lost if flight.ends[1] is not place]
        again = Place(place.peer, place.name, place.kind)
        if not free and (place.kind != "host" or not exchange):
            again.model, again.known = place.model, place.known  # bytes of transfers under way are not known still
            for flight in self.flights:
                if flight.ends[1] is place:
                    for begin, end in flight.ranges(place):
                        again.known[begin:end] = False
        elif not free:
            again.model[:] = 0
        why = "" if free else self.open(again, fresh=False)
        assert not why or self.seen["faults"] or self.seen["losses"], why
        if free or why:
            self.offer(place.peer)
        else:
            again.write(0, self.dice.randbytes(again.model.size))

    def fail(self) -> None:
        """Makes a call of the driver fail in some process, soon."""
        if not self.stopped:
            call = self.dice.choice(list(self.world.faults))
            code, nth = self.world.faults[call], self.dice.randrange(1, 4)
            self.dice.choice(self.peers).run(side.fault, call=call, nth=nth, code=code)
            self.seen["faults"] += 1
            for flight in self.flights:
                flight.excused = True

    def lose(self) -> None:
        """A process loses its second device."""
        if self.stopped or len(self.ended) >= LOSSES or self.seen["begun"] < STEPS // 3 or not self.world.cuda:
            return
        peer = self.dice.choice(self.peers)
        self.ended[peer.pid] = "1"
        self.seen["losses"] += 1
        for flight in self.flights:
            flight.excused = True
        peer.run(side.lose, device=1)

    def restart(self) -> None:
        """Kills a process and starts another one at its address."""
        if self.stopped or self.seen["restarts"] >= RESTARTS or self.seen["begun"] < STEPS // 4:
            return
        self.seen["restarts"] += 1
        peer = self.dice.choice(self.peers)
        mine = [flight for flight in self.flights if flight.near.peer is peer]
        for flight in self.flights:
            flight.excused |= flight.far.peer is peer
        self.flights = [flight for flight in self.flights if flight not in mine]
        self.lost = [flight for flight in self.lost + mine if flight.ends[1].peer is not peer]
        self.places = [place for place in self.places if place.peer is not peer]
        for flight in mine:
            if flight not in self.lost:
                self.release(flight)
        self.ended.pop(peer.pid, None)
        peer.restart()
        self.offer(peer)
        self.meet()

    def pause(self) -> None:
        """Stops a process, or lets it go on."""
        if self.stopped:
            self.stopped.resume()
            self.stopped = None
            return
        self.stopped = self.dice.choice(self.peers)
        self.stopped.stop()
        for flight in self.flights:
            flight.excused = True

    def scribble(self) -> None:
        """A process writes where no transfer is."""
        place = self.dice.choice(self.places)
        begin = self.dice.randrange(place.model.size)
        end = min(place.model.size, begin + self.dice.randrange(1, 70_000))
        if not self.stopped and place.take(begin, end, "destination"):
            place.busy.pop()
            place.write(begin, self.dice.randbytes(end - begin))

    def play(self) -> None:
        """Takes the steps, and looks at everything behind them."""
        steps = {self.begin: 60, self.finish: 40, self.cancel: 3, self.close: 10, self.fail: 2}
        steps |= {self.lose: 1, self.restart: 1, self.pause: 3, self.scribble: 5}
        for step in self.dice.choices(list(steps), list(steps.values()), k=STEPS):
            step()
            if self.stopped and self.dice.random() < 0.3:
                self.pause()
        if self.stopped:
            self.pause()
        while self.flights:
            self.end(self.flights[0])
        for _ in range(2):
            for place in self.places:
                place.check("at the end")
        assert self.seen["COMPLETED"] > 5, self.seen


@pytest.mark.skipif(REAL, reason="a real driver fails when it likes")
@pytest.mark.parametrize("world", WORLDS)
def test_every_byte_of_devices_is_where_the_model_has_it(
    world: str,
    library: str,
    peers: Callable[..., PeerProcess],
    keep: Callable[[Any], Any],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TENT_LIBCUDA", library)
    monkeypatch.setenv("TENT_FAKECUDA_DELAY_US", "50")
    monkeypatch.setenv("TENT_FAKECUDA_SEED", str(seed % 1000 + 1))
    chosen = WORLDS[world]
    program = keep(Program([peers(size=1, settings=chosen.settings) for _ in range(PROCESSES)], chosen, seed))
    first = program.peers[0].pid
    if world == "pinned":
        program.peers[0].run(side.churn, device=0, turns=STEPS)
    program.play()
    if world == "pinned" and program.peers[0].pid == first:
        failed = program.peers[0].run(side.churned)
        assert not [text for text in failed if text.startswith("WRONG")], failed
        assert not failed or program.seen["faults"] or program.seen["losses"], failed


def test_every_byte_of_npus_is_where_the_model_has_it(
    libraries: Libraries,
    peers: Callable[..., PeerProcess],
    keep: Callable[[Any], Any],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By HIXL where its emulation is there, and through the host."""
    monkeypatch.delenv("TENT_LIBCUDA", raising=False)
    for name, path in libraries.environment().items():
        monkeypatch.setenv(name, path)
    keep(Program([peers(size=1, settings=NPUS.settings) for _ in range(PROCESSES)], NPUS, seed)).play()


@pytest.mark.skipif(REAL, reason="the two hosts are pretended ones")
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of the network need root")
@pytest.mark.usefixtures("domain")
def test_every_byte_between_two_hosts_is_where_the_model_has_it(library: str, seed: int, tmp_path: Path) -> None:
    """Two pretended hosts in one NVLink domain. Memory that was made without a fabric handle goes through the hosts."""
    start = tmp_path / "sitecustomize.py"  # of the processes with memory
    start.write_text(textwrap.dedent(HOSTS) + "\nbecome_another_machine()\n")
    program = f"""
    {HOSTS}
    import sys
    enter_own_network()
    os.environ["PYTHONPATH"] = sys.argv[1]
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    import test_random_devices
    test_random_devices.between_two_hosts(int(sys.argv[2]))
    """
    settings = {"TENT_LIBCUDA": library, "TENT_FAKECUDA_IMEX": "1", "TENT_FAKECUDA_DELAY_US": "50"}
    settings["TENT_FAKECUDA_SEED"] = str(seed % 1000 + 1)
    apart.passes(program, tmp_path, seed, **settings)


def between_two_hosts(seed: int) -> None:
    """The random program, in a process that has entered a network of its own."""
    settings = {**TWO_HOSTS.settings, "security/cluster_key": os.environ["TEST_KEY"]}
    with contextlib.ExitStack() as ends:
        peers = []
        for _ in range(PROCESSES):
            peers.append(PeerProcess(settings, options=["-W", "error"]))
            ends.callback(peers[-1].end)
        program = Program(peers, TWO_HOSTS, seed)
        program.play()
        sys.stdout.write(f"{program.seen}\n")


@pytest.mark.skipif(REAL, reason="the emulated driver keeps pages as a real one does")
def test_memory_that_is_registered_again_has_its_own_pages(
    library: str, peers: Callable[..., PeerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that a driver has pinned are let go before the region is closed: other ones come to their address."""
    monkeypatch.setenv("TENT_LIBCUDA", library)
    monkeypatch.setenv("TENT_FAKECUDA_DELAY_US", "200")
    peer = peers(size=1, settings=WORLDS["pinned"].settings)
    peer.run(side.churn, device=0, turns=100)
    assert peer.run(side.churned) == []
