"""Rules of the CUDA driver that the emulated one keeps: tests/fakes/cuda/doc.go has them with their sources.

With TENT_REAL_GPU=1 the driver of the machine is asked. A rule that it does not keep fails with its answer, and so the
emulation is mended. TENT_DRIVER_REPORT names a file for all lines, also those of rules that are kept. Rules of streams
are in test_driver_rules_work.py, those between processes in test_driver_rules_shared.py.
"""

from __future__ import annotations

import pytest
from gpu import driver, keeps

__all__ = ["driver"]  # the fixture `library`


def test_calls_before_the_start_and_without_a_context(library: str) -> None:
    keeps(
        library,
        """
    @rules
    def before_the_start():
        n = c_int()
        rule("cuDriverGetVersion before cuInit", 0, cu("cuDriverGetVersion", byref(n)))
        report("version", n.value)
        out = c_uint64()
        for name, arguments in {"cuDeviceGetCount": (byref(n),), "cuDevicePrimaryCtxRetain": (byref(out), 0),
                                "cuMemAlloc_v2": (byref(out), SIZE), "cuCtxGetCurrent": (byref(out),),
                                "cuCtxGetDevice": (byref(n),), "cuDeviceGet": (byref(n), 0)}.items():
            rule(f"{name} before cuInit", 3, cu(name, *arguments))
        rule("cuInit with flags", 1, cu("cuInit", 1))
        rule("cuInit", 0, cu("cuInit", 0))
        rule("cuInit once more", 0, cu("cuInit", 0))

    @rules
    def without_a_context():
        begin()
        address, host, kept, freed = allocate(), pinned(), buffer(), (allocate(), pinned())
        made, mark = stream(), event()
        none, out, n, size = c_uint64(1), c_uint64(), c_int(), c_size_t()
        rule("cuCtxSetCurrent with NULL", 0, cu("cuCtxSetCurrent", 0))
        rule("cuCtxGetCurrent without one", (0, 0), (cu("cuCtxGetCurrent", byref(none)), none.value))
        handle = ctypes.create_string_buffer(64)
        for name, arguments in {
            "cuCtxGetDevice": (byref(n),), "cuMemAlloc_v2": (byref(out), SIZE), "cuMemFree_v2": (freed[0],),
            "cuMemHostAlloc": (byref(out), PAGE, 1), "cuMemFreeHost": (freed[1],), "cuStreamCreate": (byref(out), 1),
            "cuEventCreate": (byref(out), 2), "cuMemGetInfo_v2": (byref(size), byref(c_size_t())),
            "cuMemGetAddressRange_v2": (byref(out), byref(size), address), "cuIpcGetMemHandle": (handle, address),
            "cuMemHostRegister_v2": (kept[1], PAGE, 1), "cuStreamQuery": (0,), "cuStreamSynchronize": (0,),
            "cuMemcpyAsync": (address, address + PAGE, PAGE, 0), "cuCtxPopCurrent_v2": (byref(out),),
            "cuMemHostGetDevicePointer_v2": (byref(out), host, 0), "cuFlushGPUDirectRDMAWrites": (0, 100),
            "cuMemGetHandleForAddressRange": (byref(n), address, PAGE, 1, 0), "cuStreamGetCtx": (0, byref(out)),
        }.items():
            rule(f"{name} without a context", 201, cu(name, *arguments))
        for name, arguments in {"cuEventQuery": (mark,), "cuEventDestroy_v2": (mark,),
                                "cuStreamGetCtx": (made, byref(out)),
                                "cuMemCreate": (byref(out), CHUNK, properties(), 0),
                                "cuMemAddressReserve": (byref(out), CHUNK, 0, 0, 0)}.items():
            rule(f"{name} needs no context", 0, cu(name, *arguments))
        rule("attributes of memory need no context", 2, pointer(address, "type")["type"])
        for name, arguments in {"cuStreamQuery": (made,), "cuStreamSynchronize": (made,),
                                "cuMemcpyAsync": (address, address + PAGE, PAGE, made)}.items():
            rule(f"{name} of a stream, without a context", 201, cu(name, *arguments))
    """,
    )


