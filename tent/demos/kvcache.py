"""`python -m tent.demos.kvcache`: a prefill process writes a KV cache into a decode process, beside a plain socket.

The decode process offers 1024 pages of 64 KiB. The prefill process writes them in another order, several times with
fresh data; the receiver looks at every byte. Three ways take turns in the same run, because only ratios mean something
on a machine that does other things as well: tent as it comes (shared memory on one host), tent over TCP alone, and one
blocking socket without tent (header and payload by sendmsg, recv_into the destination).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import random
import socket
import statistics
import struct
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import tent
from tent import command

PAGES = 1024
PAGE_BYTES = 64 << 10
TOTAL = PAGES * PAGE_BYTES
ROUNDS = 5
SINGLE_PAGES = 200  # of each kind in a round
LIMIT_S = 60.0

# Over the plain socket: the kind, a number, a count. PAGES_FOLLOW is followed by the page numbers and the pages.
HEADER = struct.Struct("<cQQ")
ACK = struct.Struct("<Q")
PAGES_FOLLOW, VERIFY_TENT, VERIFY_PLAIN = b"p", b"t", b"s"

# The ways, as the table names them, with the settings of the engine that moves the pages; the last is the plain socket.
WAYS: dict[str, dict[str, Any] | None] = {
    "tent": {},
    "tent, TCP only": {"transports": {"shm": {"enable": False}}},
    "plain socket": None,
}


# Every 8 bytes hold a number that says where they belong. Large integers add them all at once.
WORDS = PAGE_BYTES // 8
COUNT = int.from_bytes(array("Q", range(WORDS)).tobytes(), "little")
ONES = int.from_bytes((array("Q", [1]) * WORDS).tobytes(), "little")


def page_of(seed: int, index: int) -> bytes:
    """Returns the bytes of page `index` in round `seed`."""
    return (COUNT + ONES * (seed << 40 | index * WORDS)).to_bytes(PAGE_BYTES, "little")


def order_of(seed: int) -> list[int]:
    """Where page i of the prefill process goes in the decode process."""
    order = list(range(PAGES))
    random.Random(seed).shuffle(order)
    return order


def wrong_pages(view: memoryview, seed: int) -> int:
    """Returns the number of pages that differ from the sender's."""
    places = enumerate(order_of(seed))
    return sum(bytes(page_at(view, place)) != page_of(seed, source) for source, place in places)


def page_at(view: memoryview, index: int) -> memoryview:
    return view[index * PAGE_BYTES : (index + 1) * PAGE_BYTES]


def receive(sock: socket.socket, view: memoryview) -> None:
    while view:
        n = sock.recv_into(view, len(view), socket.MSG_WAITALL)
        if n == 0:
            raise EOFError("the other process is gone")
        view = view[n:]


def receive_struct(sock: socket.socket, form: struct.Struct) -> tuple[Any, ...]:
    raw = bytearray(form.size)
    receive(sock, memoryview(raw))
    return form.unpack(raw)


