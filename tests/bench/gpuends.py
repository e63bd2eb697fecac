"""Two processes with a cache each, on GPUs, and a library that writes the pages of one into the other.

    gpuends.py LIBRARY LAYERS PAGES ORDINAL

LIBRARY is "tent", "tent by a kernel", or a module with NIXL's calls. A process says its card, and then carries out
lines of JSON. Both ends prepare all that can be prepared: regions, descriptor lists, handles. The time is that of one
call, and of the wait for its end.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any, Protocol

from cudadriver import Driver
from gpulayers import PAGE, Layers, Shape

ALONE: dict[str, object] = {"transports/nvlink/enable": True, "transports/shm/enable": False}
KERNEL = ALONE | {"transports/nvlink/copy_kernel": True}
LIMIT = 60  # seconds for one transfer
PATIENCE = 300  # seconds for one answer
ANSWER = "answer "  # begins a line of ours: libraries print lines of their own


class EndError(RuntimeError):
    """An end that is gone, with its last words."""


class Library(Protocol):
    """The face of a library: this process's layers for the other end, and one move of pages to there."""

    def card(self) -> dict[str, Any]: ...
    def connect(self, card: dict[str, Any], src: list[int], dst: list[int]) -> str:
        """Prepares the move of pages src to pages dst of the other end, and says by which way."""

    def move(self) -> None: ...


class Tent:
    def __init__(self, layers: Layers, settings: dict[str, object]) -> None:
        import tent

        size = layers.shape.layer_bytes
        self.engine = tent.Engine(settings)
        self.regions = [self.engine.register((a, size), name=f"layer{i}") for i, a in enumerate(layers.addresses)]
        self.grid = self.engine.pages(self.regions, PAGE)

    def card(self) -> dict[str, Any]:
        return {"address": self.engine.address}

    def connect(self, card: dict[str, Any], src: list[int], dst: list[int]) -> str:
        peer = self.engine.open(card["address"])
        theirs = [peer[f"layer{i}"] for i in range(len(self.regions))]
        self.remote, self.src, self.dst = peer.pages(theirs, PAGE), src, dst
        return str(self.engine.explain(self.regions[0], theirs[0])["taken"])

    def move(self) -> None:
        self.engine.write_pages(self.grid, self.src, self.remote, self.dst).result(LIMIT)


class Nixl:
    """NIXL's agent with UCX, which chooses its way by itself: cuda_ipc between GPUs of one host."""

    def __init__(self, module: str, layers: Layers) -> None:
        nixl: Any = importlib.import_module(module)
        self.addresses, self.ordinal = layers.addresses, layers.driver.ordinal
        self.agent: Any = nixl.nixl_agent(f"end{os.getpid()}", nixl.nixl_agent_config(backends=["UCX"]))
        size = layers.shape.layer_bytes
        self.agent.register_memory([(a, size, self.ordinal, f"layer{i}") for i, a in enumerate(self.addresses)], "VRAM")

    def card(self) -> dict[str, Any]:
        metadata = self.agent.get_agent_metadata().hex()
        return {"metadata": metadata, "addresses": self.addresses, "ordinal": self.ordinal}

    def connect(self, card: dict[str, Any], src: list[int], dst: list[int]) -> str:
        peer = self.agent.add_remote_agent(bytes.fromhex(card["metadata"]))
        here = [(a + s * PAGE, PAGE, self.ordinal) for a in self.addresses for s in src]
        there = [(a + d * PAGE, PAGE, card["ordinal"]) for a in card["addresses"] for d in dst]
        lists = (self.agent.get_xfer_descs(rows, "VRAM") for rows in (here, there))
        self.handle = self.agent.initialize_xfer("WRITE", *lists, peer)
        return "UCX"

    def move(self) -> None:
        state = self.agent.transfer(self.handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(self.handle)
        if state != "DONE":
            raise RuntimeError(f"the transfer ended as {state}")


class End:
    """One of the processes, for the one that compares."""

    def __init__(self, library: str, shape: Shape, ordinal: int) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, __file__, library, str(shape.layers), str(shape.pages), str(ordinal)]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self._words = ""  # the last line of the process that is none of its answers
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        try:
            self.card = self._answer()
        except EndError:
            self.close()
            raise

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._words = line.strip() or self._words

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        watch = threading.Timer(PATIENCE, self._process.kill)  # a library that hangs
        watch.start()
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                watch.cancel()
                return json.loads(line.removeprefix(ANSWER))
        watch.cancel()
        self._process.wait()
        self._listener.join()
        raise EndError(self._words or f"the process ended with {self._process.returncode}")

    def ask(self, verb: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        print(json.dumps([verb, *arguments]), file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def answer(value: object) -> None:
    print(ANSWER + json.dumps(value), flush=True)


def main() -> None:
    name, layers_n, pages, ordinal = sys.argv[1:]
    layers = Layers(Driver(int(ordinal)), Shape(int(layers_n), int(pages)))
    ours = {"tent": ALONE, "tent by a kernel": KERNEL}
    library: Library = Tent(layers, ours[name]) if name in ours else Nixl(name, layers)
    answer(library.card())
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        if verb == "fill":
            layers.fill(*arguments)
            answer(None)
        elif verb == "digests":
            answer(layers.digests())
        elif verb == "connect":
            answer(library.connect(*arguments))
        elif verb == "move":
            layers.driver.enter()
            began = time.perf_counter()
            library.move()
            answer(time.perf_counter() - began)


if __name__ == "__main__":
    main()
