"""Rules of the CUDA driver about work: pinned memory, streams, captures, batches. See test_driver_rules.py."""

from __future__ import annotations

from gpu import driver, keeps

__all__ = ["driver"]  # the fixture `library`


def test_memory_of_the_host_is_pinned(library: str) -> None:
    keeps(
        library,
        """
    begin()

    def register(address, size):
        return cu("cuMemHostRegister_v2", address, size, 1)

    def unregister(address):
        return cu("cuMemHostUnregister", address)

    device = allocate()

    def copy(host, size=PAGE):
        \"\"\"The result of a copy from the host; it is waited for.\"\"\"
        code = cu("cuMemcpyAsync", device, host, size, 0)
        done("cuStreamSynchronize", 0)
        return code

    @rules
    def registering():
        kept, at = buffer(16 * PAGE)
        rule("to register", 0, register(at, 4 * PAGE))
        rule("the same again", 712, register(at, 4 * PAGE))
        rule("a part of it", 712, register(at + PAGE, PAGE))
        rule("more than it", 712, register(at + 2 * PAGE, 4 * PAGE))
        rule("its neighbour", 0, register(at + 4 * PAGE, 4 * PAGE))
        for name, value in {"type": 1, "device": 0, "managed": 0, "legacy": 0, "start": at, "size": 4 * PAGE,
                            "handles": 0, "context": 0, "buffer": 0}.items():
            rule(f"registered: {name}", value, pointer(at + PAGE + 1, name)[name])
        rule("its range", 1, range_of(at + PAGE)[0])
        address = c_uint64()
        rule("its address for the device", (0, at + 9),
             (cu("cuMemHostGetDevicePointer_v2", byref(address), at + 9, 0), address.value))
        rule("that of other memory", 1, cu("cuMemHostGetDevicePointer_v2", byref(address), at + 9 * PAGE, 0))
        rule("a copy inside of one", 0, copy(at + PAGE))
        rule("a copy over both", 1, copy(at + 4 * PAGE - 100, 200))
        rule("a copy out of one", 1, copy(at + 8 * PAGE - 100, 200))
        rule("a copy into one", 1, copy(at - 100, 200))
        rule("a copy around both", 1, copy(at - 100, 8 * PAGE + 200))
        rule("a copy beside them", 0, copy(at + 9 * PAGE))
        rule("to free a registration", 1, cu("cuMemFreeHost", at))
        rule("to give a part back", 713, unregister(at + PAGE))
        rule("to give it back", 0, unregister(at))
        rule("to give it back again", 713, unregister(at))
        rule("to give unknown memory back", 713, unregister(at + 9 * PAGE))
        rule("given back: type", 0, pointer(at, "type")["type"])
        rule("a copy beside its neighbour", 1, copy(at + 4 * PAGE - 100, 200))
        done("cuMemHostUnregister", at + 4 * PAGE)

    @rules
    def parts_of_a_page():
        kept, at = buffer(16 * PAGE)
        rule("100 bytes", 0, register(at + 10, 100))
        for name, value in {"start": at + 10, "size": 100}.items():
            rule(f"100 bytes: {name}", value, pointer(at + 20, name)[name])
        rule("100 bytes: the page in front of them", 0, pointer(at, "type")["type"])
        rule("100 bytes: the page behind them", 0, pointer(at + 300, "type")["type"])
        rule("another 100 of the page", 0, register(at + 210, 100))
        rule("the rest of the page", 0, copy(at + 400, 100))
        unregister(at + 10), unregister(at + 210)

    @rules
    def allocated():
        at = pinned(3 * PAGE + 5)
        for name, value in {"type": 1, "device": 0, "legacy": 0, "start": at, "size": 3 * PAGE + 5}.items():
            rule(f"allocated: {name}", value, pointer(at + PAGE + 1, name)[name])
        rule("its range", 1, range_of(at)[0])
        rule("to register it", 712, register(at, PAGE))
        rule("to unregister it", 713, unregister(at))
        rule("to free it in the middle", 1, cu("cuMemFreeHost", at + PAGE))
        rule("to free it", 0, cu("cuMemFreeHost", at))
        rule("to free it again", 1, cu("cuMemFreeHost", at))

    @rules
    def of_nothing():
        report("to register nothing", register(buffer()[1], 0))
        report("to register no memory", register(PAGE, PAGE))
    """,
    )