def test_names_numbers_and_attributes(library: str) -> None:
    keeps(
        library,
        """
    @rules
    def names():
        begin()
        version, text = c_int(), ctypes.c_char_p()
        done("cuDriverGetVersion", byref(version))
        for name, since in {"cuMemcpyBatchAsync": 12080, "cuMemcpyBatchAsync_v2": 13000}.items():
            rule(f"{name} is there", version.value >= since, hasattr(gpu, name))
        rule("an unknown symbol is there", False, hasattr(gpu, "cuNoSuchCall"))
        rule("the text of an unknown error", (1, None), (cu("cuGetErrorName", 12345, byref(text)), text.value))
        found, status = c_uint64(1), c_int()
        code = cu("cuGetProcAddress_v2", b"cuNoSuchCall", byref(found), 12000, 0, byref(status))
        rule("cuGetProcAddress_v2 of an unknown name", (0, 0, 1), (code, found.value, status.value))
        n, out = c_int(), c_uint64()
        last = count() - 1
        rule("cuDeviceGet behind the last", 101, cu("cuDeviceGet", byref(n), last + 1))
        rule("cuDevicePrimaryCtxRetain behind the last", 101, cu("cuDevicePrimaryCtxRetain", byref(out), last + 1))
        rule("cuDeviceGetAttribute behind the last", 101, cu("cuDeviceGetAttribute", byref(n), 1, last + 1))
        rule("a device as its own peer", (0, 0), (cu("cuDeviceCanAccessPeer", byref(n), 0, 0), n.value))
        rule("a peer behind the last", 101, cu("cuDeviceCanAccessPeer", byref(n), 0, last + 1))

    @rules
    def attributes():
        for which, what in {41: "unified addresses", 102: "VMM", 103: "descriptors"}.items():
            rule(f"attribute {which}: {what}", 1, attribute(which))
        for which, what in {40: "copy engines", 75: "major capability", 91: "registered memory has one address",
                            110: "GPUDirect RDMA with VMM", 116: "GPUDirect RDMA", 117: "flush of writes",
                            118: "order of writes", 124: "dma-buf", 128: "fabric handles", 83: "integrated",
                            88: "pageable memory", 100: "host page tables"}.items():
            report(f"attribute {which}: {what}", attribute(which))

    @rules
    def flush():
        host = attribute(117) & 1
        for scope in (100, 200):
            name = f"cuFlushGPUDirectRDMAWrites to {scope}"
            rule(name, 0 if host else 801, cu("cuFlushGPUDirectRDMAWrites", 0, scope))
        rule("a flush of another target", 1, cu("cuFlushGPUDirectRDMAWrites", 1, 100))
        rule("a flush of another scope", 1, cu("cuFlushGPUDirectRDMAWrites", 0, 0))
    """,
    )


def test_contexts_are_a_stack_of_each_thread(library: str) -> None:
    keeps(
        library,
        """
    @rules
    def stack():
        context, out, n = begin(), c_uint64(), c_int()
        rule("the context of a device is one", context, begin())
        rule("depth of the stack", 1, gpu.fakecuda_depth())
        done("cuCtxPushCurrent_v2", context)
        rule("depth behind a push", 2, gpu.fakecuda_depth())
        rule("pop", (0, context), (cu("cuCtxPopCurrent_v2", byref(out)), out.value))
        rule("cuCtxSetCurrent with NULL", 0, cu("cuCtxSetCurrent", 0))
        rule("depth behind it", 0, gpu.fakecuda_depth())
        rule("pop of nothing", 201, cu("cuCtxPopCurrent_v2", byref(out)))
        rule("push of NULL", 201, cu("cuCtxPushCurrent_v2", 0))
        done("cuCtxSetCurrent", context)
        other = []
        thread = threading.Thread(target=lambda: other.append(cu("cuCtxGetDevice", byref(n))))
        thread.start()
        thread.join(PATIENCE)
        rule("another thread has none", [201], other)
        flags, active = c_uint(), c_int()
        done("cuDevicePrimaryCtxGetState", 0, byref(flags), byref(active))
        rule("the context is active", 1, active.value)
        made, of = stream(), c_uint64()
        rule("the context of a stream", (0, context), (cu("cuStreamGetCtx", made, byref(of)), of.value))
        rule("that of the default stream", (0, context), (cu("cuStreamGetCtx", 0, byref(of)), of.value))
    """,
    )


