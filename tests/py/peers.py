"""A peer in a process of its own. As a module: the handle that tests hold. As a program: the peer.

They talk in lines of JSON: {"do": name, ...} in, {"ok": value} or {"error": text} out.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import warnings
from typing import Any

ANSWER_SECONDS = 60.0


class Peer:
    """Starts `python peers.py` with an engine and a region "kv" of `size` bytes in the pattern of `seed`."""

    def __init__(self, size: int = 1 << 20, seed: int = 7, **arguments: Any) -> None:
        self.size, self.seed = size, seed
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", __file__, json.dumps({"size": size, "seed": seed, **arguments})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.address: str = self._answer()

    def ask(self, do: str, **arguments: Any) -> Any:
        """One command and its answer; an error of the peer is raised here."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_SECONDS)
        line = self.process.stdout.readline() if ready else b""
        assert line, f"the peer gave no answer (exit status {self.process.poll()})"
        answer = json.loads(line)
        assert "ok" in answer, answer["error"]
        return answer["ok"]

    def kill(self) -> None:
        """kill -9, also of a stopped one, which does nothing more; and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """kill -STOP; returns when it has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """kill -CONT."""
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Whatever its state, it is gone afterwards."""
        if self.process.poll() is None:
            self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


def main() -> None:
    """The peer: answers commands until its input ends."""
    from oracle import Memory, pattern

    import tent

    given = json.loads(sys.argv[1])
    # By tcp, unless a test says otherwise: over shared memory a peer that was stopped serves as well as any.
    size, seed, settings = given["size"], given["seed"], {"transports/shm/trust": "none", **given.get("settings", {})}
    memory = Memory(size, seed, given.get("alignment", 0))
    with tent.Engine(name=given.get("name"), **settings) as engine:
        region = engine.register(memory.view, name="kv")
        print(json.dumps({"ok": engine.address}), flush=True)

        def check(written: list[list[int]] = []) -> str:  # noqa: B006
            """Expects [offset, size, seed, start] of the writer's pattern, and says what is wrong."""
            for offset, n, theirs, start in written:
                memory.put(offset, pattern(theirs, start, n))
            return memory.wrong()

        def fill(seed: int) -> None:
            memory.view[:] = pattern(seed, 0, size)
            memory.model[:] = memory.view

        def flood(target: str, priority: int) -> None:
            """Writes the whole region to a target's, again and again, until the ebb."""

            def run() -> None:
                with engine.open(target) as peer:
                    while not ebbs.is_set():
                        engine.write(region[:], peer["kv"][:size], priority=priority).result(60)
                        rounds.append(1)

            floods.append(threading.Thread(target=run))
            floods[0].start()

        def ebb() -> int:
            ebbs.set()
            floods[0].join()
            return len(rounds)

        def forget(offset: int, n: int, theirs: int) -> str:
            """Takes either what was expected or the writer's pattern, byte by byte, and expects that from now on."""
            for at in range(offset, offset + n, 4096):
                piece = bytes(memory.view[at : at + 4096])
                new = pattern(theirs, at - offset, 4096)
                if piece not in (bytes(memory.model[at : at + 4096]), new) and any(
                    b not in both for b, *both in zip(piece, memory.model[at : at + 4096], new, strict=True)
                ):
                    return f"bytes at {at} are neither the old nor the new ones"
                memory.put(at, piece)
            return ""

        def fork() -> None:
            """A child with everything of this process but the engine; it ends with the input, which it takes over."""
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that there are threads is the point
                if os.fork() == 0:
                    while os.read(0, 4096):
                        pass
                    os._exit(0)

        floods: list[threading.Thread] = []
        rounds: list[int] = []
        ebbs = threading.Event()

        def drain(n: int, timeout: float = 30) -> list[list[str]]:
            notes = [engine.notifications.get(timeout) for _ in range(n)]
            return [[note.name, note.message, note.peer] for note in notes] + [
                [note.name, note.message, note.peer] for note in engine.notifications.drain()
            ]

        def write(target: str, offset: int, n: int, at: int) -> int:
            with engine.open(target) as peer:
                return engine.write(region[offset : offset + n], peer["kv"][at : at + n]).result(30)

        commands: dict[str, Any] = {
            "check": check,
            "fill": fill,
            "flood": flood,
            "flooded": lambda: len(rounds),
            "ebb": ebb,
            "forget": forget,
            "fork": fork,
            "metric": lambda name: engine.metrics()[name],
            "drain": drain,
            "write": write,
            "fence": lambda: region.fence(),
            "close_region": lambda: region.close(),
            "register": lambda name: engine.register(memory.view, name=name) and None,
            "export": lambda: engine.export().hex(),
        }
        for line in sys.stdin:
            command = json.loads(line)
            try:
                answer = {"ok": commands[command.pop("do")](**command)}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
