"""Random programs over files, beside a model of every byte.

Two engines move ranges of any alignment between their memory and files that both have open, past the page cache and
through it. The program itself writes beside them, makes files shorter and longer, and closes those in use. A transfer
that completes has moved the bytes of the model, and touched none beside them.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apart
import pytest
from gpu import driver, files

import tent
from tent.testing import inject

__all__ = ["driver", "files"]  # the fixtures `library` and `cufile`

np = pytest.importorskip("numpy")

STEPS, LIMIT, GUARD = 200, 30, 8192
SIZES = (4096, 65537, 1 << 20, (2 << 20) + 511)
LENGTHS = (1, 100, 511, 512, 4095, 4096, 4097, 65536)
NUISANCES = ("heal", "heal", "delay=2ms", "reorder=3", "short rate=0.2")


class Bytes:
    """Memory of an engine, or a file, and its model. Bytes that a transfer under way may write are not known."""

    def __init__(self, content: Any) -> None:
        self.model, self.known = content.copy(), np.ones(content.size, bool)
        self.busy: list[tuple[int, int, str]] = []  # begin, end, "source" or "destination"

    def now(self) -> Any:
        raise NotImplementedError

    def take(self, begin: int, end: int, kind: str) -> bool:
        if any(a < end and begin < b and "destination" in (kind, other) for a, b, other in self.busy):
            return False
        self.busy.append((begin, end, kind))
        return True

    def check(self, when: str) -> None:
        now = self.now()
        wrong = np.flatnonzero((now[: self.model.size] != self.model) & self.known)
        assert not wrong.size and now.size == self.model.size, f"{when}: {wrong.size} bytes are wrong: {wrong[:1]}"


class Memory(Bytes):
    """Memory between guard bands, at a place that is no page's begin."""

    def __init__(self, engine: tent.Engine, dice: random.Random) -> None:
        size = dice.choice(SIZES)
        self.whole = np.full(size + 2 * GUARD, 0xA5, np.uint8)
        self.array = self.whole[GUARD + dice.choice([0, 13]) :][:size]
        self.array[:] = np.frombuffer(dice.randbytes(size), np.uint8)
        super().__init__(self.array)
        self.engine, self.region = engine, engine.register(self.array)

    def now(self) -> Any:
        return self.array

    def beside(self) -> tuple[Any, Any]:
        """The bytes in front of it and behind it."""
        start = self.array.ctypes.data - self.whole.ctypes.data
        return self.whole[:start], self.whole[start + self.array.size :]


class File(Bytes):
    """A file, and the segments by which engines have it open."""

    def __init__(self, path: Path, dice: random.Random) -> None:
        self.path = path
        path.write_bytes(dice.randbytes(dice.choice(SIZES)))
        super().__init__(self.now())
        self.cuts = 0  # how often its length was changed

    def now(self) -> Any:
        return np.fromfile(self.path, np.uint8)


@dataclass(eq=False)
class Flight:
    """A transfer under way, of (offset in memory, offset in the file, length)."""

    text: str
    transfer: Any
    memory: Memory
    file: File
    writes: bool
    ranges: list[tuple[int, int, int]]
    sent: list[Any]  # the source's bytes of each, and whether they were known
    cuts: int
    excused: bool  # it may fail