def set_options(sock: socket.socket) -> None:
    """No delay, and a congestion control that does not pace on loopback (the system's default may be bbr)."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name in (b"cubic", b"reno"):
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
            return
        except OSError:
            continue  # not every process may choose every one


# -- decode: the receiver


def decode() -> None:
    """Offers the pages, serves the plain socket, and verifies both."""
    plain = memoryview(mmap.mmap(-1, TOTAL))
    plain[:] = bytes(TOTAL)
    with socket.create_server(("127.0.0.1", 0)) as listener, tent.Engine(name="decode-0") as engine:
        with engine.allocate(TOTAL, name="kv") as region:
            port = listener.getsockname()[1]
            print(json.dumps({"address": engine.address, "port": port}), flush=True)
            sock, _ = listener.accept()
            with sock:
                set_options(sock)
                try:
                    serve(sock, engine, memoryview(region.view), plain)
                except EOFError:
                    return  # the sender has finished


def serve(sock: socket.socket, engine: tent.Engine, kv: memoryview, plain: memoryview) -> NoReturn:
    while True:
        what, number, count = receive_struct(sock, HEADER)
        answer = 0
        if what == PAGES_FOLLOW:
            places = array("Q", bytes(8 * count))
            receive(sock, memoryview(places).cast("B"))
            for place in places:
                receive(sock, page_at(plain, place))
        elif what == VERIFY_TENT:
            note = engine.notifications.get(timeout=LIMIT_S)  # it was sent behind the last byte
            answer = wrong_pages(kv, number) + (note.message != str(number))
        elif what == VERIFY_PLAIN:
            answer = wrong_pages(plain, number)
        sock.sendall(ACK.pack(answer))


# -- prefill: the sender


class ByTent:
    """An engine that writes into the peer's region; close() ends it."""

    verify = VERIFY_TENT
    transports: tuple[str, ...] = ()

    def __init__(self, settings: dict[str, Any], address: str) -> None:
        self.engine = tent.Engine(settings)
        self.peer = self.engine.open(address)
        self.remote = self.peer["kv"]
        self.kv = self.engine.allocate(TOTAL, name="prefill")
        self.view = memoryview(self.kv.view)

    def all_pages(self, seed: int) -> None:
        transfer = self.engine.write_pages(
            self.kv, range(PAGES), self.remote, order_of(seed), page_bytes=PAGE_BYTES, notify=("round", str(seed))
        )
        transfer.result(LIMIT_S)
        self.transports = tuple(transfer.transports)

    def page(self, index: int) -> None:
        part = slice(index * PAGE_BYTES, (index + 1) * PAGE_BYTES)
        self.engine.write(self.kv[part], self.remote[part]).result(LIMIT_S)

    def close(self) -> None:
        self.engine.close()


class BySocket:
    """The same without tent. The socket stays open: the receiver is asked over it."""

    verify = VERIFY_PLAIN
    transports = ("tcp",)

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.view = memoryview(mmap.mmap(-1, TOTAL))

    def all_pages(self, seed: int) -> None:
        head = HEADER.pack(PAGES_FOLLOW, 0, PAGES) + array("Q", order_of(seed)).tobytes()
        self.send([head], [page_at(self.view, i) for i in range(PAGES)])

    def close(self) -> None:
        self.view.release()

    def page(self, index: int) -> None:
        self.send([HEADER.pack(PAGES_FOLLOW, 0, 1), ACK.pack(index)], [page_at(self.view, index)])

    def send(self, head: list[bytes], pages: list[memoryview]) -> None:
        for start in range(0, len(pages), 512):  # a call takes at most 1024 pieces
            parts: list[bytes | memoryview] = [*(head if start == 0 else ()), *pages[start : start + 512]]
            n = self.sock.sendmsg(parts)
            for part in parts:
                if n < len(part):
                    self.sock.sendall(part[n:])
                n = max(0, n - len(part))
        receive_struct(self.sock, ACK)


def seconds(work: Callable[[int], None], argument: int) -> float:
    begin = time.perf_counter()
    work(argument)
    return time.perf_counter() - begin


def verified(sock: socket.socket, what: bytes, seed: int) -> int:
    """Asks the receiver to look at every byte; the number of bytes that it looked at."""
    sock.sendall(HEADER.pack(what, seed, 0))
    wrong = int(receive_struct(sock, ACK)[0])
    if wrong:
        raise SystemExit(f"{wrong} of {PAGES} pages are wrong")
    return TOTAL


