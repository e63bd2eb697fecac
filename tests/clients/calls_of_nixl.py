"""A program that makes calls of NIXL, right ones and wrong ones, and prints the outcome of each as a line of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

N, BLOCK, BLOCKS = 1 << 16, 4096, 16

a, b = nixl_agent("a", nixl_agent_config(capture_telemetry=True)), nixl_agent("b", nixl_agent_config())
mine, theirs = np.full(N, 7, np.uint8), np.zeros(N, np.uint8)
here, there = int(mine.ctypes.data), int(theirs.ctypes.data)
of_mine, of_theirs = (
    agent.register_memory([(address, N, 0, "")], "DRAM") for agent, address in ((a, here), (b, there))
)
blocks = [a.get_xfer_descs([(at + i * BLOCK, BLOCK, 0) for i in range(BLOCKS)], "DRAM") for at in (here, there)]


def ended(handle: Any) -> str:
    """Waits for a transfer."""
    state = a.transfer(handle)
    while state == "PROC":
        state = a.check_xfer_state(handle)
    return str(state)


def awaited(look: Callable[[], Any]) -> Any:
    """Looks until there is something."""
    end = time.monotonic() + 10
    while not (found := look()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def ranges(at: int, size: int, n: int = 1) -> Any:
    return a.get_xfer_descs([(at + i * size, size, 0) for i in range(n)], "DRAM")


def strided(count: int) -> Any:
    return np.array([[there, BLOCK, 0, 2 * BLOCK, count]], np.uint64)


def made(op: str = "READ", local: Any = (0,), remote: Any = (0,)) -> Any:
    return a.make_prepped_xfer(op, lists[0], local, lists[1], remote)


def say(name: str, call: Callable[[], Any]) -> None:
    """Prints the result of a call, by its type where that has no text of its own, or the class of its error."""
    try:
        found = call()
        said = repr(found) if isinstance(found, (str, bool, int, dict, type(None))) else type(found).__name__
    except Exception as error:
        said = f"!{type(error).__name__}"
    sys.stdout.write(json.dumps([name, said]) + "\n")
    sys.stdout.flush()


say("a message to nobody", lambda: a.send_notif("b", b"x"))
say("nobody is known", lambda: a.check_remote_metadata("b"))
say("nobody is forgotten", lambda: a.remove_remote_agent("nobody"))
say("nobody is met", lambda: a.make_connection("nobody"))
say("a list of nobody", lambda: a.prep_xfer_dlist("nobody", blocks[1]))
say("a transfer with nobody", lambda: a.initialize_xfer("WRITE", *blocks, "nobody"))
say("metadata of nobody", lambda: a.add_remote_agent(b"rubbish"))
say("an agent is added", lambda: a.add_remote_agent(b.get_agent_metadata()) == b"b")
say("again", lambda: a.add_remote_agent(b.get_agent_metadata()) == b"b")
say("it is known", lambda: a.check_remote_metadata("b"))
say("its ranges are", lambda: a.check_remote_metadata("b", blocks[1]))
say("others are not", lambda: a.check_remote_metadata("b", blocks[0]))
say("lists of two lengths", lambda: a.initialize_xfer("WRITE", blocks[0], ranges(there, BLOCK), "b"))
say("ranges of two lengths", lambda: a.initialize_xfer("WRITE", ranges(here, 100), ranges(there, 99), "b"))
say("behind the end there", lambda: a.initialize_xfer("WRITE", ranges(here, 100), ranges(there + N, 100), "b"))
say("before the begin here", lambda: a.initialize_xfer("WRITE", ranges(here - 100, 100), ranges(there, 100), "b"))

handle = a.initialize_xfer("WRITE", *blocks, "b", b"note")
say("a state before the post", lambda: a.check_xfer_state(handle))
say("telemetry before the post", lambda: a.get_xfer_telemetry(handle))
say("a write", lambda: ended(handle))
say("all bytes", lambda: bool((theirs == 7).all()))
say("its message", lambda: awaited(b.get_new_notifs))
say("its size", lambda: a.get_xfer_telemetry(handle).totalBytes)
say("it is released", lambda: a.release_xfer_handle(handle))
say("and again", lambda: a.release_xfer_handle(handle))

lists = [a.prep_xfer_dlist("", blocks[0]), a.prep_xfer_dlist("b", blocks[1])]
say("a prepared one", lambda: ended(made("WRITE", [0, 5], [3, 2])))
say("lists the wrong way round", lambda: a.make_prepped_xfer("READ", lists[1], [0], lists[0], [0]))
say("an index behind the end", lambda: made(local=[BLOCKS]))
say("a negative index", lambda: made(local=[-1]))
say("indexes of two numbers", lambda: made(local=[0, 1]))
say("no index", lambda: made(local=[], remote=[]))
for kind in (np.int32, np.int64, np.uint64, float):
    say(f"indexes of {kind.__name__}", lambda kind=kind: ended(made(local=np.array([1], kind))))  # type: ignore[misc]
say("a range of indexes", lambda: ended(made(local=range(3), remote=range(3))))
say("a tuple of indexes", lambda: ended(made(local=(0, 1), remote=(1, 0))))
say("a block that is sent twice", lambda: ended(made("WRITE", [0, 0], [1, 2])))
say("a strided list", lambda: a.prep_xfer_dlist("b", strided(8), "DRAM"))
say("a strided list that is too long", lambda: a.prep_xfer_dlist("b", strided(9), "DRAM"))
say("a list as bytes", lambda: a.deserialize_descs(a.get_serialized_descs(blocks[0])) == blocks[0])
say("registrations as bytes", lambda: a.deserialize_descs(a.get_serialized_descs(of_mine)) == of_mine)

kept = made("WRITE", list(range(BLOCKS)), list(range(BLOCKS)))
for released in (*lists, lists[0]):
    say("a list is released", lambda released=released: a.release_dlist_handle(released))  # type: ignore[misc]
say("a transfer of a released list", made)
for byte in (8, 9):
    mine[:] = byte
    say("a transfer that was made before", lambda: ended(kept))
    say("its bytes", lambda: sorted(set(theirs.tolist())) == [byte])

say("a text", lambda: a.send_notif("b", "text"))
say("it comes", lambda: awaited(b.get_new_notifs))
say("a tag", lambda: (a.send_notif("b", b"abc123"), awaited(lambda: b.check_remote_xfer_done("a", b"abc")))[1])
say("the tag again", lambda: b.check_remote_xfer_done("a", b"abc"))
say("within itself", lambda: a.initialize_xfer("WRITE", blocks[0], blocks[0], "a"))
say("partial metadata", lambda: len(b.get_partial_agent_metadata(of_theirs, True)) > 0)
say("of memory that is not there", lambda: b.get_partial_agent_metadata(of_mine, True))
say("memory of another agent", lambda: a.deregister_memory(of_theirs))
say("memory is taken back", lambda: a.deregister_memory(of_mine))
say("and again from there", lambda: a.deregister_memory(of_mine))
say("no bytes are registered", lambda: a.register_memory([(here, 0, 0, "")], "DRAM"))
say("a backend that is not there", lambda: a.create_backend("NOPE"))
say("its parameters", lambda: len(a.get_plugin_params("NOPE")))
say("an agent is forgotten", lambda: a.remove_remote_agent("b"))
say("a message behind that", lambda: a.send_notif("b", b"x"))
os._exit(0)  # NIXL's end may not be one
