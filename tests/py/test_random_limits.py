"""Random programs at the bounds of an engine: requests, batches, windows, lanes and queues as small as they may be.

Each call is taken, or refused whole by an error that names the bound and its cure. All that was taken ends in any class
and beside any load, and moves its bytes. Behind that there is as much room as before.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import tent
from tent.testing import inject

STEPS, SIZE, LIMIT = 150, 1 << 20, 60
OFF = {"shm": "tcp", "tcp": "shm"}


class Program:
    """Transfers of one engine to another one. Each byte of the peer is written once at most at a time."""

    def __init__(self, near: tent.Engine, far: tent.Engine, requests: int, batches: int, dice: random.Random) -> None:
        self.notes, self.near, self.dice, self.requests, self.batches = far.notifications, near, dice, requests, batches
        self.here, self.there = near.allocate(SIZE), far.allocate(SIZE, name="there")
        self.here.view[:] = dice.randbytes(SIZE)
        self.model = bytearray(SIZE)
        self.peer = near.open(far.address)
        self.remote = self.peer["there"]
        self.flights: list[tuple[tent.Transfer, list[tuple[int, int, int]], bool]] = []
        self.busy: list[tuple[int, int]] = []
        self.seen: Counter[str] = Counter()

    def begin(self) -> None:
        wanted = self.dice.choice([1, 1, 2, self.requests - 1, self.requests, self.requests + 1])
        longest = self.dice.choice([1, 100, 5000, max(1, SIZE // max(1, wanted) // 8)])
        moves: list[tuple[int, int, int]] = []
        taken: list[tuple[int, int]] = []
        for _ in range(wanted):
            n = self.dice.randrange(1, longest + 1)
            at = self.dice.randrange(SIZE - n + 1)
            if not any(a < at + n and at < b for a, b in self.busy + taken):
                moves.append((self.dice.randrange(SIZE - n + 1), at, n))
                taken.append((at, at + n))
        if not moves:
            return
        terms: dict[str, Any] = {"priority": self.dice.choice([0, 0, 0, 1, 2])}
        if self.dice.random() < 0.3:
            terms["notify"] = ("n", "m")
        try:
            transfer = self.near.write_ranges(self.here, [a for a, _, _ in moves], self.remote,
                                              [b for _, b, _ in moves], [n for _, _, n in moves], **terms)  # fmt: skip
        except tent.TooManyRequestsError as error:
            text = str(error)
            assert "max_pending_requests" in text or "max_batches" in text, text
            if "max_pending_requests" in text:
                under_way = sum(len(moves) for _, moves, _ in self.flights)
                assert under_way + len(moves) > self.requests, f"{under_way} and {len(moves)}: {text}"
            self.seen["refused"] += 1
            return
        assert len(moves) <= self.requests
        self.busy += taken
        self.flights.append((transfer, moves, False))

    def finish(self) -> None:
        if self.flights:
            i = self.dice.randrange(len(self.flights))
            transfer, moves, excused = self.flights.pop(i)
            while not transfer.done():
                self.notes.drain()
            error = transfer.exception(0)
            assert error is None or excused, repr(error)
            for a, b, n in moves:
                self.busy.remove((b, b + n))
                written = self.here.view[a : a + n] if error is None else self.there.view[b : b + n]
                self.model[b : b + n] = written
                assert bytes(self.there.view[b : b + n]) == bytes(written)
            self.seen["completed" if error is None else "failed"] += 1

    def cancel(self) -> None:
        if self.flights:
            i = self.dice.randrange(len(self.flights))
            transfer, moves, _ = self.flights[i]
            transfer.cancel()
            self.flights[i] = transfer, moves, True


@pytest.mark.parametrize("way", OFF)
def test_all_that_was_taken_ends_and_leaves_its_room(
    way: str, engines: Callable[..., tent.Engine], keep: Callable[[Any], Any], seed: int
) -> None:
    dice = random.Random(seed)
    requests, batches = dice.choice([1, 2, 7, 64]), dice.choice([1, 2, 5, 20, 1000])
    common: dict[str, Any] = {f"transports/{OFF[way]}/enable": False, "allow_faults": True}
    if way == "tcp":
        window = dice.choice([65536, 1 << 20])
        common |= {"transports/tcp/lanes": dice.choice([1, 2]), "transports/tcp/window_bytes": window}
    near = engines(max_pending_requests=requests, max_batches=batches, inline_bytes=dice.choice([0, 1000]), **common)
    far = engines(notification_queue=dice.choice([1, 3, 1000]), **common)
    program = keep(Program(near, far, requests, batches, dice))
    inject(near, dice.choice(["slow=20MiB", "slow=200MiB", "delay=2ms rate=0.5", "short rate=0.5", "reorder=3"]))
    steps = {program.begin: 60, program.finish: 30, program.cancel: 3, far.notifications.drain: 20}
    for step in dice.choices(list(steps), list(steps.values()), k=STEPS):
        step()
    while program.flights:
        program.finish()
    assert bytes(program.there.view) == program.model
    everything = near.write_ranges(program.here, range(requests), program.remote, range(requests), [1] * requests)
    assert everything.result(LIMIT) == requests, "there is less room than before"
    assert program.seen["completed"] > 10, program.seen