def test_a_forked_process_gets_3_from_everything(library: str) -> None:
    keeps(
        library,
        """
    import select, signal

    begin()
    address = allocate()

    def forked(name, *arguments):
        \"\"\"The result of a call in a child, which may hang.\"\"\"
        into, out = os.pipe()
        if (child := os.fork()) == 0:
            os.write(out, b"%d" % cu(name, *arguments))
            os._exit(0)
        os.close(out)
        ready = select.select([into], [], [], 4)[0]
        says = os.read(into, 16).decode() if ready else "nothing in 4 s"
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(into)
        return int(says) if says.isdigit() else says or "died"

    @rules
    def calls():
        out, n = c_uint64(), c_int()
        host = ctypes.create_string_buffer(PAGE)
        for name, arguments in {
            "cuInit": (0,), "cuDeviceGetCount": (byref(n),), "cuCtxGetCurrent": (byref(out),),
            "cuCtxGetDevice": (byref(n),), "cuMemAlloc_v2": (byref(out), SIZE), "cuMemFree_v2": (address,),
            "cuDevicePrimaryCtxRetain": (byref(out), 0), "cuStreamCreate": (byref(out), 1),
            "cuMemGetAddressRange_v2": (byref(out), byref(c_size_t()), address),
            "cuMemcpyAsync": (ctypes.addressof(host), address, PAGE, 0), "cuStreamQuery": (0,),
        }.items():
            rule(f"{name} in a forked process", 3, forked(name, *arguments))
        report("cuPointerGetAttribute there", forked("cuPointerGetAttribute", byref(out), 2, address))
        rule("the parent goes on", 0, cu("cuMemFree_v2", address))
    """,
    )


def test_memory_of_a_device(library: str) -> None:
    keeps(
        library,
        """
    context = begin()
    none = {"context": 0, "type": 0, "buffer": 0, "managed": 0, "device": -2, "legacy": 0, "start": 0, "size": 0,
            "handles": 0, "pool": 0}

    def unknown(name, address):
        for attribute, value in none.items():
            rule(f"{name}: {attribute}", value, pointer(address, attribute)[attribute])
        for attribute in ("type", "device"):
            rule(f"{name}: the singular call for {attribute}", 1, single(address, attribute))
        rule(f"{name}: its range", 1, range_of(address)[0])

    @rules
    def of_the_host():
        kept, address = buffer()
        unknown("memory of the host", address)

    @rules
    def allocated():
        for size in (SIZE, 100, CHUNK, 3 * CHUNK + 5):
            address, text = allocate(size), f"{size} bytes"
            found = pointer(address + size // 2, *none)
            buffers = found.pop("buffer")
            rule(f"{text}: attributes", {"context": context, "type": 2, "managed": 0, "device": 0, "legacy": 1,
                                         "start": address, "size": size, "handles": 0, "pool": 0}, found)
            rule(f"{text}: it has a buffer id", True, buffers > 0)
            rule(f"{text}: range", (0, address, size), range_of(address + size // 2))
            rule(f"{text}: range behind it", 1, range_of(address + size)[0])
            rule(f"{text}: free in the middle", 1, cu("cuMemFree_v2", address + size // 2))
            rule(f"{text}: free", 0, cu("cuMemFree_v2", address))
            unknown(f"{text}, freed", address)
            rule(f"{text}: free again", 1, cu("cuMemFree_v2", address))
            again = allocate(size)
            rule(f"{text}: the freed address comes again", address, again)
            rule(f"{text}: its buffer id does not", True, pointer(again, "buffer")["buffer"] != buffers)
            done("cuMemFree_v2", again)

    @rules
    def sizes():
        out = c_uint64()
        rule("no bytes", 1, cu("cuMemAlloc_v2", byref(out), 0))
        rule("too many bytes", 2, cu("cuMemAlloc_v2", byref(out), 1 << 44))
        rule("a range without places to write to", 0, cu("cuMemGetAddressRange_v2", None, None, allocate()))
        for size in (SIZE, 4 * CHUNK):
            address = allocate(size)
            report(f"{size} new bytes, zeros", sum(b == 0 for b in load(address, size)))
            store(address, b"\\xc3" * size)
            done("cuMemFree_v2", address)
            report(f"{size} bytes again, zeros", sum(b == 0 for b in load(allocate(size), size)))

    @rules
    def small_ones():
        a, b = allocate(100), allocate(100)
        report("distance of two small allocations", abs(a - b))

    @rules
    def behind_the_end():  # it stays inside the 2 MiB that a driver maps, so a copy that passes meets no fault
        a, b = allocate(2 * PAGE), allocate(CHUNK)
        rule("a copy from behind the end", 1, cu("cuMemcpyAsync", b, a + PAGE, 2 * PAGE, 0))
        report("the stream behind it", cu("cuStreamSynchronize", 0))
    """,
    )


