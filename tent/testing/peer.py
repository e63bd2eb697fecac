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
from collections.abc import Mapping
from typing import Any

ANSWER_SECONDS = 60.0


class PeerProcess:
    """An engine in another process, with regions that it watches over. Killing and stopping it is fine."""

    def __init__(self, settings: Mapping[str, Any], name: str = "peer", swap: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._swap = dict(swap or {})
        self._settings = dict(settings)
        self.process = self._start(self._settings)
        self.address: str = self._answer()

    def _start(self, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
        given = json.dumps({"name": self.name, "settings": settings, "swap": self._swap})
        command = [sys.executable, "-m", "tent.testing.peer", given]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs (or stands still)."""
        return self.process.poll() is None

    def kill(self) -> None:
        """kill -9, and waits until it is gone."""
        if self.alive:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """kill -STOP; returns when it stands still."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """kill -CONT."""
        self.process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kills it and starts a new one, without regions, at the same address."""
        self.kill()
        self._close_pipes()
        self.process = self._start({**self._settings, "rpc_server_port": int(self.address.rpartition(":")[2])})
        self.address = self._answer()

    def inject(self, text: str) -> None:
        """Faults of its engine, in the language of transports/faulty."""
        self.ask("inject", text=text)

    def metrics(self) -> dict[str, float]:
        """Of its engine."""
        found: dict[str, float] = self.ask("metrics")
        return found

    def ask(self, do: str, **arguments: Any) -> Any:
        """One command and its answer; what goes wrong there is a RuntimeError here."""
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(f"{self!r} is gone") from None
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_SECONDS)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            raise RuntimeError(f"{self!r} gave no answer")
        answer = json.loads(line)
        if "ok" not in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer["ok"]

    def end(self) -> None:
        """Whatever its state, it is gone afterwards."""
        self.kill()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass  # it died with something unread

    def __repr__(self) -> str:
        state = "" if self.alive else f" ended with {self.process.returncode}"
        return f"<PeerProcess {self.name!r} {self.pid}{state}>"


def main() -> None:
    """The peer: answers commands until its input ends."""
    import tent

    from .faults import inject, swap_transport_for_test
    from .memory import Memory

    given = json.loads(sys.argv[1])
    memories: dict[str, Memory] = {}
    regions: dict[str, tent.Region] = {}
    engine = tent.Engine(given["settings"], name=given["name"])
    for slot, transport in given["swap"].items():
        swap_transport_for_test(engine, slot, transport)

    def region(name: str, size: int, seed: int, alignment: int) -> None:
        memories[name] = Memory(size, seed, alignment)
        regions[name] = engine.register(memories[name].view, name=name)

    commands: dict[str, Any] = {
        "region": region,
        "wrong": lambda name, seed, or_seed=None: memories[name].wrong(seed, or_seed),
        "fill": lambda name, seed: memories[name].fill(seed),
        "fence": lambda name: regions[name].fence(),
        "inject": lambda text: inject(engine, text),
        "metrics": engine.metrics,
        "close": lambda: engine.close(timeout=0),
    }
    print(json.dumps({"ok": engine.address}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"ok": commands[command.pop("do")](**command)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    engine.close(timeout=0)


if __name__ == "__main__":
    main()
