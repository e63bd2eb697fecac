"""Functions that tests run in a peer's process by PeerProcess.run(): the region there is "kv"."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Sequence

from tent import TentError, Transfer
from tent.testing import There, pattern


def check(there: There, written: Sequence[Sequence[int]] = ()) -> str:
    """Expects [offset, size, seed, start] of the writer's pattern, and returns the first difference."""
    memory = there.memories["kv"]
    for offset, n, theirs, start in written:
        memory.expect(offset, pattern(theirs, start, n))
    return memory.unexpected()


def prints(there: There) -> list[int]:
    """Writes to the standard output as Python does, and as C does."""
    print("by Python")
    os.write(1, b"by C")
    return [1, 2]


def echo(there: There, text: str) -> str:
    """Returns its argument."""
    return text


def forget(there: There, offset: int, n: int, theirs: int) -> str:
    """Takes either the expected bytes or the writer's pattern, byte by byte, and expects them from now on."""
    memory = there.memories["kv"]
    for at in range(offset, offset + n, 4096):
        piece, old = bytes(memory.view[at : at + 4096]), bytes(memory.expected[at : at + 4096])
        new = pattern(theirs, at - offset, 4096)
        if piece not in (old, new) and any(b not in both for b, *both in zip(piece, old, new)):
            return f"bytes at {at} are neither the old nor the new ones"
        memory.expect(at, piece)
    return ""


floods: list[threading.Thread] = []
rounds: list[int] = []
ebbs = threading.Event()


def flood(there: There, target: str, priority: int) -> None:
    """Writes the whole region to a target's, again and again, until the ebb."""
    region = there.regions["kv"]

    def run() -> None:
        with there.engine.open(target) as peer:
            while not ebbs.is_set():
                there.engine.write(region[:], peer["kv"][: region.size], priority=priority).result(60)
                rounds.append(1)

    floods.append(threading.Thread(target=run))
    floods[0].start()


def flooded(there: There) -> int:
    """Returns how often the region was written."""
    return len(rounds)


def ebb(there: There) -> int:
    """Ends the flood, and returns how often the region was written."""
    ebbs.set()
    floods[0].join()
    return len(rounds)


def fork(there: There) -> None:
    """Makes a child with everything of the process but the engine; it ends with the input, which it takes over."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are threads is the point
        if os.fork() == 0:
            while os.read(0, 4096):
                pass
            os._exit(0)


def drain(there: There, n: int, timeout: float = 30) -> list[list[str]]:
    """Waits for n notifications, and returns them with all that have come after them."""
    notes = [there.engine.notifications.get(timeout) for _ in range(n)]
    return [[note.name, note.message, note.peer] for note in notes + there.engine.notifications.drain()]


def write(there: There, target: str, offset: int, n: int, at: int) -> int:
    """Writes n bytes of the region to a target's."""
    with there.engine.open(target) as peer:
        return there.engine.write(there.regions["kv"][offset : offset + n], peer["kv"][at : at + n]).result(30)


begun: list[Transfer] = []


def begin(there: There, target: str, transfers: int) -> None:
    """Begins writes of the whole region to a target's, one behind the other, and waits for none."""
    region, remote = there.regions["kv"], there.engine.open(target)["kv"]
    there.engine.write(region[0:10], remote[0:10]).result(30)  # the way is there
    begun.extend(there.engine.write(region[:], remote[: region.size]) for _ in range(transfers))


def ended(there: There) -> list[list[str]]:
    """Waits for the writes of begin(), and returns code and text of each error, both empty for none."""
    errors = [transfer.exception(30) for transfer in begun]
    begun.clear()
    return [[e.code, str(e)] if isinstance(e, TentError) else ["", ""] for e in errors]


def export(there: There) -> str:
    """Returns a blob for open(), in hexadecimal digits."""
    return there.engine.export().hex()
