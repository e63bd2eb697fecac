"""A peer that dies is one family of exceptions, whenever it is noticed: at the call, from result(), while opening."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import tent
from tent.testing import Memory, Pair, PeerProcess

WRITERS = 8  # each kill meets every one at another moment of its loop


class Writer(threading.Thread):
    """Moves bytes to a peer, one transfer after the other, until one of the two lines raises."""

    def __init__(self, pair: Pair, region: tent.Region, read: bool, ended: threading.Semaphore) -> None:
        super().__init__(name="writer")
        self.pair, self.region, self.ended = pair, region, ended
        self.move = pair.engine.read if read else pair.engine.write
        self.error: BaseException | None = None
        self.at_call = False

    def run(self) -> None:
        remote = self.pair.segment["kv"]
        try:
            while True:
                self.at_call = True
                transfer = self.move(self.region, remote[0 : self.region.size], timeout=30)
                self.at_call = False
                transfer.result()
                self.ended.release()
        except BaseException as error:
            self.error = error


def killed(rng: random.Random) -> list[Writer]:
    """Runs writers against a peer, and kills it after a random number of transfers."""
    transports = rng.choice((["tcp"], ["shm"], ["tcp", "shm"]))
    patient: dict[str, Any] = {"fence_timeout_host_ms": "20s", "fence_timeout_network_ms": "20s"}  # on a busy machine
    with Pair(
        transports=transports, rails=rng.choice((1, 2)), rate=None, seed=rng.randrange(1 << 30), **patient
    ) as pair:
        pair.peer.region("kv", 1 << 20, seed=7)
        pair.segment.refresh()
        ended = threading.Semaphore(0)
        memories = [Memory(rng.choice((64, 4096, 100_000, 1 << 20)), seed=i) for i in range(WRITERS)]
        with_reads = rng.random() < 0.3
        writers = [
            Writer(pair, pair.engine.register(memory.view), with_reads and i % 2 == 0, ended)
            for i, memory in enumerate(memories)
        ]
        for writer in writers:
            writer.start()
        for _ in range(rng.randrange(60)):
            assert ended.acquire(timeout=30)
        pair.peer.kill()
        for writer in writers:
            writer.join(timeout=40)
            assert not writer.is_alive()
            writer.region.close()
        for memory, writer in zip(memories, writers):
            if writer.move == pair.engine.write:
                memory.check()  # a source is never written
    return writers


@pytest.mark.parametrize("kills", [10, pytest.param(25, marks=pytest.mark.long)])
def test_whatever_a_killed_peer_raises_is_a_transfer_error(seed: int, kills: int) -> None:
    rng = random.Random(seed)
    writers = [writer for _ in range(kills) for writer in killed(rng)]
    assert len(writers) == kills * WRITERS
    for writer in writers:
        error: Any = writer.error
        assert isinstance(error, tent.TransferError) and isinstance(error, ConnectionError), repr(error)
        assert error.peer == writer.pair.peer.address and error.state == tent.TransferStatusEnum.FAILED, repr(error)
        assert error.failed_tasks == ([] if writer.at_call else [0]), repr(error)
        assert not error.dirty, repr(error)  # its process is known to be gone, so nothing can land any more
    assert {writer.at_call for writer in writers} == {False, True}, "the kills met one of the two lines alone"


def test_a_stopped_peer_is_a_transfer_error_and_a_time_out() -> None:
    with Pair() as pair:
        pair.peer.stop()
        with pytest.raises(tent.PeerTimeoutError, match=pair.peer.address) as caught:
            pair.engine.open(pair.peer.address, timeout=0.2)
        assert isinstance(caught.value, tent.TransferError)
        assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, ConnectionError)
        assert caught.value.peer == pair.peer.address and caught.value.code == "PEER_UNREACHABLE"
        pair.peer.resume()


def test_a_restarted_peer_is_a_transfer_error_and_its_new_process_can_be_opened() -> None:
    with Pair(rate=None) as pair:
        pair.peer.region("kv", 4096, seed=7)
        pair.segment.refresh()
        region = pair.engine.register(Memory(4096, seed=1).view)
        remote = pair.segment["kv"]
        pair.engine.write(region, remote).result(10)
        pair.peer.restart()
        pair.peer.region("kv", 4096, seed=8)
        with pytest.raises(tent.TransferError) as caught:
            pair.engine.write(region, remote).result(10)
        assert isinstance(caught.value, (tent.PeerRestartedError, tent.PeerUnreachableError))
        assert pair.peer.wrong("kv", 8) == ""  # nothing has landed in the new one
        with pair.engine.open(pair.peer.address) as again:
            pair.engine.write(region, again["kv"]).result(10)
        assert pair.peer.wrong("kv", 1) == ""
        region.close()


def test_a_host_without_an_address_is_a_transfer_error(engine: tent.Engine) -> None:
    with pytest.raises(tent.PeerUnreachableError, match="cannot be resolved") as caught:
        engine.open("no-such-host.invalid:80")
    assert isinstance(caught.value, tent.TransferError) and isinstance(caught.value, ConnectionError)
    assert not isinstance(caught.value, LookupError)


ASKS = """
import sys, tent
with tent.Engine() as engine, engine.open(sys.argv[1]) as peer:
    print("asks", flush=True)
    sys.stdin.readline()
    print(peer.alive(timeout=2), flush=True)
"""


@pytest.mark.clock
def test_a_stop_of_the_caller_is_no_silence_of_its_peer(peers: Callable[..., PeerProcess]) -> None:
    """Both stand still for longer than the caller's time-out, and the caller goes on first: no answer is there yet."""
    peer = peers(size=4096)
    command, pipe = [sys.executable, "-c", ASKS, peer.address], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin and process.stdout
        try:
            assert process.stdout.readline() == "asks\n"
            peer.stop()
            process.stdin.write("\n")
            process.stdin.flush()
            threading.Event().wait(0.3)  # it is in the call then
            os.kill(process.pid, signal.SIGSTOP)
            threading.Event().wait(2.5)
            os.kill(process.pid, signal.SIGCONT)
            threading.Event().wait(0.2)
            peer.resume()
            assert process.stdout.readline() == "True\n"
        finally:
            peer.resume()
            process.kill()
