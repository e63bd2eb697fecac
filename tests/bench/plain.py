"""The plain Python program that tent is compared with: one blocking socket, header and payload by sendmsg, recv_into
the destination, one acknowledgement a batch. Two processes; driven by lines on stdin (see contestant.py).

    plain.py CONGESTION ARENA_BYTES
"""

from __future__ import annotations

import mmap
import socket
import struct
import subprocess
import sys
import time

from pattern import first_wrong, pattern

WRITE, READ, FILL, CHECK = 1, 2, 3, 4
HEADER = struct.Struct("<QQQ")  # operation, size of a piece, number of pieces; or FILL and CHECK, seed, length
OFFSET = struct.Struct("<Q")
ACK = struct.Struct("<q")
POSITIONS = 16


def new_arena(length: int) -> memoryview:
    arena = memoryview(mmap.mmap(-1, length))
    arena[:] = pattern(1, length)
    return arena


def receive(sock: socket.socket, view: memoryview) -> None:
    """Fills the view."""
    while view:
        n = sock.recv_into(view, len(view), socket.MSG_WAITALL)
        if n == 0:
            raise EOFError
        view = view[n:]


def send(sock: socket.socket, parts: list[bytes | memoryview]) -> None:
    """Header and payload in one call; the rest of a short send follows."""
    n = sock.sendmsg(parts)
    for part in parts:
        if n >= len(part):
            n -= len(part)
        else:
            sock.sendall(memoryview(part)[n:])
            n = 0


def serve(sock: socket.socket, arena: memoryview) -> None:
    """The peer: obeys the headers until the other end is gone."""
    head = bytearray(HEADER.size)
    while True:
        receive(sock, memoryview(head))
        op, a, b = HEADER.unpack(head)
        answer = 0
        if op in (WRITE, READ):
            offsets = bytearray(OFFSET.size * b)
            receive(sock, memoryview(offsets))
            pieces = [arena[o : o + a] for (o,) in OFFSET.iter_unpack(offsets)]
            if op == READ:
                send(sock, [ACK.pack(0), *pieces])
                continue
            for piece in pieces:
                receive(sock, piece)
        elif op == FILL:
            arena[:b] = pattern(a, b)
        elif op == CHECK:
            answer = first_wrong(arena, a, b)
        sock.sendall(ACK.pack(answer))


class Initiator:
    def __init__(self, sock: socket.socket, arena: memoryview) -> None:
        self.sock = sock
        self.arena = arena
        self.ack = bytearray(ACK.size)

    def answer(self) -> int:
        receive(self.sock, memoryview(self.ack))
        return int(ACK.unpack(self.ack)[0])

    def ask(self, op: int, seed: int, length: int) -> int:
        self.sock.sendall(HEADER.pack(op, seed, length))
        return self.answer()

    def write(self, head: bytes, pieces: list[memoryview]) -> None:
        send(self.sock, [head, *pieces])
        self.answer()

    def read(self, head: bytes, pieces: list[memoryview]) -> None:
        self.sock.sendall(head)
        self.answer()
        for piece in pieces:
            receive(self.sock, piece)

    def batch(self, op: int, size: int, count: int, position: int) -> tuple[bytes, list[memoryview]]:
        room = max(1, len(self.arena) // (size * count))
        base = position % room * size * count
        offsets = [base + i * size for i in range(count)]
        head = HEADER.pack(op, size, count) + b"".join(map(OFFSET.pack, offsets))
        return head, [self.arena[o : o + size] for o in offsets]

    def measure(self, op: int, size: int, count: int, iterations: int) -> list[int]:
        """Nanoseconds of each batch; headers and views are made beforehand."""
        batches = [self.batch(op, size, count, p) for p in range(POSITIONS)]
        move = self.write if op == WRITE else self.read
        took = []
        for i in range(iterations):
            head, pieces = batches[i % POSITIONS]
            begin = time.perf_counter_ns()
            move(head, pieces)
            took.append(time.perf_counter_ns() - begin)
        return took

    def check(self, op: int, size: int, count: int, seed: int) -> str:
        """Moves one batch of fresh data and looks at every byte of it on the receiving side."""
        head, pieces = self.batch(op, size, count, 0)
        length = size * count
        mine, theirs = (seed, seed + 1) if op == WRITE else (seed + 1, seed)
        self.arena[:length] = pattern(mine, length)
        self.ask(FILL, theirs, length)
        if op == WRITE:
            self.write(head, pieces)
            wrong = self.ask(CHECK, seed, length)
        else:
            self.read(head, pieces)
            wrong = first_wrong(self.arena, seed, length)
        return "ok" if wrong < 0 else f"bad {wrong}"


def set_options(sock: socket.socket, congestion: str) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())


def peer(port: int, congestion: str, length: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        set_options(sock, congestion)
        try:
            serve(sock, new_arena(length))
        except (EOFError, ConnectionError):
            return


def main() -> None:
    if sys.argv[1] == "--peer":
        peer(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
        return
    congestion, length = sys.argv[1], int(sys.argv[2])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = [sys.executable, __file__, "--peer", str(port), congestion, str(length)]
        with subprocess.Popen(command) as child:
            sock, _ = listener.accept()
            set_options(sock, congestion)
            initiator = Initiator(sock, new_arena(length))
            print("ready", child.pid, flush=True)
            drive(initiator)
            sock.close()


def drive(initiator: Initiator) -> None:
    """The lines of contestant.py."""
    for seed, line in enumerate(sys.stdin, start=10):
        verb, *words = line.split()
        checking = verb == "check"
        op = WRITE if (words[0] if checking else verb) == "write" else READ
        size, count = (int(w) for w in (words[1:3] if checking else words[:2]))
        if checking:
            print(initiator.check(op, size, count, 2 * seed), flush=True)
        else:
            print("ns", *initiator.measure(op, size, count, int(words[2])), flush=True)


if __name__ == "__main__":
    main()
