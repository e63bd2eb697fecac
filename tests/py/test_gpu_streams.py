"""Transfers in the order of a stream, and streams that wait for a transfer, on an emulated driver."""

from __future__ import annotations

import pytest
from gpu import driver, passes

import tent
from tent import gpu_stream

__all__ = ["driver"]  # the fixture `library`

# A stream that stops at a word until the program writes it, and engines with memory on the first and the last GPU.
STREAMS = """
    WAITING = 600
    gpu.fakecuda_stream.restype = gpu.fakecuda_pinned.restype = ctypes.c_uint64

    def stream():
        return gpu.fakecuda_stream()

    class Stopped:
        def __init__(self, on):
            self.address = gpu.fakecuda_pinned(ctypes.c_uint64(4096))
            at = ctypes.c_uint64(self.address)
            assert gpu.cuStreamWaitValue32_v2(ctypes.c_uint64(on), at, ctypes.c_uint32(1), 0) == 0
        def go(self):
            ctypes.c_uint32.from_address(self.address).value = 1

    def fill(address, byte, on):
        n = ctypes.c_uint64(SIZE)
        assert gpu.fakecuda_work(ctypes.c_uint64(address), byte, n, ctypes.c_uint64(on)) == 0

    def passed(on):
        return gpu.cuStreamQuery(ctypes.c_uint64(on)) == 0

    def passes(on):
        import time
        limit = time.monotonic() + 20
        while not passed(on):
            assert time.monotonic() < limit, "the stream stands still"

    ours, theirs = allocate(0, SIZE), allocate(LAST, SIZE)
    assert gpu.fakecuda_enter(0) == 0
    engine, peer = tent.Engine(), tent.TransferEngine()
    own, there = engine.register((ours, SIZE)), peer.engine.register((theirs, SIZE), name="kv")
    segment = engine.open(peer.engine.address)
"""


def test_every_face_waits_for_the_stream(library: str) -> None:
    """The bytes come from work that the stream carries out after the call has returned."""
    passes(
        library,
        STREAMS
        + """
    raw = tent.TransferEngine()
    mine = raw.engine.register((ours, SIZE))
    handle = raw.open_segment(peer.engine.address + "/kv")
    half = SIZE // 2

    def requests(at):
        return [tent.Request(tent.OpCode.WRITE, ours, handle, 0, SIZE, stream=at)]

    def array(at):
        made = tent.RequestArray(2)
        made.opcode[:], made.target_id[:], made.length[:], made.stream[:] = tent.OpCode.WRITE, handle, half, at
        made.source, made.target_offset = [ours, ours + half], [0, half]
        return made

    def batch(at):
        with engine.batch(stream=at) as together:
            together.write(own, segment["kv"])
            return together.submit()

    class Low:  # the integer level
        def __init__(self, requests):
            self.batch = raw.allocate_transfer_batch(len(requests))
            raw.submit_transfer(self.batch, requests)
        def done(self):
            return raw.get_transfer_status_overall(self.batch).state != tent.TransferStatusEnum.PENDING
        def result(self, timeout):
            assert raw.wait(self.batch, timeout).state == tent.TransferStatusEnum.COMPLETED

    faces = [
        lambda at: engine.write(own, segment["kv"], stream=at),
        lambda at: engine.write_ranges(own, [0, half], segment["kv"], [0, half], [half, half], stream=at),
        lambda at: engine.write_pages(own, [0, 1], segment["kv"], [0, 1], page_bytes=half, stream=at),
        batch,
        lambda at: Low(requests(at)),
        lambda at: Low(array(at)),
    ]
    for i, face in enumerate(faces):
        at = stream()
        word = Stopped(at)
        fill(ours, i + 1, at)
        transfer = face(at)
        for _ in range(300):
            assert not transfer.done(), i
        word.go()
        transfer.result(timeout=20)
        assert peek(theirs, SIZE) == bytes([i + 1]) * SIZE, i
    """,
    )


