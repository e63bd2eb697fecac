"""`tent bench`: rates and latencies of transfers, swept over sizes, batches, threads, transports and classes.

Without a target it measures this machine against itself: a second process runs `tent serve`. Each row moves other
bytes than the row before, and they are compared: a WRITE is read back, a READ is compared with the bytes written.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import os
import platform
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tent

from .. import _text
from . import guest
from .plan import PRIORITIES
from .route import detour, settle
from .screen import optional, progress, show_table

START_S = 30.0
MOVE_S = 60.0  # limit of one transfer
REGION = "bench"


class Cell(NamedTuple):
    """The measurement of one row. A transfer moves `batch` ranges of `size` bytes; each thread has one under way."""

    transport: str
    priority: str
    threads: int
    batch: int
    size: int
    op: str

    @property
    def span(self) -> int:
        """Bytes of all threads together."""
        return self.size * self.batch * self.threads

    def __str__(self) -> str:
        extra = (f"x{self.batch}" if self.batch > 1 else "") + (f" {self.threads} threads" if self.threads > 1 else "")
        return f"{self.op.upper()} {_text.size(self.size)}{extra} {self.transport} {self.priority}"


@dataclass
class Row:
    """A measured cell."""

    cell: Cell
    took_ns: list[int] = field(default_factory=list)  # of each transfer
    wall_ns: int = 0
    wrong: str = ""  # why the row does not count

    @property
    def rate(self) -> float:
        """Bytes a second of all threads."""
        return len(self.took_ns) * self.cell.size * self.cell.batch / (self.wall_ns / 1e9) if self.wall_ns else 0.0

    def quantile(self, share: float) -> int:
        """Nanoseconds within which this share of the transfers ended."""
        ordered = sorted(self.took_ns)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0

    def texts(self) -> list[str]:
        c = self.cell
        head = [c.op.upper(), c.transport, c.priority, str(c.threads), str(c.batch), _text.size(c.size)]
        if self.wrong:
            return [*head, "-", "-", "-", "-", self.wrong]
        p50, p99 = (_text.duration(self.quantile(share)) for share in (0.5, 0.99))
        return [*head, f"{self.rate / 1e9:.2f}", f"{len(self.took_ns) / (self.wall_ns / 1e9):.0f}", p50, p99, ""]

    def record(self) -> dict[str, Any]:
        numbers = {"transfers": len(self.took_ns), "seconds": self.wall_ns / 1e9, "bytes_per_second": self.rate}
        latency = {f"p{share:g}_us": self.quantile(share / 100) / 1e3 for share in (50, 90, 99)}
        return {**self.cell._asdict(), **numbers, **latency, "wrong": self.wrong}


HEADER = ("", "transport", "class", "threads", "batch", "size", "GB/s", "transfers/s", "p50", "p99", "")


def run(options: argparse.Namespace) -> int:
    """Measures WRITE and READ to a peer, or without one between two processes of this machine."""
    check_outputs(options)
    with contextlib.ExitStack() as stack:
        span = max(options.size) * max(options.batch) * max(options.threads)
        target = options.target or stack.enter_context(another_process(span, options.config))
        engine = stack.enter_context(guest.engine(options.config))
        peer = stack.enter_context(engine.open(target))
        if peer.path is not None:
            raise tent.InvalidArgumentError(f"{target} is a file", hint="HOST:PORT/REGION of `tent serve`")
        remote = region_of(peer, target.partition("/")[2])
        if remote.readonly:
            raise tent.PermissionDeniedError(
                f"the region {remote.name!r} cannot be written to", hint="run `tent serve` there"
            )
        bench = Bench(engine, remote, stack.enter_context(engine.allocate(min(span, remote.size))), options.seconds)
        cells = list(bench.cells(options))
        if not cells:
            cure = "tent serve --size offers a larger one"
            raise tent.InvalidArgumentError(f"nothing fits into the region of {_text.size(remote.size)}", hint=cure)
        rows = []
        with progress(len(cells), "measuring") as step:
            for cell in cells:
                step(str(cell))
                rows.append(bench.measure(cell))
    report(rows, target if options.target else "", options)
    return int(any(row.wrong for row in rows))


def check_outputs(options: argparse.Namespace) -> None:
    """Fails now where a file could not be written at the end of a long run."""
    if options.plot:
        check_plot(options.plot)
    for path in (options.json, options.plot):
        if path and path != "-":
            open(path, "a", encoding="utf-8").close()


def check_plot(path: str) -> None:
    if (backends := optional("matplotlib.backend_bases")) is None:
        raise tent.NotFoundError("--plot needs matplotlib", hint="pip install tent-engine[cli]")
    known = backends.FigureCanvasBase.get_supported_filetypes()
    if os.path.splitext(path)[1][1:].lower() not in known:
        raise tent.InvalidArgumentError(
            f"--plot: {path!r} does not end as a picture", hint=f"one of {', '.join(known)}"
        )


@contextmanager
def another_process(span: int, config: str | None) -> Iterator[str]:
    """Runs `tent serve` with a region of so many bytes; the value is its address."""
    command = [sys.executable, "-m", "tent", "serve", "--with-stdin", "--region", REGION]
    command += ["--size", str(span)]
    command += ["--config", config] if config else []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        timer = threading.Timer(START_S, process.kill)
        timer.start()
        try:
            assert process.stdout
            target = process.stdout.readline().strip()
            timer.cancel()
            if not target:
                raise tent.TentError("the second process did not start", hint="its error stands above")
            yield target
        finally:
            timer.cancel()
            process.terminate()


def region_of(peer: tent.Segment, name: str) -> tent.RemoteRegion:
    """The region that the target names, else the only one for all."""
    if name:
        return peer.regions[name]
    found = [region for region in peer.regions.values() if not region.name.startswith("tent-")]
    if len(found) != 1:
        names = ", ".join(region.name for region in found) or "none"
        raise tent.InvalidArgumentError(f"which region of {peer.address}?", hint=f"HOST:PORT/REGION, of these: {names}")
    return found[0]


class Bench:
    """Measures cells one after the other, between one local and one remote region."""

    def __init__(self, engine: tent.Engine, remote: tent.RemoteRegion, local: tent.Region, seconds: float) -> None:
        self._engine = engine
        self._remote = remote
        self._local = local
        self._seconds = seconds
        self._random = random.Random(1)
        self._sent = b""  # the first bytes of the remote region

    def cells(self, options: argparse.Namespace) -> Iterator[Cell]:
        """The cells of a sweep, as far as they fit. A WRITE stands before the READ of its bytes."""
        names = options.transport or self.transports()
        sweep = itertools.product(names, options.priority, options.threads, options.batch, options.size, options.op)
        return (cell for cell in itertools.starmap(Cell, sweep) if cell.span <= len(self._local))

    def transports(self) -> list[str]:
        """Those that could carry bytes here."""
        plan = self._engine.explain(self._local, self._remote[: len(self._local)])
        return [route["transport"] for route in plan["routes"]]

    def measure(self, cell: Cell) -> Row:
        row = Row(cell)
        try:
            self._prepare(cell)
            settle(lambda: self._move(cell, 0), cell.transport)  # links and pages are warm from here on
            with_threads(cell.threads, lambda thread, stop: self._rounds(row, thread, stop))
            row.wrong = row.wrong or self._compare(cell)
        except tent.TentError as error:
            row.wrong = str(error)
        return row

    def _prepare(self, cell: Cell) -> None:
        if cell.op == "write" or len(self._sent) < cell.span:
            self._sent = self._random.randbytes(cell.span)
            self._local.view[: cell.span] = self._sent
        if cell.op == "read":
            self._engine.write(self._local[: cell.span], self._remote[: cell.span], timeout=MOVE_S).result()
            self._local.view[: cell.span] = bytes(cell.span)

    def _move(self, cell: Cell, thread: int) -> tent.Transfer:
        share = cell.size * cell.batch
        local, remote = (region[thread * share : (thread + 1) * share] for region in (self._local, self._remote))
        terms: dict[str, Any] = {"priority": int(PRIORITIES[cell.priority]), "hint": cell.transport, "timeout": MOVE_S}
        if cell.batch == 1:
            transfer = (self._engine.write if cell.op == "write" else self._engine.read)(local, remote, **terms)
        else:
            many = self._engine.write_ranges if cell.op == "write" else self._engine.read_ranges
            offsets = range(0, share, cell.size)
            transfer = many(local, list(offsets), remote, list(offsets), [cell.size] * cell.batch, **terms)
        transfer.result()
        return transfer

    def _rounds(self, row: Row, thread: int, stop: threading.Event) -> None:
        cell = row.cell
        took: list[int] = []
        first = began = time.perf_counter_ns()
        over = first + int(self._seconds * 1e9)
        while (began < over or not took) and not stop.is_set():
            transfer = self._move(cell, thread)
            ended = time.perf_counter_ns()
            took.append(ended - began)
            began = ended
        if took and (others := detour(transfer, cell.transport)):
            row.wrong = f"went over {others}"
        row.took_ns += took  # one bytecode: threads end in any order
        row.wall_ns = max(row.wall_ns, began - first)

    def _compare(self, cell: Cell) -> str:
        """Why the bytes are not those that were sent, "" when they are."""
        if cell.op == "write":
            self._local.view[: cell.span] = bytes(cell.span)
            self._engine.read(self._local[: cell.span], self._remote[: cell.span], timeout=MOVE_S).result()
        same = self._local.view[: cell.span] == self._sent[: cell.span]
        return "" if same else "other bytes arrived than were sent"


def with_threads(n: int, work: Callable[[int, threading.Event], None]) -> None:
    """Runs work(0, stop) to work(n - 1, stop) at once; raises the first of their errors, which stops the others."""
    errors: list[BaseException] = []
    stop = threading.Event()

    def guarded(thread: int) -> None:
        try:
            work(thread, stop)
        except BaseException as error:
            errors.append(error)
            stop.set()

    others = [threading.Thread(target=guarded, args=(i,), name=f"bench-{i}", daemon=True) for i in range(1, n)]
    for thread in others:
        thread.start()
    guarded(0)
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]


def report(rows: list[Row], target: str, options: argparse.Namespace) -> None:
    """Prints the table, and writes the files that were asked for."""
    where = f"to {target}" if target else "between two processes of this machine"
    if options.json != "-":
        title = f"tent {tent.__version__}, {where}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n"
        show_table(title, HEADER, [row.texts() for row in rows])
    if options.json:
        facts = {"tent": tent.__version__, "python": platform.python_version(), "kernel": platform.release()}
        load = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
        text = json.dumps({**facts, **load, "target": where, "rows": [row.record() for row in rows]}, indent=2)
        if options.json == "-":
            print(text)
        else:
            with open(options.json, "w", encoding="utf-8") as file:
                file.write(text + "\n")
    if options.plot:
        plot(rows, where, options.plot)


def plot(rows: list[Row], where: str, path: str) -> None:
    """Draws rate and median latency over size, a line for each way to move."""
    importlib.import_module("matplotlib").use("Agg")
    plt: Any = importlib.import_module("matplotlib.pyplot")
    figure, (rates, latencies) = plt.subplots(2, 1, sharex=True, figsize=(9, 7), layout="constrained")
    lines: dict[str, list[Row]] = {}
    for row in rows:
        if not row.wrong:
            c = row.cell
            lines.setdefault(f"{c.op.upper()} {c.transport} {c.priority} {c.threads}x{c.batch}", []).append(row)
    for label, line in lines.items():
        sizes = [row.cell.size for row in line]
        rates.plot(sizes, [row.rate / 1e9 for row in line], marker="o", label=label)
        latencies.plot(sizes, [row.quantile(0.5) / 1e3 for row in line], marker="o")
    rates.set_xscale("log", base=2)
    rates.set_ylabel("GB/s")
    rates.set_title(f"tent {tent.__version__}, {where}")
    rates.legend(title="class, threads x batch")
    latencies.set_yscale("log")
    latencies.set_ylabel("p50 in us")
    latencies.set_xlabel("bytes of a range")
    figure.savefig(path)
    plt.close(figure)
