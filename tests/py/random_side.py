"""The functions of test_random_processes.py in its processes, by PeerProcess.run()."""

from __future__ import annotations

import ctypes
from typing import Any

import tent
from tent.testing import There

segments: dict[str, tent.Segment] = {}
remotes: dict[str, Any] = {}  # by "address/name", as the segment of now has them
regions: dict[str, tent.Region] = {}
buffers: dict[str, Any] = {}
transfers: dict[int, tent.Transfer] = {}


def offer(there: There, name: str, size: int, own: bool) -> int:
    """Offers memory, of tent or of the program, and returns its address. That of the program comes again."""
    if own:
        buffer = buffers.setdefault(name, (ctypes.c_char * size)())
        regions[name] = there.engine.register(buffer, name=name)
    else:
        regions[name] = there.engine.allocate(size, name=name)
    return regions[name].address


def close(there: There, name: str) -> None:
    regions.pop(name).close(30)


def fence(there: There, name: str) -> None:
    regions[name].fence(timeout=30)


def meet(there: There, address: str) -> None:
    """Opens a peer anew, and waits for a rail: transfers from before that may fall to a fence."""
    if old := segments.pop(address, None):
        old.close()
    for key in [key for key in remotes if key.startswith(f"{address}/")]:
        del remotes[key]
    segments[address] = there.engine.open(address, timeout=30)
    segments[address].connect(30)


def begin(
    there: There, number: int, op: str, names: tuple[str, str], address: str, moves: list[tuple[int, int, int]],
    terms: dict[str, Any], anew: bool,
) -> str:  # fmt: skip
    """Begins a transfer of (offset here, offset there, length), and returns the code of an error of the call. A remote
    region is that of its last use, unless it is to be asked for anew."""
    key = f"{address}/{names[1]}"
    try:
        if anew:
            remotes[key] = segments[address].refresh()[names[1]]
        move = there.engine.write_ranges if op == "write" else there.engine.read_ranges
        here, far, lengths = zip(*moves)
        transfers[number] = move(regions[names[0]], here, remotes[key], far, lengths, **terms)
    except tent.TentError as error:
        return error.code
    return ""


def cancel(there: There, number: int) -> None:
    transfers[number].cancel()


def outcome(there: There, number: int) -> tuple[str, bool]:
    """Waits for a transfer, and returns the code of its error and whether it is dirty."""
    error = transfers.pop(number).exception(30)
    return ("", False) if error is None else (error.code, error.dirty)