def prefill(address: str, port: int, rounds: int) -> None:
    """Runs the rounds and reports them in JSON lines, the last of which is the result."""
    pages: dict[str, list[float]] = {name: [] for name in WAYS}
    whole: dict[str, list[float]] = {name: [] for name in WAYS}
    looked_at = step = 0
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        set_options(sock)
        ways: dict[str, ByTent | BySocket] = {}
        for name, settings in WAYS.items():
            ways[name] = BySocket(sock) if settings is None else ByTent(settings, address)
            stack.enter_context(contextlib.closing(ways[name]))
        for seed in range(1, rounds + 1):
            for name, way in ways.items():
                fill(way.view, seed)
                whole[name].append(seconds(way.all_pages, seed))
                looked_at += verified(sock, way.verify, seed)
                step += 1
                print(json.dumps({"done": step}), flush=True)
            for i in range(SINGLE_PAGES):
                for name, way in ways.items():
                    pages[name].append(seconds(way.page, i))
        result = {name: summary(whole[name], pages[name]) for name in WAYS}
        transports = {name: ways[name].transports for name in WAYS}
        print(json.dumps({"result": result, "transports": transports, "verified": looked_at}), flush=True)


def fill(view: memoryview, seed: int) -> None:
    for index in range(PAGES):
        page_at(view, index)[:] = page_of(seed, index)


def summary(whole: list[float], pages: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(pages, n=100)
    return {
        "rate": TOTAL / statistics.median(whole) / 1e9,
        "p50": statistics.median(pages) * 1e6,
        "p99": cuts[98] * 1e6,
    }


# -- the two processes and their output


def start(role: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tent.demos.kvcache", "--role", role, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def lines_of(process: subprocess.Popen[str]) -> Iterable[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def show_progress(done: int, total: int) -> None:
    """A bar that is redrawn on a terminal, and says only the end elsewhere."""
    if sys.stdout.isatty():
        full = 40 * done // total
        print(f"\r  [{'#' * full}{'.' * (40 - full)}] {100 * done // total:3} %", end="", flush=True)
    if done == total:
        print("" if sys.stdout.isatty() else "  all rounds done", flush=True)


def show_table(last: dict[str, Any]) -> None:
    result, names = last["result"], list(WAYS)
    titles = [("GB/s, all pages", "rate", 2), ("p50 of one page, us", "p50", 1), ("p99 of one page, us", "p99", 1)]
    print(f"\n  {'':22}" + "".join(f"{name:>16}" for name in names) + f"{'ratio':>10}")
    print(f"  {'transport':22}" + "".join(f"{', '.join(last['transports'][name]):>16}" for name in names))
    for title, key, digits in titles:
        values = [result[name][key] for name in names]
        print(f"  {title:22}" + "".join(f"{v:>16.{digits}f}" for v in values) + f"{values[0] / values[-1]:>10.2f}")
    print(f"\n  {last['verified'] >> 20} MiB verified by the receiver, every byte right. Ratio: first to last column.")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tent.demos.kvcache", description="Two processes move a KV cache.")
    parser.add_argument("--role", choices=("decode", "prefill"), help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=command.count, default=ROUNDS, help="rounds with fresh data (%(default)s)")
    parser.add_argument("where", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role == "decode":
        decode()
        return 0
    if args.role == "prefill":
        prefill(args.where[0], int(args.where[1]), args.rounds)
        return 0
    return orchestrate(args.rounds)


def orchestrate(rounds: int) -> int:
    """Starts both processes, shows their output, and ends them in any case."""
    pages = f"{PAGES} pages of {PAGE_BYTES >> 10} KiB"
    print(f"tent {tent.__version__}: {pages} from a prefill to a decode process, {rounds} rounds")
    receiver = start("decode")
    sender = None
    try:
        offer = next(iter(lines_of(receiver)), None)
        if offer is None:
            return receiver.wait() or 1
        print(f"  decode-0 listens on {offer['address']}", flush=True)
        sender = start("prefill", offer["address"], offer["port"], "--rounds", rounds)
        last: dict[str, Any] = {}
        for last in lines_of(sender):
            if "done" in last:
                show_progress(last["done"], len(WAYS) * rounds)
        if sender.wait() or "result" not in last:
            return sender.returncode or 1
        show_table(last)
        return receiver.wait(LIMIT_S)
    finally:
        for process in (sender, receiver):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


if __name__ == "__main__":
    sys.exit(main())