class Program:
    """Two engines, their memory, files, and transfers."""

    def __init__(
        self, engines: list[tent.Engine], folder: Path, seed: int, memory: Callable[..., Memory] = Memory
    ) -> None:
        self.engines, self.dice = engines, random.Random(seed)
        self.files = [File(folder / f"file {i}", self.dice) for i in range(3)]
        self.memories = [memory(engine, self.dice) for engine in engines for _ in range(2)]
        self.open_ones: list[tuple[tent.Engine, File, tent.Segment, bool]] = []
        self.flights: list[Flight] = []
        self.seen: Counter[str] = Counter()

    def open(self) -> None:
        if len(self.open_ones) > 8:
            return
        engine, file, readonly = self.dice.choice(self.engines), self.dice.choice(self.files), self.dice.random() < 0.15
        terms: dict[str, Any] = {"readonly": True} if readonly else {}
        if self.dice.random() < 0.3:
            terms["cached"] = True
        if self.dice.random() < 0.15 and not readonly:
            terms["durability"] = "data"
        segment = engine.open(file.path, **terms)
        if segment.size:
            self.open_ones.append((engine, file, segment, readonly))
        else:
            segment.close()

    def close(self) -> None:
        """Closes a file. Transfers under way to it end as they would."""
        if self.open_ones:
            self.open_ones.pop(self.dice.randrange(len(self.open_ones)))[2].close()

    def submit(self) -> None:
        if not self.open_ones:
            return
        engine, file, segment, readonly = self.dice.choice(self.open_ones)
        memory = self.dice.choice([memory for memory in self.memories if memory.engine is engine])
        writes, ranges, sent = self.dice.random() < 0.5, [], []
        source, destination = (memory, file) if writes else (file, memory)
        most = min(memory.model.size, segment.size, file.model.size)
        for _ in range(self.dice.choice([1, 1, 2, 5, 40]) if most else 0):
            n = min(self.dice.choice([*LENGTHS, most]), most)
            a = self.dice.randrange(memory.model.size - n + 1)
            b = self.dice.randrange(min(segment.size, file.model.size) - n + 1)
            if self.dice.random() < 0.5:
                a, b = a // 4096 * 4096, b // 4096 * 4096
            x, y = (a, b) if writes else (b, a)
            if source.take(x, x + n, "source"):
                if destination.take(y, y + n, "destination"):
                    ranges.append((a, b, n))
                    sent.append((source.model[x : x + n].copy(), source.known[x : x + n].copy()))
                    destination.known[y : y + n] = False
                else:
                    source.busy.pop()
        if not ranges:
            return
        terms: dict[str, Any] = {"priority": self.dice.randrange(3)}
        if self.dice.random() < 0.1:
            terms["timeout"] = self.dice.choice([0.0005, 0.005])
        text = f"{'write' if writes else 'read'} {file.path.name} {ranges} {terms}"
        flight = Flight(text, None, memory, file, writes, ranges, sent, file.cuts, "timeout" in terms)
        move, (here, there, lengths) = engine.write_ranges if writes else engine.read_ranges, zip(*ranges)
        try:
            flight.transfer = move(memory.region, here, segment, there, lengths, **terms)
            assert not (writes and readonly), text
            self.flights.append(flight)
        except tent.TentError as error:
            assert (writes and readonly) or flight.excused, f"{text}: {error!r}"
            self.settle(flight, error, moved=False)

    def finish(self) -> None:
        if self.flights:
            flight = self.flights.pop(self.dice.randrange(len(self.flights)))
            error = flight.transfer.exception(LIMIT)
            cut = flight.cuts != flight.file.cuts
            assert error is None or flight.excused or cut, f"{flight.text}: {error!r}"
            self.settle(flight, error, moved=True)

    def settle(self, flight: Flight, error: Exception | None, moved: bool) -> None:
        """Gives the ranges of a transfer back, and looks at all bytes. Whether those of a file that was cut meanwhile
        were read before or behind the cut is not known."""
        file, cut = flight.file, flight.cuts != flight.file.cuts
        source, destination = (flight.memory, file) if flight.writes else (file, flight.memory)
        now = destination.now()
        for (a, b, n), (sent, known) in zip(flight.ranges, flight.sent):
            x, y = (a, b) if flight.writes else (b, a)
            part = slice(y, y + n)
            if error is None and not cut:
                destination.model[part] = np.where(known, sent, now[part])
            elif moved:
                destination.model[part] = now[part]
            destination.known[part] = True
            source.busy.remove((x, x + n, "source"))
            destination.busy.remove((y, y + n, "destination"))
        self.seen["completed" if error is None else "failed"] += 1
        destination.check(f"behind {flight.text}")
        source.check(f"at the source of {flight.text}")

    def cancel(self) -> None:
        if self.flights:
            flight = self.dice.choice(self.flights)
            flight.excused = True
            flight.transfer.cancel()

    def cut(self) -> None:
        """Makes a file shorter or longer, where no transfer writes: those that read it may fail."""
        file = self.dice.choice(self.files)
        if any(flight.writes and flight.file is file for flight in self.flights):
            return
        file.cuts += 1
        old = file.model.size
        size = self.dice.choice([0, old // 2, max(0, old - 1), old + 4097])
        os.truncate(file.path, size)
        for array, rest in (("model", np.zeros), ("known", np.ones)):
            kept = getattr(file, array)[:size]
            setattr(file, array, np.concatenate([kept, rest(size - kept.size, kept.dtype)]))

    def scribble(self) -> None:
        """The program writes where no transfer is, also within blocks that transfers write in part."""
        file = self.dice.choice(self.files)
        begin = self.dice.randrange(file.model.size + 1)
        end = min(file.model.size, begin + self.dice.choice([1, 100, 5000]))
        if begin < end and file.take(begin, end, "destination"):
            file.busy.pop()
            data = self.dice.randbytes(end - begin)
            with file.path.open("r+b", buffering=0) as opened:
                opened.seek(begin)
                opened.write(data)
            file.model[begin:end], file.known[begin:end] = np.frombuffer(data, np.uint8), True

    def spoil(self) -> None:
        inject(self.dice.choice(self.engines), self.dice.choice(NUISANCES))

    def play(self) -> None:
        """Takes the steps, closes the engines, and looks at all bytes."""
        steps = {self.open: 12, self.close: 4, self.submit: 60, self.finish: 50, self.cancel: 4}
        steps |= {self.cut: 2, self.scribble: 8, self.spoil: 3}
        for step in self.dice.choices(list(steps), list(steps.values()), k=STEPS):
            step()
        while self.flights:
            self.finish()
        for engine in self.engines:
            engine.close(timeout=10)
        for of in (*self.files, *self.memories):
            of.check("behind the end")
        for memory in self.memories:
            assert all((band == 0xA5).all() for band in memory.beside())
        assert self.seen["completed"] > 10, self.seen


def test_every_byte_of_the_files_is_where_the_model_has_it(
    engines: Callable[..., tent.Engine], keep: Callable[[Any], Any], folder: Path, seed: int
) -> None:
    keep(Program([engines(allow_faults=True) for _ in range(2)], folder, seed)).play()


@pytest.mark.parametrize("native", ["2", "0"], ids=["nvidia-fs", "compat mode"])
def test_every_byte_of_gpus_and_files_is_where_the_model_has_it(
    library: str, cufile: str, folder: Path, seed: int, native: str
) -> None:
    """Memory of an emulated GPU, by an emulated cuFile or through the host."""
    program = """
    import sys
    sys.path.insert(0, sys.argv[1])
    import random_files_side
    random_files_side.play(sys.argv[2], int(sys.argv[3]))
    """
    emulated = {"TENT_LIBCUDA": library, "TENT_LIBCUFILE": cufile, "TENT_FAKECUFILE_NATIVE": native}
    apart.passes(program, Path(__file__).parent, folder, seed, **emulated)