def test_memory_of_the_vmm(library: str) -> None:
    keeps(
        library,
        """
    begin()

    @rules
    def making():
        size, out = c_size_t(), c_uint64()
        for option in (0, 1):
            done("cuMemGetAllocationGranularity", byref(size), properties(), option)
            rule(f"granularity {option}", CHUNK, size.value)
        rule("a chunk of a page", 1, cu("cuMemCreate", byref(out), PAGE, properties(), 0))
        rule("a chunk of no bytes", 1, cu("cuMemCreate", byref(out), 0, properties(), 0))
        rule("a chunk with flags", 1, cu("cuMemCreate", byref(out), CHUNK, properties(), 1))
        rule("a chunk behind the last device", 1, cu("cuMemCreate", byref(out), CHUNK, properties(1, count()), 0))
        rule("a reservation of a page", 1, cu("cuMemAddressReserve", byref(out), PAGE, 0, 0, 0))
        at = reserve(CHUNK)
        rule("reserved addresses: type", 0, pointer(at, "type")["type"])
        rule("reserved addresses: the singular call", 1, single(at, "type"))
        rule("reserved addresses: range", 1, range_of(at)[0])
        rule("access to no mapping", 1, open_to(at, CHUNK))
        done("cuMemAddressFree", at, CHUNK)
        rule("a reservation comes again", at, reserve(CHUNK))

    @rules
    def mapped():
        at = chunks(2)
        ids = set()
        for i in range(2):
            start = at + i * CHUNK
            found = pointer(start + PAGE, "context", "type", "buffer", "managed", "device", "legacy", "start", "size",
                            "handles", "pool")
            ids.add(found.pop("buffer"))
            rule(f"chunk {i}: attributes", {"context": 0, "type": 2, "managed": 0, "device": 0, "legacy": 0,
                                            "start": start, "size": CHUNK, "handles": 1, "pool": 0}, found)
            rule(f"chunk {i}: range", (0, start, CHUNK), range_of(start + PAGE))
        rule("each chunk has its buffer id", 2, len(ids - {0}))
        rule("a legacy handle", 1, cu("cuIpcGetMemHandle", ctypes.create_string_buffer(64), at))
        rule("to free it as allocated memory", 1, cu("cuMemFree_v2", at))
        report("new chunks, zeros", sum(b == 0 for b in load(at, CHUNK)))
        data = bytes(i % 251 for i in range(2 * PAGE))
        store(at + CHUNK - PAGE, data)
        rule("a copy over both chunks", True, load(at + CHUNK - PAGE, 2 * PAGE) == data)
        rule("a fill over both chunks", 0, cu("cuMemsetD8Async", at + CHUNK - PAGE, 7, 2 * PAGE, 0))
        rule("its bytes", True, load(at + CHUNK - PAGE, 2 * PAGE) == b"\\7" * 2 * PAGE)
        handle, found = c_uint64(), (c_int * 8)()
        rule("the handle of a chunk", 0, cu("cuMemRetainAllocationHandle", byref(handle), at + PAGE))
        done("cuMemGetAllocationPropertiesFromHandle", found, handle)
        rule("its type, handle types and place", [1, 1, 1, 0], list(found[:4]))
        report("its flags: compression, rdma, usage", bytes(found)[24:].hex())
        rule("a chunk where there is one", 208, cu("cuMemMap", at, CHUNK, 0, handle, 0))
        done("cuMemRelease", handle)
        rule("half of a chunk is unmapped", 1, cu("cuMemUnmap", at, PAGE))
        rule("both are unmapped", 0, cu("cuMemUnmap", at, 2 * CHUNK))
        rule("unmapped: type", 0, pointer(at, "type")["type"])
        rule("the reservation goes back", 0, cu("cuMemAddressFree", at, 2 * CHUNK))
        rule("the handle of other memory", 1, cu("cuMemRetainAllocationHandle", byref(handle), allocate()))

    @rules
    def handles():
        fd, none = c_int(-1), create(types=0)
        rule("a descriptor of a chunk without", 1, cu("cuMemExportToShareableHandle", byref(fd), none, 1, 0))
        rule("one of a chunk with", 0, cu("cuMemExportToShareableHandle", byref(fd), create(), 1, 0))
        report("the descriptor", os.readlink(f"/proc/self/fd/{fd.value}"))
        channels = Path("/dev/nvidia-caps-imex-channels")
        joined = channels.is_dir() and any(channels.iterdir())
        code = cu("cuMemCreate", byref(c_uint64()), CHUNK, properties(8), 0)
        if joined:
            report("a chunk with a fabric handle", code)
        else:
            rule("a chunk with a fabric handle", 800 if attribute(128) else 801, code)
    """,
    )