def test_a_default_stream_is_that_of_its_device(library: str) -> None:
    """torch gives 0 for the default stream of each GPU: its device says which one. The other GPU is current."""
    passes(
        library,
        STREAMS
        + """
    class Torch:
        def __init__(self, device):
            self.cuda_stream, self.device_index = 0, device
    assert gpu.fakecuda_enter(1) == 0
    word = Stopped(0)
    fill(theirs, 7, 0)
    assert gpu.fakecuda_enter(-1) == 0 and current() == 0
    free, waits = engine.write(own, segment["kv"], stream=Torch(0)), engine.read(own, segment["kv"], stream=Torch(1))
    free.result(timeout=20)
    for _ in range(300):
        assert not waits.done()
    word.go()
    waits.result(timeout=20)
    assert peek(ours, SIZE) == b"\\7" * SIZE
    """,
        devices=2,
    )


def test_a_stream_waits_for_the_end_of_a_transfer(library: str) -> None:
    """Whichever end it is, and without a thread that waits: the state is on the device, the error in result()."""
    passes(
        library,
        STREAMS
        + """
    before, behind = stream(), stream()
    states = tent.TransferStatusEnum

    def state(word):
        return ctypes.c_uint32.from_address(word).value

    stop = Stopped(before)
    fill(theirs, 9, before)
    transfer = engine.read(own, segment["kv"], stream=before)
    word = transfer.wait_on(behind)
    fill(ours, 3, behind)
    assert word and state(word) == 0 and not passed(behind)
    stop.go()
    passes(behind)
    assert state(word) == states.COMPLETED
    assert transfer.result(timeout=20) == SIZE
    assert peek(ours, SIZE) == b"\\3" * SIZE, "the work came behind the bytes of the transfer"

    stop = Stopped(before)
    late = engine.read(own, segment["kv"], stream=before, timeout="20ms")
    word = late.wait_on(behind)
    passes(behind)
    assert state(word) == states.TIMEOUT
    try:
        late.result(timeout=20)
    except tent.TransferError as error:
        assert error.code == "TIMEOUT", error
    else:
        raise AssertionError("it has ended well")
    cancelled = engine.read(own, segment["kv"], stream=before)
    word = cancelled.wait_on(behind)
    assert cancelled.cancel()
    passes(behind)
    assert state(word) == states.CANCELED
    dropped = engine.read(own, segment["kv"], stream=before)
    dropped.wait_on(behind)
    del dropped
    assert not passed(behind), "the transfer goes on"
    left = engine.read(own, segment["kv"], stream=before)
    left.wait_on(behind)
    engine.close(timeout=0)
    passes(behind)
    assert left.wait_on(behind) == 0, "there is nothing to wait for"
    stop.go()
    """,
    )


def test_what_is_no_stream_is_refused(library: str) -> None:
    passes(
        library,
        STREAMS
        + """
    for wrong in (True, -1, 1 << 64, "stream", object(), 3):
        for call in (lambda s: engine.write(own, segment["kv"], stream=s), engine.write(own, segment["kv"]).wait_on):
            try:
                call(wrong)
            except tent.InvalidArgumentError as error:
                assert "stream" in str(error), error
            else:
                raise AssertionError(wrong)
    assert gpu.fakecuda_capture(ctypes.c_uint64(on := stream()), 1) == 0
    try:
        engine.write(own, segment["kv"], stream=on)
    except tent.InvalidArgumentError as error:
        assert "captured" in str(error) and "outside of the capture" in error.hint, error
    else:
        raise AssertionError("captured")
    """,
    )


class _Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 0x7F0000001000


class _CuPy:
    ptr, device_id = 0x7F0000002000, 3


class _Torch:
    def __init__(self, cuda_stream: int, device_index: int) -> None:
        self.cuda_stream, self.device_index = cuda_stream, device_index


@pytest.mark.parametrize(
    ("stream", "number"),
    [
        (0x7F0000000000, 0x7F0000000000),
        (0, 1),
        (2, 2),
        (_Protocol(), 0x7F0000001000),
        (_CuPy(), 0x7F0000002000),
        (_Torch(0x7F0000003000, 1), 0x7F0000003000),
        (_Torch(0, 0), 1 << 2 | 1),
        (_Torch(0, 5), 6 << 2 | 1),
        (_Torch(2, 1), 2 << 2 | 2),
    ],
)
def test_each_frameworks_stream_has_its_handle(stream: object, number: int) -> None:
    assert gpu_stream.handle(stream) == number
    assert tent.Request(stream=stream).stream == number
