"""The side of a program in the tests of the driver's rules: calls by name, and rules that are kept or broken.

A program says each rule with the driver's answer and goes on behind a broken one; finish() ends it. Nothing of tent is
loaded. A hang ends the process with the place (LIMIT).
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64
from pathlib import Path

LIMIT = 100  # seconds of a program
PATIENCE = 20  # seconds for an answer, or for the end of work
BRIEFLY = 3  # seconds in which a call that waits for nothing has returned
MOMENT = 0.3  # seconds in which a call that waits for work has surely not returned
CHUNK = 2 << 20
PAGE = 4096
SIZE = 1 << 16
KEPT, BROKEN, REPORT = "kept", "BROKEN", "report"

faulthandler.dump_traceback_later(LIMIT, exit=True)
gpu = ctypes.CDLL(os.environ["TENT_LIBCUDA"])
_broken = 0


def cu(name: str, *arguments: object) -> int:
    """Calls the driver. Every integer is passed with 64 bits, which all its integers and addresses take here."""
    return int(getattr(gpu, name)(*(c_uint64(a) if isinstance(a, int) else a for a in arguments)))


def done(name: str, *arguments: object) -> None:
    """A call that must succeed for the rules behind it."""
    code = cu(name, *arguments)
    if code:
        raise AssertionError(f"{name} gives {code}")


def rule(name: str, expected: object, says: object) -> None:
    global _broken
    if kept := says == expected:
        print(f"{KEPT}: {name}: {says}", flush=True)
    else:
        print(f"{BROKEN}: {name}: expected {expected}, the driver says {says}", flush=True)
    _broken += not kept


def report(name: str, says: object) -> None:
    """Tells something that drivers do not agree about."""
    print(f"{REPORT}: {name}: {says}", flush=True)


def rules(check: Callable[[], None]) -> None:
    """Carries a group of rules out; an error in one of them leaves the groups behind it alone."""
    global _broken
    try:
        check()
    except Exception as error:
        _broken += 1
        at = traceback.extract_tb(error.__traceback__)[-1].lineno
        print(f"{BROKEN}: {check.__name__}: {type(error).__name__}: {error}, line {at}", flush=True)


def finish() -> None:
    """Ends the program at once: no library looks for things that are left open."""
    sys.stdout.flush()
    os._exit(_broken > 0)


# Devices, contexts and memory.


def count() -> int:
    n = c_int()
    done("cuDeviceGetCount", byref(n))
    return n.value


def begin(device: int = 0) -> int:
    """Makes the primary context of a device current, and returns it."""
    done("cuInit", 0)
    context = c_uint64()
    done("cuDevicePrimaryCtxRetain", byref(context), device)
    done("cuCtxSetCurrent", context)
    return context.value


def attribute(which: int, device: int = 0) -> int:
    value = c_int(-1)
    done("cuDeviceGetAttribute", byref(value), which, device)
    return value.value


def allocate(size: int = SIZE) -> int:
    address = c_uint64()
    done("cuMemAlloc_v2", byref(address), size)
    return address.value


def pinned(size: int = PAGE) -> int:
    address = c_uint64()
    done("cuMemHostAlloc", byref(address), size, 1)
    return address.value


def stream() -> int:
    made = c_uint64()
    done("cuStreamCreate", byref(made), 1)
    return made.value


def event() -> int:
    made = c_uint64()
    done("cuEventCreate", byref(made), 2)
    return made.value


def range_of(address: int) -> tuple[int, int, int]:
    """The result of cuMemGetAddressRange_v2, and the range."""
    base, size = c_uint64(), c_size_t()
    return cu("cuMemGetAddressRange_v2", byref(base), byref(size), address), base.value, size.value


POINTER = {"context": 1, "type": 2, "buffer": 7, "managed": 8, "device": 9, "legacy": 10, "start": 11, "size": 12,
           "handles": 14, "pool": 17}  # fmt: skip
WIDTH = {"type": 4, "managed": 4, "device": 4, "legacy": 4, "handles": 8}


def pointer(address: int, *names: str) -> dict[str, int]:
    """Attributes by the plural call, which must succeed."""
    into = [c_uint64(2**64 - 1) for _ in names]  # so that a value is as wide as the driver writes it
    which = (c_int * len(names))(*(POINTER[name] for name in names))
    at = (ctypes.c_void_p * len(names))(*(ctypes.addressof(x) for x in into))
    done("cuPointerGetAttributes", len(names), which, at, address)
    found = {}
    for name, value in zip(names, into):
        width = WIDTH.get(name, 8)
        found[name] = int.from_bytes(bytes(value)[:width], "little", signed=name == "device")
    return found


def single(address: int, name: str) -> int:
    """The result of the singular call."""
    return cu("cuPointerGetAttribute", byref(c_uint64()), POINTER[name], address)


def buffer(size: int = SIZE) -> tuple[ctypes.Array[ctypes.c_char], int]:
    """Memory of the host that begins with a page and was touched, and its address. The first keeps it."""
    data = ctypes.create_string_buffer(size + PAGE)
    return data, (ctypes.addressof(data) + PAGE - 1) // PAGE * PAGE


def load(address: int, size: int) -> bytes:
    """Bytes of a device, by a copy that is waited for."""
    into = ctypes.create_string_buffer(size)
    done("cuMemcpyAsync", ctypes.addressof(into), address, size, 0)
    done("cuStreamSynchronize", 0)
    return into.raw


def store(address: int, data: bytes) -> None:
    source = ctypes.create_string_buffer(data, len(data))
    done("cuMemcpyAsync", address, ctypes.addressof(source), len(data), 0)
    done("cuStreamSynchronize", 0)


# Memory of the VMM.


def properties(types: int = 1, device: int = 0) -> ctypes.Array[c_int]:
    """CUmemAllocationProp."""
    return (c_int * 8)(1, types, 1, device)


def create(size: int = CHUNK, types: int = 1) -> int:
    handle = c_uint64()
    done("cuMemCreate", byref(handle), size, properties(types), 0)
    return handle.value


def reserve(size: int) -> int:
    address = c_uint64()
    done("cuMemAddressReserve", byref(address), size, 0, 0, 0)
    return address.value


def open_to(address: int, size: int) -> int:
    """cuMemSetAccess for device 0."""
    return cu("cuMemSetAccess", address, size, (c_int * 3)(1, 0, 3), 1)


def chunks(n: int, types: int = 1) -> int:
    """Chunks side by side in one reservation, with access; only their mappings hold them."""
    at = reserve(n * CHUNK)
    for i in range(n):
        handle = create(types=types)
        done("cuMemMap", at + i * CHUNK, CHUNK, 0, handle, 0)
        done("cuMemRelease", handle)
    assert open_to(at, n * CHUNK) == 0
    return at


# Work that stands still until the program lets it go.


class Stopped:
    """A stop in a stream: it waits for a word of pinned memory. To let it go takes no call of the driver."""

    def __init__(self, on: int) -> None:
        self._word = c_uint.from_address(address := pinned())
        self._word.value = 0
        done("cuStreamWaitValue32_v2", on, address, 1, 0)

    def go(self) -> None:
        self._word.value = 1


def passes(on: int) -> bool:
    """A stream comes to its end."""
    end = time.monotonic() + PATIENCE
    while (code := cu("cuStreamQuery", on)) == 600 and time.monotonic() < end:
        pass
    return code == 0


def stands(on: int) -> bool:
    """A stream has work left for a moment."""
    end = time.monotonic() + MOMENT
    while time.monotonic() < end:
        if cu("cuStreamQuery", on) != 600:
            return False
    return True


WAITS, AT_ONCE = "waits", "returns at once"


def behind(name: str, expected: str, call: Callable[[int], int]) -> None:
    """A rule: a call of another thread waits for a stream that stands still, which it gets, or returns at once."""
    on = stream()
    stop, result, context = Stopped(on), [], c_uint64()
    done("cuCtxGetCurrent", byref(context))

    def run() -> None:
        done("cuCtxSetCurrent", context)
        result.append(call(on))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(MOMENT if expected == WAITS else BRIEFLY)
    says = WAITS if thread.is_alive() else AT_ONCE
    stop.go()
    thread.join(PATIENCE)
    if result != [0] or not passes(on):
        says += f", with {result}"
    rule(name, expected, says)


class Other:
    """Another process, with the rest of a program's text. It is asked with lines, and answers each with one."""

    def __init__(self, text: str, *fds: int) -> None:
        head = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom driver_side import *\n"
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-c", head + text, *map(str, fds)], stdin=pipe, stdout=pipe, text=True, pass_fds=fds
        )

    def ask(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        watch = threading.Timer(PATIENCE, self._process.kill)
        watch.start()
        print(line, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline().strip()
        watch.cancel()
        assert answer, f"the other process has ended at {line!r}"
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