def test_memory_of_the_vmm_without_access_is_refused(library: str) -> None:
    """A driver may find that late, which ends the use of the device: this is the last that the process does."""
    keeps(
        library,
        """
    begin()

    @rules
    def without_access():
        other, at = allocate(), reserve(CHUNK)
        done("cuMemMap", at, CHUNK, 0, create(), 0)
        rule("a mapping without access has a range", (0, at, CHUNK), range_of(at))
        rule("a copy without access", 1, cu("cuMemcpyAsync", other, at, PAGE, 0))
        report("the stream behind it", cu("cuStreamSynchronize", 0))
    """,
    )


@pytest.mark.parametrize("exported", ["1", "0"])
def test_memory_is_exported_as_a_dma_buf(library: str, exported: str) -> None:
    settings = {} if exported == "1" else {"DMABUF": exported}
    keeps(
        library,
        """
    begin()

    @rules
    def exports():
        fd, can = c_int(-1), attribute(124)
        allocated, chunk, gone = allocate(CHUNK), chunks(1), allocate(CHUNK)
        done("cuMemFree_v2", gone)

        def export(address, size, flags=0):
            return cu("cuMemGetHandleForAddressRange", byref(fd), address, size, 1, flags)

        report("attribute 124", can)
        rule("allocated memory", 0 if can else 801, export(allocated, CHUNK))
        if can and fd.value >= 0:
            report("the descriptor", os.readlink(f"/proc/self/fd/{fd.value}"))
        rule("a part of it", 0 if can else 801, export(allocated + PAGE, PAGE))
        rule("a chunk of the VMM", 0 if can else 801, export(chunk, CHUNK))
        report("small memory, its page", export(allocate(100), PAGE))
        if can:
            rule("a range that begins with no page", 1, export(allocated + 100, PAGE))
            rule("a part of a page", 1, export(allocated, 100))
            rule("more than there is", 1, export(allocated + CHUNK - PAGE, 2 * PAGE))
            rule("pinned memory", 1, export(pinned(), PAGE))
            rule("freed memory", 1, export(gone, PAGE))
    """,
        **settings,
    )