def test_registered_pages_are_reached_although_others_are_in_their_place(library: str) -> None:
    keeps(
        library,
        """
    begin()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = libc.mremap.restype = c_uint64
    READ_WRITE, SHARED_ANONYMOUS, FIXED, MAY_MOVE = 3, 0x21, 0x10, 1

    def map_at(address, flags):
        fd, offset = c_int(-1), c_uint64(0)
        return libc.mmap(c_uint64(address), c_uint64(4 * PAGE), READ_WRITE, SHARED_ANONYMOUS | flags, fd, offset)

    @rules
    def exchanged():
        at = map_at(0, 0)
        done("cuMemHostRegister_v2", at, 4 * PAGE, 1)
        old = libc.mremap(c_uint64(at), c_uint64(0), c_uint64(4 * PAGE), MAY_MOVE)
        assert map_at(at, FIXED) == at
        device = allocate()
        store(device, b"\\7" * PAGE)
        done("cuMemcpyAsync", at, device, PAGE, 0)
        done("cuStreamSynchronize", 0)
        rule("the pages of before have the bytes", b"\\7" * 8, ctypes.string_at(old, 8))
        rule("the new ones do not", bytes(8), ctypes.string_at(at, 8))
        rule("they go back", 0, cu("cuMemHostUnregister", at))
        done("cuMemcpyAsync", at, device, PAGE, 0)
        done("cuStreamSynchronize", 0)
        rule("then the new ones have the bytes", b"\\7" * 8, ctypes.string_at(at, 8))
    """,
    )


def test_copies_return_at_once_or_when_they_are_done(library: str) -> None:
    """A stop in their stream shows it; each stop has a stream of its own."""
    keeps(
        library,
        """
    begin()
    device, other = allocate(16 << 20), allocate(16 << 20)
    host, (kept, pageable) = pinned(16 << 20), buffer(16 << 20)

    def copy(name, expected, to, source, size):
        behind(f"{name}, {size} bytes", expected, lambda on: cu("cuMemcpyAsync", to, source, size, on))

    @rules
    def copies():
        for size in (64, PAGE, SIZE, 1 << 20, 16 << 20):
            copy("from pinned memory", AT_ONCE, device, host, size)
            copy("into pinned memory", AT_ONCE, host, device, size)
            copy("inside a device", AT_ONCE, other, device, size)
            copy("from other memory", WAITS, device, pageable, size)
            copy("into other memory", WAITS, pageable, device, size)

    @rules
    def ends():
        for name, to, source in (("from", device, pageable), ("into", pageable, device)):
            on = stream()
            done("cuMemcpyAsync", to, source, 16 << 20, on)
            rule(f"behind a copy {name} other memory its stream is done", 0, cu("cuStreamQuery", on))
            passes(on)
    """,
    )


def test_calls_wait_for_the_work_of_the_process_or_do_not(library: str) -> None:
    keeps(
        library,
        """
    begin()
    memory, chunk, host = [allocate() for _ in range(2)], chunks(1), pinned()
    kept, at = buffer(4 * PAGE)
    other, otherwise = buffer(4 * PAGE)
    done("cuMemHostRegister_v2", at, PAGE, 1)
    mark, device, idle = event(), allocate(), stream()

    @rules
    def frees():
        behind("cuMemFree_v2", WAITS, lambda _: cu("cuMemFree_v2", memory[0]))
        behind("cuMemUnmap", WAITS, lambda _: cu("cuMemUnmap", chunk, CHUNK))
        behind("cuMemHostUnregister", WAITS, lambda _: cu("cuMemHostUnregister", at))
        behind("cuMemFreeHost", WAITS, lambda _: cu("cuMemFreeHost", host))

    @rules
    def others():
        out = c_uint64()
        for name, call in {
            "cuMemAlloc_v2": lambda: cu("cuMemAlloc_v2", byref(out), SIZE),
            "cuMemAlloc_v2 of much": lambda: cu("cuMemAlloc_v2", byref(out), 64 << 20),
            "cuMemHostAlloc": lambda: cu("cuMemHostAlloc", byref(out), PAGE, 1),
            "cuMemHostRegister_v2": lambda: cu("cuMemHostRegister_v2", otherwise, PAGE, 1),
            "cuStreamCreate": lambda: cu("cuStreamCreate", byref(out), 1),
            "cuEventCreate": lambda: cu("cuEventCreate", byref(out), 2),
            "cuEventDestroy_v2": lambda: cu("cuEventDestroy_v2", mark),
            "cuMemCreate": lambda: cu("cuMemCreate", byref(out), CHUNK, properties(), 0),
            "a chunk, mapped and open": lambda: chunks(1) * 0,
            "cuMemGetAddressRange_v2": lambda: range_of(device)[0],
            "cuPointerGetAttributes": lambda: pointer(device, "type")["type"] - 2,
            "cuIpcGetMemHandle": lambda: cu("cuIpcGetMemHandle", ctypes.create_string_buffer(64), device),
            "a copy in another stream": lambda: cu("cuMemcpyAsync", device, device + PAGE, PAGE, idle),
            "a wait for another stream": lambda: cu("cuStreamSynchronize", idle),
            "cuMemsetD8Async in another stream": lambda: cu("cuMemsetD8Async", device, 1, PAGE, idle),
        }.items():
            behind(name, AT_ONCE, lambda _, call=call: call())
    """,
    )


