"""`python -m tent.demo`: a prefill process writes a KV cache into a decode process, beside a plain socket.

The decode process offers 1024 pages of 64 KiB. The prefill process writes them in another order, several times with
fresh data; the receiver looks at every byte. The same pages also go over one blocking socket (header and payload by
sendmsg, recv_into the destination), turn by turn in the same run, because only ratios mean something on a machine
that does other things as well.
"""

from __future__ import annotations

import argparse
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

PAGES = 1024
PAGE_BYTES = 64 << 10
TOTAL = PAGES * PAGE_BYTES
ROUNDS = 5
SINGLE_PAGES = 200  # of each kind in a round
LIMIT_S = 60.0

# Over the plain socket: what follows, a number, a count. PAGES_FOLLOW is followed by the page numbers and the pages.
HEADER = struct.Struct("<cQQ")
ACK = struct.Struct("<Q")
PAGES_FOLLOW, VERIFY_TENT, VERIFY_PLAIN = b"p", b"t", b"s"


# Every 8 bytes hold a number that says where they belong. Large integers add them all at once.
WORDS = PAGE_BYTES // 8
COUNT = int.from_bytes(array("Q", range(WORDS)).tobytes(), "little")
ONES = int.from_bytes((array("Q", [1]) * WORDS).tobytes(), "little")


def page_of(seed: int, index: int) -> bytes:
    """What page `index` holds in round `seed`."""
    return (COUNT + ONES * (seed << 40 | index * WORDS)).to_bytes(PAGE_BYTES, "little")


def order_of(seed: int) -> list[int]:
    """Where page i of the prefill process goes in the decode process."""
    order = list(range(PAGES))
    random.Random(seed).shuffle(order)
    return order


def wrong_pages(view: memoryview, seed: int) -> int:
    """Number of pages of the receiver that are not exactly what the sender has."""
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


class Prefill:
    """Writes pages by tent and over the plain socket, and asks the receiver to look at them."""

    def __init__(self, engine: tent.Engine, peer: tent.Segment, sock: socket.socket) -> None:
        self.engine = engine
        self.kv = engine.allocate(TOTAL, name="prefill")
        self.remote = peer["kv"]
        self.sock = sock
        self.view = memoryview(self.kv.view)
        self.transports: tuple[str, ...] = ()

    def fill(self, seed: int) -> None:
        for index in range(PAGES):
            page_at(self.view, index)[:] = page_of(seed, index)

    def ask(self, what: bytes, number: int) -> int:
        self.sock.sendall(HEADER.pack(what, number, 0))
        return int(receive_struct(self.sock, ACK)[0])

    def verify(self, what: bytes, seed: int) -> int:
        wrong = self.ask(what, seed)
        if wrong:
            raise SystemExit(f"{wrong} of {PAGES} pages are wrong")
        return TOTAL

    def all_by_tent(self, seed: int) -> None:
        transfer = self.engine.write_pages(
            self.kv, range(PAGES), self.remote, order_of(seed), page_bytes=PAGE_BYTES, notify=("round", str(seed))
        )
        transfer.result(LIMIT_S)
        self.transports = tuple(transfer.transports)

    def page_by_tent(self, index: int) -> None:
        part = slice(index * PAGE_BYTES, (index + 1) * PAGE_BYTES)
        self.engine.write(self.kv[part], self.remote[part]).result(LIMIT_S)

    def all_by_socket(self, seed: int) -> None:
        order = order_of(seed)
        head = HEADER.pack(PAGES_FOLLOW, 0, PAGES) + array("Q", order).tobytes()
        self.send([head], [page_at(self.view, i) for i in range(PAGES)])

    def page_by_socket(self, index: int) -> None:
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


def prefill(address: str, port: int) -> None:
    """Runs the rounds; says what it does in JSON lines, the last of which is the result."""
    pages: dict[str, list[float]] = {"tent": [], "plain": []}
    whole: dict[str, list[float]] = {"tent": [], "plain": []}
    verified = 0
    with tent.Engine() as engine, engine.open(address) as peer, socket.create_connection(("127.0.0.1", port)) as sock:
        set_options(sock)
        run = Prefill(engine, peer, sock)
        for seed in range(1, ROUNDS + 1):
            run.fill(seed)
            for step, (kind, work) in enumerate((("tent", run.all_by_tent), ("plain", run.all_by_socket))):
                whole[kind].append(seconds(work, seed))
                verified += run.verify(VERIFY_TENT if kind == "tent" else VERIFY_PLAIN, seed)
                print(json.dumps({"round": seed, "done": 3 * (seed - 1) + step + 1}), flush=True)
            for i in range(SINGLE_PAGES):
                pages["tent"].append(seconds(run.page_by_tent, i))
                pages["plain"].append(seconds(run.page_by_socket, i))
            print(json.dumps({"round": seed, "done": 3 * seed}), flush=True)
        result = {kind: summary(whole[kind], pages[kind]) for kind in whole}
        print(json.dumps({"result": result, "transports": run.transports, "verified": verified}), flush=True)


def summary(whole: list[float], pages: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(pages, n=100)
    return {
        "rate": TOTAL / statistics.median(whole) / 1e9,
        "p50": statistics.median(pages) * 1e6,
        "p99": cuts[98] * 1e6,
    }


# -- the two processes, and what the user sees


def start(role: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tent.demo", "--role", role, *map(str, arguments)]
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
        print("" if sys.stdout.isatty() else f"  {ROUNDS} rounds done", flush=True)


def show_table(last: dict[str, Any]) -> None:
    ours, plain = last["result"]["tent"], last["result"]["plain"]
    rows = [("GB/s, all pages", "rate", 2), ("p50 of one page, us", "p50", 1), ("p99 of one page, us", "p99", 1)]
    print(f"\n  {'':22}{'tent':>10}{'plain socket':>15}{'ratio':>8}")
    print(f"  {'transport':22}{', '.join(last['transports']):>10}{'tcp':>15}")
    print(f"  {'MiB a round':22}{TOTAL >> 20:>10}{TOTAL >> 20:>15}")
    for title, key, digits in rows:
        print(f"  {title:22}{ours[key]:>10.{digits}f}{plain[key]:>15.{digits}f}{ours[key] / plain[key]:>8.2f}")
    print(f"\n  {last['verified'] >> 20} MiB verified by the receiver, every byte right.")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tent.demo", description="Two processes move a KV cache.")
    parser.add_argument("--role", choices=("decode", "prefill"), help=argparse.SUPPRESS)
    parser.add_argument("where", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role == "decode":
        decode()
        return 0
    if args.role == "prefill":
        prefill(args.where[0], int(args.where[1]))
        return 0
    return orchestrate()


def orchestrate() -> int:
    """Starts both processes, shows what they say, and ends them whatever happens."""
    pages = f"{PAGES} pages of {PAGE_BYTES >> 10} KiB"
    print(f"tent {tent.__version__}: {pages} from a prefill to a decode process, {ROUNDS} rounds")
    receiver = start("decode")
    sender = None
    try:
        offer = next(iter(lines_of(receiver)), None)
        if offer is None:
            return receiver.wait() or 1
        print(f"  decode-0 listens on {offer['address']}", flush=True)
        sender = start("prefill", offer["address"], offer["port"])
        last: dict[str, Any] = {}
        for last in lines_of(sender):
            if "done" in last:
                show_progress(last["done"], 3 * ROUNDS)
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
