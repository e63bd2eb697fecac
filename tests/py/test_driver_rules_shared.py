"""Rules of the CUDA driver about memory that two processes share. See test_driver_rules.py."""

from __future__ import annotations

import textwrap

from gpu import driver, keeps

__all__ = ["driver"]  # the fixture `library`

# The owner of memory: it allocates, gives handles, frees and shows bytes, a line each.
OWNER = """
begin()
for line in sys.stdin:
    verb, *words = line.split()
    n = [int(w) for w in words]
    if verb == "allocate":
        address = allocate(n[0])
        store(address, bytes([n[1]]) * n[0])
        print(address, flush=True)
    elif verb == "handle":
        data = ctypes.create_string_buffer(64)
        print(cu("cuIpcGetMemHandle", data, n[0]), bytes(data).hex(), flush=True)
    elif verb == "free":
        print(cu("cuMemFree_v2", n[0]), flush=True)
    elif verb == "show":
        print(load(n[0], n[1]).hex(), flush=True)
"""

# Its asker, and calls about handles.
ASKER = """
    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_ubyte * 64)]

    class Owner(Other):
        def __init__(self):
            super().__init__(OWNER)
        def allocate(self, size, byte):
            return int(self.ask(f"allocate {size} {byte}"))
        def handle(self, address):
            code, data = self.ask(f"handle {address}").split()
            assert code == "0", code
            return Handle((ctypes.c_ubyte * 64)(*bytes.fromhex(data)))
        def free(self, address):
            return int(self.ask(f"free {address}"))
        def show(self, address, size):
            return bytes.fromhex(self.ask(f"show {address} {size}"))

    def open_handle(handle, flags=1):
        address = c_uint64()
        return cu("cuIpcOpenMemHandle_v2", byref(address), handle, flags), address.value

    def close(address):
        return cu("cuIpcCloseMemHandle", address)

    begin()
"""


def asks(library: str, owner: str, program: str) -> None:
    """Runs a program with rules; OWNER is its text of the other process."""
    keeps(library, f"OWNER = {owner!r}\n{textwrap.dedent(program)}")


def test_legacy_handles(library: str) -> None:
    asks(
        library,
        OWNER,
        ASKER
        + """
    @rules
    def of_this_process():
        data = Handle()
        done("cuIpcGetMemHandle", byref(data), allocate(CHUNK))
        rule("a handle of this process", 201, open_handle(data)[0])

    @rules
    def of_another():
        owner = Owner()
        theirs = owner.allocate(2 * CHUNK, 5)
        handle = owner.handle(theirs)
        report("a handle, and that of the middle", (bytes(handle) == bytes(owner.handle(theirs + CHUNK))))
        for flags in (0, 2, 3):
            rule(f"flags {flags}", 1, open_handle(handle, flags)[0])
        code, at = open_handle(handle)
        rule("a handle of another process", 0, code)
        rule("its bytes", b"\\5" * PAGE, load(at + CHUNK, PAGE))
        rule("opened again", (0, at), open_handle(handle))
        rule("opened by a handle of the middle", (0, at), open_handle(owner.handle(theirs + CHUNK)))
        store(at + 100, b"abc")
        rule("the owner sees what is written", b"\\5abc\\5", owner.show(theirs + 99, 5))
        for name, value in {"type": 2, "device": 0, "legacy": 0, "managed": 0, "handles": 0, "start": at,
                            "size": 2 * CHUNK}.items():
            rule(f"opened: {name}", value, pointer(at + CHUNK, name)[name])
        rule("opened: range", (0, at, 2 * CHUNK), range_of(at + CHUNK))
        rule("a handle of it", 1, cu("cuIpcGetMemHandle", byref(Handle()), at))
        rule("to free it", 1, cu("cuMemFree_v2", at))
        rule("closed in the middle", 1, close(at + PAGE))
        rule("closed, the first of three", 0, close(at))
        rule("closed, the second", 0, close(at))
        rule("it is still there", b"\\5" * PAGE, load(at + CHUNK, PAGE))
        rule("closed, the third", 0, close(at))
        rule("it is gone", 0, pointer(at, "type")["type"])
        rule("closed once more", 1, close(at))
        rule("opened afresh", (0, at), open_handle(handle))
        close(at)
        rule("the owner frees it", 0, owner.free(theirs))
        rule("a handle of freed memory", 400, open_handle(handle)[0])
        owner.kill()
        rule("a handle of a process that has ended", 400, open_handle(handle)[0])

    @rules
    def small():
        owner = Owner()
        theirs = [owner.allocate(size, i + 1) for i, size in enumerate((4096, 100, 70_000))]
        opened = []
        for address, size, byte in zip(theirs, (4096, 100, 70_000), (1, 2, 3)):
            code, at = open_handle(owner.handle(address))
            rule(f"a handle of {size} bytes", 0, code)
            if code == 0:
                rule(f"{size} bytes, at their start", bytes([byte]) * 100, load(at, 100))
                rule(f"{size} bytes, range", (0, at, size), range_of(at))
                opened.append(at)
                report(f"{size} bytes, place in 2 MiB of the owner, and here", (address % CHUNK, at % CHUNK))
        rule("each has its address", len(theirs), len(set(opened)))
        rule("all are closed", [0, 0, 0], [close(at) for at in opened])
        owner.kill()

    @rules
    def in_place_of_older():
        for size in (CHUNK, 16 * CHUNK):
            owner = Owner()
            first = owner.allocate(size, 1)
            code, old = open_handle(owner.handle(first))
            rule(f"{size} bytes: the older memory", 0, code)
            rule(f"{size} bytes: it is freed while it is open", 0, owner.free(first))
            second = owner.allocate(size, 2)
            rule(f"{size} bytes: the address comes again", first, second)
            code, new = open_handle(owner.handle(second))
            rule(f"{size} bytes: new memory in its place, while the older is open", 208, code)
            if code == 0:
                report(f"{size} bytes: both opened", (old, new, load(new, 4)))
                close(new)
            rule(f"{size} bytes: the older is closed", 0, close(old))
            code, new = open_handle(owner.handle(second))
            rule(f"{size} bytes: the new memory then", (0, b"\\2" * 4), (code, load(new, 4) if code == 0 else b""))
            owner.kill()

    @rules
    def of_an_owner_that_has_ended():
        owner = Owner()
        code, at = open_handle(owner.handle(owner.allocate(CHUNK, 6)))
        owner.kill()
        rule("open memory of a process that has ended", 0, code)
        report("it is closed", close(at))

    @rules
    def of_nothing():
        rule("a handle of zeros", 1, open_handle(Handle())[0])
        rule("closing memory of this process", 1, close(allocate()))
    """,
    )