def test_streams_wait_for_words_and_events(library: str) -> None:
    keeps(
        library,
        """
    begin()

    def wait(on, address, value, flags=0):
        return cu("cuStreamWaitValue32_v2", on, address, value, flags)

    @rules
    def words():
        on, address = stream(), pinned()
        word = c_uint.from_address(address)
        kept, other = buffer()
        rule("a word of memory that is not pinned", 1, wait(on, other, 0))
        rule("a word at an odd address", 1, wait(on, address + 2, 0))
        rule("an unknown flag", 1, wait(on, address, 0, 1 << 20))
        for value, wanted, goes in ((5, 5, True), (6, 5, True), (4, 5, False), (0x10, 0xFFFFFFF0, True),
                                    (0xFFFFFFF0, 0x10, False), (0x80000005, 5, False), (0x80000004, 5, True)):
            word.value = value
            rule(f"the wait of {value:#x} for {wanted:#x} is taken", 0, wait(on, address, wanted))
            if goes:
                rule(f"{value:#x} passes {wanted:#x}", True, passes(on))
            else:
                rule(f"{value:#x} does not pass {wanted:#x}", True, stands(on))
                word.value = wanted
                rule(f"{wanted:#x} passes then", True, passes(on))
        word.value = 1
        report("attribute 98, and a wait that flushes", (attribute(98), wait(on, address, 1, 1 << 30)))
        rule("the stream passes", True, passes(on))

    @rules
    def registered():
        on, (kept, address) = stream(), buffer()
        c_uint.from_address(address).value = 3
        done("cuMemHostRegister_v2", address, PAGE, 1)
        rule("a word of registered memory", 0, wait(on, address, 3))
        rule("it passes", True, passes(on))

    @rules
    def of_a_device():
        on, address = stream(), allocate()
        done("cuMemsetD8Async", address, 1, PAGE, on)
        rule("a word of a device", 1, wait(on, address, 1))
        rule("the stream passes", True, passes(on))

    @rules
    def order():
        first, second, mark, device = stream(), stream(), event(), allocate()
        rule("an event that was not recorded", 0, cu("cuEventQuery", mark))
        stop = Stopped(first)
        rule("work behind a stop", 0, cu("cuMemsetD8Async", device, 7, PAGE, first))
        done("cuEventRecord", mark, first)
        rule("the event behind it", 600, cu("cuEventQuery", mark))
        rule("another stream waits for it", 0, cu("cuStreamWaitEvent", second, mark, 0))
        rule("and stands", True, stands(second))
        idle = stream()
        done("cuMemsetD8Async", device + PAGE, 1, PAGE, idle)
        rule("a third one does not", True, passes(idle))
        stop.go()
        rule("both pass", (True, True), (passes(first), passes(second)))
        rule("the event is reached", (0, 0), (cu("cuEventQuery", mark), cu("cuEventSynchronize", mark)))
        rule("the work was done", b"\\7" * 8, load(device, 8))

    @rules
    def the_default_stream():
        first, device = stream(), allocate()
        stop = Stopped(first)
        done("cuMemsetD8Async", device, 9, PAGE, 0)
        rule("the default stream does not wait for one that was made so", True, passes(0))
        rule("1 is the default stream, too", 0, cu("cuStreamQuery", 1))
        rule("2 is that of the thread", 0, cu("cuStreamQuery", 2))
        stop.go()
        rule("the stream passes", True, passes(first))
    """,
    )


