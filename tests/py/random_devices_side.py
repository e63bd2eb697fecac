"""The functions of test_random_devices.py in its processes, by PeerProcess.run(), over an emulated driver."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from typing import Any

import tent
from tent.testing import There

BAND, PAGE, CHUNK = 4096, 4096, 2 << 20  # bytes beside a region that nobody may touch; of a page; of a chunk of the VMM
CHUNKS = {"chunks": 1, "fabric": 9}  # the types of handles that chunks can be shared by
HOST = ("host", "pinned", "acl")  # kinds of memory that the processor touches
SHARED_ANONYMOUS, FIXED = 0x21, 0x10

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
gpu: Any = None  # in the process of the test, which only names the functions, and where the other one is emulated
npu: Any = None
if __name__ == "there" and (library := os.environ.get("TENT_LIBASCENDCL")):
    npu = ctypes.CDLL(library)
    npu.fakeacl_pinned.restype = ctypes.c_uint64
    assert npu.fakeacl_enter(0) == 0
elif __name__ == "there":
    gpu = ctypes.CDLL(os.environ["TENT_LIBCUDA"])
    gpu.fakecuda_chunks.restype = gpu.fakecuda_stream.restype = ctypes.c_uint64
    assert gpu.cuInit(0) == 0
    for device in range(2):  # the contexts of the program last as long as the process
        assert gpu.fakecuda_enter(ctypes.c_uint64(device)) == 0

segments: dict[str, tent.Segment] = {}
remotes: dict[str, Any] = {}  # by "address/name", as the segment of now has them
regions: dict[str, tent.Region] = {}
memories: dict[str, tuple[str, int, int]] = {}  # kind, address and bytes around a region, by its name
transfers: dict[int, tent.Transfer] = {}
churning: list[Any] = []  # a thread, and its failures


def cu(name: str, *arguments: Any) -> int:
    """Calls the library. Each integer is passed with 64 bits, which all its integers and addresses take."""
    return int(getattr(gpu, name)(*(ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments)))


@contextlib.contextmanager
def on(device: int) -> Iterator[None]:
    """Makes a device current on this thread."""
    assert cu("fakecuda_enter", device) == 0
    yield
    assert gpu.fakecuda_enter(-1) == 0


def pages(size: int, at: int = 0) -> int:
    """Maps pages of the host, in place of others where an address is given."""
    flags = SHARED_ANONYMOUS | (FIXED if at else 0)
    found = libc.mmap(ctypes.c_void_p(at or None), ctypes.c_size_t(size), 3, flags, -1, ctypes.c_long(0))
    assert found and found != ctypes.c_void_p(-1).value, "mmap"
    return int(found)


def whole(size: int) -> int:
    return (size + 2 * BAND + PAGE - 1) // PAGE * PAGE


def allocate(kind: str, size: int) -> int:
    """Takes memory of a kind, "legacy:0" for example, and returns its address, 0 where the driver has none."""
    sort, _, device = kind.partition(":")
    if sort == "legacy":
        at = ctypes.c_uint64()
        with on(int(device)):
            return at.value if cu("cuMemAlloc_v2", ctypes.byref(at), whole(size)) == 0 else 0
    if sort in CHUNKS:
        types = ctypes.c_uint64(CHUNKS[sort])
        return int(gpu.fakecuda_chunks(ctypes.c_uint64(int(device)), ctypes.c_uint64(count(size)), types))
    if sort == "npu":
        found = ctypes.c_void_p()
        assert npu.fakeacl_enter(int(device)) == 0
        return found.value or 0 if npu.aclrtMalloc(ctypes.byref(found), ctypes.c_size_t(whole(size)), 1) == 0 else 0
    if sort == "acl":
        return int(npu.fakeacl_pinned(ctypes.c_uint64(whole(size))))
    at_host = pages(whole(size))
    if sort == "pinned":
        with on(0):
            cu("cuMemHostRegister_v2", at_host, whole(size), 1)  # in vain after a fault: then it is not pinned
    return at_host


def count(size: int) -> int:
    return -(-whole(size) // CHUNK)


def give_back(kind: str, address: int, size: int) -> None:
    """Frees memory. Of a device that is lost it stays."""
    sort, _, device = kind.partition(":")
    if sort == "legacy":
        with on(int(device)):
            cu("cuMemFree_v2", address)
    elif sort in CHUNKS:
        cu("fakecuda_free_chunks", address, count(size))
    elif sort == "npu":
        npu.aclrtFree(ctypes.c_void_p(address))
    elif sort == "acl":
        npu.fakeacl_unpin(ctypes.c_uint64(address))
    else:
        if sort == "pinned":
            with on(0):
                cu("cuMemHostUnregister", address)
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(whole(size)))


def offer(there: There, name: str, kind: str, size: int) -> str:
    """Registers memory that is there already, or new one. Returns why the driver refuses, or nothing."""
    if name not in memories:
        address = allocate(kind, size)
        if not address:
            return f"no memory of {kind}"
        memories[name] = (kind, address, size)
    kind, address, size = memories[name]
    try:
        regions[name] = there.engine.register((address + BAND, size), name=name)
    except tent.TentError as error:
        give_back(*memories.pop(name))
        return f"{kind}: {error}"
    return ""


def close(there: There, name: str, free: bool, exchange: bool) -> None:
    """Closes a region. Its memory goes, or other pages come in its place, or it stays."""
    regions.pop(name).close(30)
    kind, address, size = memories[name]
    if free:
        give_back(*memories.pop(name))
    elif exchange and kind == "host":
        pages(whole(size), address)


def fence(there: There, name: str) -> None:
    regions[name].fence(timeout=30)


def load(there: There, name: str) -> str:
    """The bytes of memory, with those beside its region."""
    kind, address, size = memories[name]
    data = ctypes.create_string_buffer(size + 2 * BAND)
    if kind in HOST:
        ctypes.memmove(data, address, len(data))
    else:
        peek(data, address, len(data), 0)
    return base64.b64encode(data.raw).decode()


def peek(data: Any, address: int, size: int, store: int) -> None:
    """Copies bytes out of memory of a device, or into it."""
    call = npu.fakeacl_peek if npu else gpu.fakecuda_peek
    assert call(data, ctypes.c_uint64(address), ctypes.c_uint64(size), store) == 0


def store(there: There, name: str, offset: int, data: str) -> None:
    """Writes bytes, from the first one before the band on."""
    kind, address, _ = memories[name]
    bytes_ = base64.b64decode(data)
    if kind in HOST:
        ctypes.memmove(address + offset, bytes_, len(bytes_))
    else:
        peek(bytes_, address + offset, len(bytes_), 1)


def fault(there: There, call: str, nth: int, code: int) -> None:
    if npu:
        npu.fakeacl_inject(call.encode(), ctypes.c_long(nth), code)
    else:
        gpu.fakecuda_inject(call.encode(), ctypes.c_long(nth), code, 0)


def lose(there: There, device: int) -> None:
    assert cu("fakecuda_reset", device) == 0


def meet(there: There, address: str) -> None:
    """Opens a peer anew, and waits for a rail."""
    if old := segments.pop(address, None):
        old.close()
    for key in [key for key in remotes if key.startswith(f"{address}/")]:
        del remotes[key]
    segments[address] = there.engine.open(address, timeout=30)
    segments[address].connect(30)


def begin(
    there: There, number: int, op: str, names: tuple[str, str], address: str, moves: list[tuple[int, int, int]],
    terms: dict[str, Any], anew: bool, work: int, holds: bool,
) -> str:  # fmt: skip
    """Begins a transfer of (offset here, offset there, length), and returns the code of an error of the call. With
    work it comes behind a piece of work of a stream, which fills the source; with holds a stream waits for it."""
    key = f"{address}/{names[1]}"
    try:
        if anew:
            remotes[key] = segments[address].refresh()[names[1]]
        if work:
            with on(0):
                terms["stream"] = gpu.fakecuda_stream()
                for here, _, length in moves:
                    at = memories[names[0]][1] + BAND + here
                    assert cu("fakecuda_work", at, work, length, terms["stream"]) == 0
        move = there.engine.write_ranges if op == "write" else there.engine.read_ranges
        near, far, lengths = zip(*moves)
        transfers[number] = move(regions[names[0]], near, remotes[key], far, lengths, **terms)
    except tent.TentError as error:
        return error.code
    if holds:
        with on(0), contextlib.suppress(tent.TentError):  # after a fault the driver has no wait
            transfers[number].wait_on(gpu.fakecuda_stream())
    return ""


def cancel(there: There, number: int) -> None:
    transfers[number].cancel()


def outcome(there: There, number: int) -> tuple[str, bool]:
    """Waits for a transfer, and returns the code of its error and whether it is dirty."""
    error = transfers.pop(number).exception(30)
    return ("", False) if error is None else (error.code, error.dirty)


def churn(there: There, device: int, turns: int) -> None:
    """Begins to register memory of the host in a thread, again and again at one address with other pages each time."""
    size = 3 * PAGE
    target, at = allocate(f"legacy:{device}", size), pages(whole(size))
    failed: list[str] = []

    def turn(number: int, into: tent.Region) -> None:
        pages(whole(size), at)
        want = bytes([number % 251 + 1]) * size
        ctypes.memmove(at + BAND, want, size)
        with there.engine.register((at + BAND, size)) as source:
            there.engine.write(source, into).result(30)
        got = ctypes.create_string_buffer(size)
        assert cu("fakecuda_peek", got, target + BAND, size, 0) == 0
        if got.raw != want:
            failed.append(f"WRONG: turn {number} has the bytes {set(got.raw)} instead of {want[0]}")

    def run() -> None:
        try:
            with there.engine.register((target + BAND, size), name="churned") as into:
                for number in range(turns):
                    try:
                        turn(number, into)
                    except tent.TentError as error:
                        failed.append(error.code)
        except Exception as error:
            failed.append(repr(error))

    thread = threading.Thread(target=run)
    churning[:] = [thread, failed]
    thread.start()


def churned(there: There) -> list[str]:
    """Waits for the thread, and returns its failures."""
    thread, failed = churning
    thread.join(50)
    assert not thread.is_alive()
    return list(failed)