# The owner of two chunks: it exports their descriptors through a socket, shows bytes, and frees them.
EXPORTER = """
import socket
channel = socket.socket(fileno=int(sys.argv[1]))
begin()
at = chunks(2)
for i in range(2):
    store(at + i * CHUNK, bytes([i + 1]) * CHUNK)
for line in sys.stdin:
    verb, *n = line.split()
    if verb == "export":
        handle, fd = c_uint64(), c_int(-1)
        done("cuMemRetainAllocationHandle", byref(handle), at + int(n[0]) * CHUNK)
        code = cu("cuMemExportToShareableHandle", byref(fd), handle, 1, 0)
        done("cuMemRelease", handle)
        socket.send_fds(channel, [b"x"], [fd.value])
        os.close(fd.value)
        print(code, flush=True)
    elif verb == "show":
        print(load(at + int(n[0]), int(n[1])).hex(), flush=True)
    elif verb == "free":
        print(cu("cuMemUnmap", at, 2 * CHUNK), flush=True)
"""


def test_descriptors_of_the_vmm(library: str) -> None:
    asks(
        library,
        EXPORTER,
        """
    import socket

    begin()
    ours, theirs = socket.socketpair()
    owner = Other(OWNER, theirs.fileno())

    def export(chunk):
        code = owner.ask(f"export {chunk}")
        assert code == "0", code
        return socket.recv_fds(ours, 1, 1)[1][0]

    def take(fd, kind=1):
        handle = c_uint64()
        return cu("cuMemImportFromShareableHandle", byref(handle), fd, kind), handle.value

    @rules
    def imported():
        fd = export(1)
        code, handle = take(fd)
        rule("a descriptor", 0, code)
        rule("it stays the importer's to close", True, os.fstat(fd) is not None)
        found = (c_int * 8)()
        done("cuMemGetAllocationPropertiesFromHandle", found, handle)
        rule("type, handle types and place", [1, 1, 1, 0], list(found[:4]))
        rule("the same descriptor again", 0, take(fd)[0])
        os.close(fd)
        rule("a descriptor that is closed", 1, take(fd)[0])
        at = reserve(CHUNK)
        rule("its mapping", 0, cu("cuMemMap", at, CHUNK, 0, handle, 0))
        rule("access", 0, open_to(at, CHUNK))
        rule("its bytes", b"\\2" * PAGE, load(at + PAGE, PAGE))
        store(at, b"abc")
        rule("the owner sees what is written", b"abc", bytes.fromhex(owner.ask(f"show {CHUNK} 3")))
        for name, value in {"type": 2, "device": 0, "context": 0, "legacy": 0, "handles": 1, "start": at,
                            "size": CHUNK}.items():
            rule(f"imported: {name}", value, pointer(at, name)[name])
        rule("imported: range", (0, at, CHUNK), range_of(at))
        rule("a legacy handle of it", 1, cu("cuIpcGetMemHandle", ctypes.create_string_buffer(64), at))
        again = c_int(-1)
        rule("it is exported further", 0, cu("cuMemExportToShareableHandle", byref(again), handle, 1, 0))
        rule("the handle is released, and the mapping stays", 0, cu("cuMemRelease", handle))
        rule("the owner frees the chunks", "0", owner.ask("free"))
        rule("the bytes stay while they are mapped", b"\\2" * PAGE, load(at + PAGE, PAGE))
        owner.kill()
        rule("also when the owner has ended", b"\\2" * PAGE, load(at + PAGE, PAGE))
        code, handle = take(again.value)
        rule("a descriptor of an owner that has ended", 0, code)

    @rules
    def of_nothing():
        with open("/dev/zero", "rb") as file:
            rule("a descriptor of a file", 1, take(file.fileno())[0])
        rule("no descriptor", 1, take(1 << 20)[0])
    """,
    )