def test_a_capture_forbids_calls_of_threads_that_are_not_relaxed(library: str) -> None:
    """A call that is forbidden may end the capture as well, so each has a stream of its own."""
    keeps(
        library,
        """
    begin()
    GLOBAL, RELAXED = 0, 2

    def mode(new):
        value = c_int(new)
        done("cuThreadExchangeStreamCaptureMode", byref(value))
        return value.value

    def captured(call):
        \"\"\"The result of a call beside a capture.\"\"\"
        on, graph = stream(), c_uint64()
        done("cuStreamBeginCapture_v2", on, 0)
        result = call()
        code = cu("cuStreamEndCapture", on, byref(graph))
        if graph.value:
            done("cuGraphDestroy", graph)
        return result, code

    def calls():
        out = c_uint64()
        kept.append(buffer(4 * PAGE))
        address, host, device = kept[-1][1], pinned(), allocate()
        done("cuMemHostRegister_v2", address, PAGE, 1)
        mark, on = event(), stream()
        done("cuEventRecord", mark, on)
        passes(on)
        return {
            "cuMemAlloc_v2": lambda: cu("cuMemAlloc_v2", byref(out), SIZE),
            "cuMemFree_v2": lambda: cu("cuMemFree_v2", device),
            "cuMemHostAlloc": lambda: cu("cuMemHostAlloc", byref(out), PAGE, 1),
            "cuMemFreeHost": lambda: cu("cuMemFreeHost", host),
            "cuMemHostRegister_v2": lambda: cu("cuMemHostRegister_v2", address + 2 * PAGE, PAGE, 1),
            "cuMemHostUnregister": lambda: cu("cuMemHostUnregister", address),
            "cuEventQuery": lambda: cu("cuEventQuery", mark),
            "cuEventSynchronize": lambda: cu("cuEventSynchronize", mark),
        }

    def allowed():
        out, host, on, mark = c_uint64(), pinned(), stream(), event()
        return {
            "cuMemcpyAsync in another stream": lambda: cu("cuMemcpyAsync", allocated, host, PAGE, on),
            "cuEventRecord in another stream": lambda: cu("cuEventRecord", mark, on),
            "cuEventCreate": lambda: cu("cuEventCreate", byref(out), 2),
            "cuStreamCreate": lambda: cu("cuStreamCreate", byref(out), 1),
            "cuMemGetAddressRange_v2": lambda: range_of(allocated)[0],
            "cuPointerGetAttributes": lambda: pointer(allocated, "type")["type"] - 2,
            "cuMemCreate": lambda: cu("cuMemCreate", byref(out), CHUNK, properties(), 0),
            "cuIpcGetMemHandle": lambda: cu("cuIpcGetMemHandle", ctypes.create_string_buffer(64), allocated),
        }

    kept, allocated = [], allocate()

    @rules
    def modes():
        rule("the mode of a thread that begins", GLOBAL, mode(RELAXED))
        rule("the mode that it had", RELAXED, mode(GLOBAL))

    @rules
    def of_this_thread():
        for name, call in calls().items():
            result, end = captured(call)
            rule(f"{name} beside a capture", 900, result)
            report(f"the end of the capture behind {name}", end)

    @rules
    def relaxed():
        mode(RELAXED)
        for name, call in calls().items():
            rule(f"{name} of a thread that is RELAXED, and the end", (0, 0), captured(call))
        mode(GLOBAL)

    @rules
    def allowed_ones():
        for name, call in allowed().items():
            rule(f"{name} beside a capture, and the end", (0, 0), captured(call))

    @rules
    def of_another_thread():
        context = begin()
        for name, call in calls().items():
            result = []

            def run():
                done("cuCtxSetCurrent", context)
                result.append(call())

            def beside():
                thread = threading.Thread(target=run, daemon=True)
                thread.start()
                thread.join(PATIENCE)

            captured(beside)
            rule(f"{name} of another thread", [900], result)

    @rules
    def states():
        on, state, graph = stream(), c_int(-1), c_uint64()
        done("cuStreamIsCapturing", on, byref(state))
        rule("a stream is captured before", 0, state.value)
        rule("the end of no capture", 1, cu("cuStreamEndCapture", on, byref(graph)))
        done("cuStreamBeginCapture_v2", on, 0)
        done("cuStreamIsCapturing", on, byref(state))
        rule("a stream is captured", 1, state.value)
        done("cuStreamEndCapture", on, byref(graph))
        done("cuStreamIsCapturing", on, byref(state))
        rule("a stream is captured behind the end", 0, state.value)
        rule("the default stream is captured", 900, cu("cuStreamBeginCapture_v2", 0, 0))
    """,
    )


