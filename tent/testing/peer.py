"""A peer in a process of its own. As a module: the handle that tests hold. As a program: the peer.

They talk in lines of JSON: {"do": name, ...} in, {"ok": value} or {"error": text} out. Functions of the test run over
there by `PeerProcess.run`.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from tent.errors import InvalidArgumentError

from .faults import Struck
from .ports import keep_port, port_of

if TYPE_CHECKING:
    import tent

    from .memory import Memory

P = ParamSpec("P")

ANSWER_SECONDS = 60.0

_loading = False  # in the process of a peer: whether it loads the file of a function


class PeerProcess:
    """An engine in another process, with regions that it watches over. Killing and stopping it is fine.

    `settings` are those of its engine, `swap` is for swap_transport_for_test, `options` are for its interpreter.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        name: str = "peer",
        swap: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        if getattr(sys.modules.get("__main__"), "_loading", False):
            raise RuntimeError("a peer loads this file: start peers under `if __name__ == '__main__':`, or in a test")
        self.name = name
        self._swap = dict(swap or {})
        self._settings = dict(settings)
        self._options = list(options)
        self._kept: socket.socket | None = None
        if self._settings.get("rpc_server_port") in (None, 0):  # restart() takes it again: nobody may have it meanwhile
            self._kept = keep_port()
            self._settings["rpc_server_port"] = port_of(self._kept)
        self.process = self._start()
        try:
            self.address: str = self._answer()
        except BaseException:
            self.end()  # nobody else has it
            raise

    def _start(self) -> subprocess.Popen[bytes]:
        given = json.dumps({"name": self.name, "settings": self._settings, "swap": self._swap})
        command = [sys.executable, *self._options, "-m", "tent.testing.peer", given]
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
        """Sends kill -9 and waits until it is gone. A stopped one does nothing more."""
        if self.alive:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """kill -STOP; returns when it stands still."""
        if not self.alive:
            raise RuntimeError(f"{self!r} cannot be stopped")
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """kill -CONT."""
        self.process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kills it and starts a new one, without regions, at the same address. Segments of before lead to the old one:
        `pair.segments[0] = pair.engine.open(pair.peer.address)` leads to the new one."""
        self.kill()
        self._close_pipes()
        self.process = self._start()
        self.address = self._answer()

    def region(self, name: str, size: int, seed: int, alignment: int = 0) -> None:
        """Registers a Memory(size, seed, alignment) over there under a name."""
        self.ask("region", name=name, size=size, seed=seed, alignment=alignment)

    def wrong(self, name: str, seed: int | None, or_seed: int | None = None) -> str:
        """Memory.wrong() of a region over there."""
        return str(self.ask("wrong", name=name, seed=seed, or_seed=or_seed))

    def fill(self, name: str, seed: int) -> None:
        """Memory.fill() of a region over there."""
        self.ask("fill", name=name, seed=seed)

    def fence(self, name: str) -> None:
        """Region.fence() of a region over there."""
        self.ask("fence", name=name)

    def close_region(self, name: str) -> None:
        """Region.close() of a region over there."""
        self.ask("close_region", name=name)

    def inject(self, text: str) -> None:
        """Injects faults into its engine, in the language of transports/faulty."""
        self.ask("inject", text=text)

    def struck(self) -> list[Struck]:
        """The faults that were injected into its engine so far, and how often each has struck."""
        return [Struck(*entry) for entry in self.ask("struck")]

    def metrics(self) -> dict[str, float]:
        """The metrics of its engine."""
        found: dict[str, float] = self.ask("metrics")
        return found

    def run(self, function: Callable[Concatenate[There, P], Any], *none: P.args, **arguments: P.kwargs) -> Any:
        """Runs a function of the caller's file over there, and returns its result: function(there, **arguments).

        Example:
            def largest(there, name):
                return max(there.memories[name].view)

            assert pair.peer.run(largest, name="kv") == 255

        Arguments and result are JSON. The file is loaded over there as a module of its own, once, so the function
        stands at its top level, and a program starts its peers below `if __name__ == "__main__":`. It may print: that
        goes to the standard error of this process.
        """
        assert not none, "arguments of run() go by name"
        if not getattr(function, "__qualname__", "").isidentifier():
            raise InvalidArgumentError(f"{function!r} is not found over there: it must be at the top level of a file")
        file = os.path.abspath(function.__code__.co_filename)
        return self.ask("run", file=file, function=function.__name__, arguments=arguments)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Sends one command and returns the answer. An error over there is a RuntimeError here, and so is no whole
        answer within 60 s; that ends the peer."""
        return self._answer(json.dumps({"do": do, **arguments}).encode() + b"\n")

    def _answer(self, command: bytes = b"") -> Any:
        """Returns the answer to a command. A peer gives the first one, its address, unasked."""
        line = b""
        try:
            line = self._line(command)
        except BrokenPipeError:
            raise RuntimeError(f"{self!r} is gone") from None
        finally:
            if not line:  # one that came late would be taken for the answer to the next command
                self.kill()
        if not line:
            raise RuntimeError(f"{self!r} gave no answer")
        answer = json.loads(line)
        if "ok" not in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer["ok"]

    def _line(self, command: bytes) -> bytes:
        """Sends a command and returns the line of its answer, b"" if that has not come whole in its time."""
        assert self.process.stdin and self.process.stdout
        there, back = self.process.stdin.fileno(), self.process.stdout.fileno()
        end = time.monotonic() + ANSWER_SECONDS
        left, line = memoryview(command), bytearray()
        while not line.endswith(b"\n"):
            reads, writes, _ = select.select([back], [there] if left else [], [], max(0.0, end - time.monotonic()))
            if writes:
                left = left[os.write(there, left[: select.PIPE_BUF]) :]  # so many never wait for room
            piece = os.read(back, 1 << 16) if reads else b""
            if not piece and not writes:
                return b""
            line += piece
        return bytes(line)

    def end(self) -> None:
        """Ends it in any state; it is gone afterwards."""
        self.kill()
        self._close_pipes()
        if self._kept:
            self._kept.close()

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()

    def __repr__(self) -> str:
        state = "" if self.alive else f" ended with {self.process.returncode}"
        return f"<PeerProcess {self.name!r} {self.pid}{state}>"