def test_batches_of_copies(library: str) -> None:
    keeps(
        library,
        """
    begin()
    NEW = hasattr(gpu, "cuMemcpyBatchAsync_v2")

    def batch(v2, copies, on, order=1):
        n = len(copies)
        to, source, sizes = ((c_uint64 * max(n, 1))(*(c[i] for c in copies)) for i in range(3))
        attributes, first, failed = (c_int * 6)(order), (c_size_t * 1)(), c_size_t(77)
        arguments = [to, source, sizes, n, attributes, first, 1]
        if v2:
            return cu("cuMemcpyBatchAsync_v2", *arguments, on), None
        return cu("cuMemcpyBatchAsync", *arguments, byref(failed), on), failed.value

    def generation(v2):
        name = "_v2" if v2 else "of 9 arguments"
        on, host, device, other = stream(), pinned(SIZE), allocate(), allocate()
        data = bytes(i % 251 for i in range(SIZE))
        ctypes.memmove(host, data, SIZE)
        store(device, bytes(SIZE)), store(other, data[::-1])
        three = [(device, host + 100, 1000), (device + 5000, other + 1, 3), (device + 6000, host, 40000)]
        rule(f"{name}: three copies", 0, batch(v2, three, on)[0])
        rule(f"{name}: they end", True, passes(on))
        expected = bytearray(SIZE)
        expected[:1000], expected[5000:5003] = data[100:1100], data[::-1][1:4]
        expected[6000:46000] = data[:40000]
        rule(f"{name}: their bytes", True, load(device, SIZE) == expected)
        rule(f"{name}: into the host", 0, batch(v2, [(host, other, SIZE)], on)[0])
        rule(f"{name}: it ends", True, passes(on))
        rule(f"{name}: its bytes", True, ctypes.string_at(host, SIZE) == data[::-1])
        rule(f"{name}: in the default stream", 1, batch(v2, three, 0)[0])
        rule(f"{name}: no copy", 1, batch(v2, [], on)[0])
        rule(f"{name}: a copy of no bytes", 1, batch(v2, [(device, host, 8), (device, host, 0)], on)[0])
        rule(f"{name}: the stream passes", True, passes(on))
        stop = Stopped(on)
        rule(f"{name}: behind a stop", 0, batch(v2, three, on)[0])
        rule(f"{name}: it stands", True, stands(on))
        stop.go()
        rule(f"{name}: and passes", True, passes(on))

    @rules
    def old():
        if hasattr(gpu, "cuMemcpyBatchAsync"):
            generation(False)

    @rules
    def new():
        if NEW:
            generation(True)
    """,
    )


def test_two_devices(library: str) -> None:
    keeps(
        library,
        """
    @rules
    def pair():
        second, n = begin(1), c_int()
        there, mark = allocate(), event()
        first = begin(0)
        here = allocate()
        rule("an event of another device", 400, cu("cuEventRecord", mark, stream()))
        data = bytes(i % 251 for i in range(SIZE))
        store(here, data)
        done("cuMemcpyAsync", there, here, SIZE, 0)
        rule("a copy between devices without access", True, load(there, SIZE) == data)
        done("cuDeviceCanAccessPeer", byref(n), 0, 1)
        rule("access is enabled", 0 if n.value else 217, cu("cuCtxEnablePeerAccess", second, 0))
        if n.value:
            rule("access is enabled again", 704, cu("cuCtxEnablePeerAccess", second, 0))
        rule("access with flags", 1, cu("cuCtxEnablePeerAccess", second, 1))
    """,
        devices=2,
    )