class There:
    """The peer's side of things: its engine, and its memories and regions by name."""

    def __init__(self, engine: tent.Engine) -> None:
        self.engine = engine
        self.memories: dict[str, Memory] = {}
        self.regions: dict[str, tent.Region] = {}
        self._modules: dict[str, dict[str, Any]] = {}

    def region(self, name: str, size: int, seed: int, alignment: int) -> None:
        """Makes a memory and registers it."""
        from .memory import Memory

        self.memories[name] = Memory(size, seed, alignment)
        self.regions[name] = self.engine.register(self.memories[name].view, name=name)

    def run(self, file: str, function: str, arguments: dict[str, Any]) -> Any:
        """Runs a function of a file; its module lives as long as the process."""
        global _loading
        if file not in self._modules:
            _loading = True  # a file that starts peers when it is loaded would start them without end
            try:
                self._modules[file] = runpy.run_path(file, run_name="there")
            finally:
                _loading = False
        return self._modules[file][function](self, **arguments)


def main() -> None:
    """The peer: answers commands until its input ends."""
    import tent

    from .faults import inject, struck, swap_transport_for_test

    given = json.loads(sys.argv[1])
    engine = tent.Engine(given["settings"], name=given["name"])
    for slot, transport in given["swap"].items():
        swap_transport_for_test(engine, slot, transport)
    there = There(engine)
    commands: dict[str, Any] = {
        "region": there.region,
        "wrong": lambda name, seed, or_seed=None: there.memories[name].wrong(seed, or_seed),
        "fill": lambda name, seed: there.memories[name].fill(seed),
        "fence": lambda name: there.regions[name].fence(),
        "close_region": lambda name: there.regions[name].close(),
        "inject": lambda text: inject(engine, text),
        "metrics": engine.metrics,
        "struck": lambda: struck(engine),
        "run": there.run,
        "close": lambda: engine.close(timeout=0),
    }
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of functions, in Python or in C, is no answer
    sys.stdout = sys.stderr
    print(json.dumps({"ok": engine.address}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = json.dumps({"ok": commands[command.pop("do")](**command)})
        except Exception as error:  # also of a result that is no JSON
            answer = json.dumps({"error": f"{type(error).__name__}: {error}"})
        print(answer, file=answers, flush=True)
    engine.close(timeout=0)


if __name__ == "__main__":
    main()
