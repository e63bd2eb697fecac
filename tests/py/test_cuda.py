"""Memory of GPUs, with an emulated driver: tests/fakes/cuda, named by TENT_LIBCUDA in processes of their own.

Its memory cannot be touched by the processor: a line that takes it for memory of the host ends the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import apart
import pytest
from gpu import COMMON, REAL, driver, passes

__all__ = ["driver"]  # the fixture `library`

# Every way in which Python says where memory is; the driver finds the device, and the object's word does not count.
OBJECTS = """
    class Tensor:  # as a torch tensor where torch is not imported
        def __init__(self, device):
            self.nbytes, self.device = SIZE, type("device", (), {"type": "cuda", "index": device})()
        def data_ptr(self):
            return address

    class Interface:
        @property
        def __cuda_array_interface__(self):
            return {"shape": (SIZE,), "typestr": "|u1", "data": (address, False), "version": 3}

    class DLTensor(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                    ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                    ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                    ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)]

    class Packed:  # DLPack
        def __init__(self, device):
            self.shape = (ctypes.c_int64 * 1)(SIZE)
            self.tensor = DLTensor(address, 2, device, 1, 1, 8, 1, self.shape, None, 0)
        def __dlpack__(self, **_):
            new = ctypes.pythonapi.PyCapsule_New
            new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
            return new(ctypes.addressof(self.tensor), b"dltensor", None)
"""


def test_every_form_of_a_device_pointer_is_registered_as_such(library: str) -> None:
    passes(
        library,
        OBJECTS
        + """
    address = allocate(LAST, SIZE)
    with tent.Engine() as engine:
        for obj in ((address, SIZE), Tensor(LAST), Interface(), Packed(LAST)):
            with engine.register(obj) as region:
                assert region.location == f"cuda:{LAST}", (obj, region.location)
                assert (region.address, region.size) == (address, SIZE)
                assert repr(region)
        with engine.register((address + 4096, 100)) as part:
            assert part.location == f"cuda:{LAST}"
    """,
    )


def test_a_wrong_device_is_an_error_that_names_the_right_one(library: str) -> None:
    passes(
        library,
        OBJECTS
        + """
    address = allocate(1, SIZE)
    with tent.Engine() as engine:
        for obj in (Tensor(0), Packed(0)):
            try:
                engine.register(obj)
            except tent.InvalidArgumentError as error:
                assert "cuda:1" in str(error) and "cuda:0" in str(error), error
            else:
                raise AssertionError("registered")
        for location in ("cpu:0", "cuda:0", "tpu:0"):
            try:
                engine.register((address, SIZE), location=location)
            except tent.InvalidArgumentError as error:
                assert "memory of cuda:1" in str(error), error
            else:
                raise AssertionError(location)
        host = bytearray(SIZE)
        try:
            engine.register(host, location="cuda:0")
        except tent.InvalidArgumentError as error:
            assert "not memory of such a device" in str(error), error
        else:
            raise AssertionError("the host's")
    """,
        devices=2,
    )


def test_freed_memory_of_a_device_is_refused(library: str) -> None:
    passes(
        library,
        """
    address = allocate(0, SIZE)
    assert gpu.cuMemFree_v2(ctypes.c_uint64(address)) == 0
    with tent.Engine() as engine:
        try:
            engine.register((address, SIZE))
        except tent.TentError as error:
            assert "cannot all be read" in str(error) and "memory of a device" in str(error), error
        else:
            raise AssertionError("registered")
    """,
    )


def test_allocated_memory_of_a_device_is_zeroed_and_given_back(library: str) -> None:
    passes(
        library,
        """
    with tent.Engine() as engine:
        with engine.allocate(SIZE, location=f"cuda:{LAST}") as region:
            assert region.location == f"cuda:{LAST}"
            assert peek(region.address, SIZE) == bytes(SIZE)
            address = region.address
        del region
        try:
            engine.allocate(SIZE, location=f"cuda:{LAST + 1}")
        except tent.DeviceNotFoundError as error:
            assert f"{LAST + 1} device" in str(error), error
        else:
            raise AssertionError("there are no more")
    data = ctypes.create_string_buffer(1)
    assert gpu.fakecuda_peek(data, ctypes.c_uint64(address), ctypes.c_uint64(1), 0) == 1, "it was freed"
    """,
    )


def test_the_current_device_of_the_caller_stays(library: str) -> None:
    passes(
        library,
        """
    address = allocate(0, SIZE)
    assert current() == 0
    with tent.Engine() as engine, engine.allocate(SIZE, location=f"cuda:{LAST}"), engine.register((address, SIZE)):
        assert current() == 0
    assert current() == 0
    """,
    )


def test_memory_of_the_host_moves_beside_a_driver(library: str) -> None:
    """Also when the driver has failed for good: only its own memory is lost."""
    passes(
        library,
        """
    address = allocate(0, SIZE)
    with tent.Engine() as engine, tent.Engine() as peer:
        theirs, ours = bytearray(SIZE), bytearray(os.urandom(SIZE))
        with peer.register(theirs, name="page"), engine.open(peer.address) as segment:
            gpu.fakecuda_inject(b"cuMemGetAddressRange_v2", ctypes.c_long(1), 700, 1)
            try:
                engine.register((address, SIZE))
            except tent.CudaError as error:
                assert "CUDA_ERROR_ILLEGAL_ADDRESS" in str(error), error
            else:
                raise AssertionError("registered")
            with engine.register(ours) as own:
                engine.write(own, segment["page"][0:SIZE]).result(timeout=10)
        assert theirs == ours
    """,
    )


# The owner of memory in a process of its own: it says its address, and shows its bytes when it is asked.
OWNER = """
    import sys

    address = allocate(LAST, SIZE)
    with tent.Engine() as engine, engine.register((address + 4096, SIZE - 8192), name="cache"):
        print(engine.address, flush=True)
        for line in sys.stdin:
            print(peek(address, SIZE).hex(), flush=True)
"""


def test_memory_of_another_process_is_written_and_read(library: str, tmp_path: Path) -> None:
    """From memory of the host into a GPU of another process, and from there into a GPU of this one."""
    owner = tmp_path / "owner.py"
    owner.write_text(textwrap.dedent(COMMON) + textwrap.dedent(OWNER))
    passes(
        library,
        f"""
    import subprocess, sys

    pipe = subprocess.PIPE
    owner = subprocess.Popen([sys.executable, {str(owner)!r}], stdin=pipe, stdout=pipe, text=True)
    where = owner.stdout.readline().strip()
    n = SIZE - 8192
    address, ours = allocate(0, n), bytearray(i * 7 % 251 for i in range(n))
    with tent.Engine() as engine, engine.register(ours) as host, engine.register((address, n)) as own:
        with engine.open(where) as segment:
            there = segment["cache"][0:n]
            assert "nvlink" in str(engine.explain(own, there)), engine.explain(own, there)
            engine.write(host, there).result(timeout=10)
            print(file=owner.stdin, flush=True)
            assert bytes.fromhex(owner.stdout.readline())[4096:-4096] == ours
            engine.read(own, there).result(timeout=10)
            assert peek(address, n) == ours
    owner.stdin.close()
    assert owner.wait(timeout=20) == 0
    """,
    )


def test_no_transport_is_given_memory_that_it_cannot_touch(library: str) -> None:
    passes(
        library,
        """
    address = allocate(0, SIZE)
    with tent.Engine({"transports/nvlink/enable": False}) as engine, tent.Engine() as peer:
        theirs = bytearray(SIZE)
        with peer.register(theirs, name="page"), engine.open(peer.address) as segment:
            with engine.register((address, SIZE)) as own:
                try:
                    engine.write(own, segment["page"][0:SIZE]).result(timeout=10)
                except tent.TentError as error:
                    assert "cuda:0" in str(error), error
                else:
                    raise AssertionError("it was moved")
        assert theirs == bytes(SIZE)
    """,
    )


def test_doctor_lists_devices_or_the_reason(library: str) -> None:
    def doctor(path: str, **settings: str) -> str:
        env = os.environ | {"TENT_LIBCUDA": path} | {f"TENT_FAKECUDA_{k}": v for k, v in settings.items()}
        command = [sys.executable, "-m", "tent", "doctor"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env).stdout

    text = doctor(library)
    assert "no driver: /nonexistent.so" in doctor("/nonexistent.so")
    if REAL:
        assert "devices of cuda" in text and "cuda:0: " in text, text
        return
    assert "devices of cuda" in text and "cuda:1: Emulated GPU, PCI face:1b:00.0" in text
    assert "CUDA_ERROR_NO_DEVICE" in doctor(library, DEVICES="0")


def test_an_import_loads_no_driver(library: str) -> None:
    program = "import tent; print('libcuda' in open('/proc/self/maps').read())"
    assert apart.passes(program, TENT_LIBCUDA=library, LD_BIND_NOW="1").strip() == "False"


def test_a_forked_process_may_not_use_the_driver(library: str) -> None:
    """The parent's driver cannot be used there: the emulated one gives 3, and a real one may hang."""
    passes(
        library,
        """
    address = allocate(0, SIZE)
    with tent.Engine() as engine, engine.register((address, SIZE)):
        if (child := os.fork()) == 0:
            try:
                engine.register((address, SIZE))
            except tent.TentError:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """,
    )


def test_pages_move_between_devices_and_the_host(library: str) -> None:
    """Offloading: pages of one GPU to memory of the host, and back to another GPU, in another order."""
    passes(
        library,
        """
    first, second, page = allocate(0, SIZE), allocate(LAST, SIZE), 4096
    made = os.urandom(SIZE)
    assert gpu.fakecuda_peek(made, ctypes.c_uint64(first), ctypes.c_uint64(SIZE), 1) == 0
    pages = SIZE // page
    order = [(7 * i + 3) % pages for i in range(pages)]
    host = bytearray(SIZE)
    with tent.Engine() as engine, tent.Engine() as peer:
        regions = [peer.register(host, name="host"), peer.register((second, SIZE), name="second")]
        own = engine.pages([engine.register((first, SIZE))], page)
        with engine.open(peer.address) as segment:
            for name in ("host", "second"):
                theirs = segment.pages([segment[name]], page)
                engine.write_pages(own, range(pages), theirs, order).result(timeout=20)
            engine.read_pages(own, order, segment.pages([segment["host"]], page), range(pages)).result(timeout=20)
    want = bytearray(SIZE)
    for source, target in enumerate(order):
        want[page * target : page * (target + 1)] = made[page * source : page * (source + 1)]
    assert host == want and peek(second, SIZE) == bytes(want)
    back = bytearray(SIZE)
    for source, target in enumerate(order):
        back[page * target : page * (target + 1)] = host[page * source : page * (source + 1)]
    assert peek(first, SIZE) == bytes(back)
    """,
        DELAY_US="50",
    )


def test_nixls_agents_move_memory_of_devices(library: str) -> None:
    """The kind VRAM of its lists, with the ordinal of the device beside each address."""
    pytest.importorskip("numpy")
    passes(
        library,
        """
    from tent.compat import nixl

    near, far = nixl.nixl_agent("near"), nixl.nixl_agent("far")
    gpus, host, page = [allocate(0, SIZE), allocate(LAST, SIZE)], bytearray(SIZE), 4096
    made = os.urandom(SIZE)
    assert gpu.fakecuda_peek(made, ctypes.c_uint64(gpus[1]), ctypes.c_uint64(SIZE), 1) == 0
    there = ctypes.addressof((ctypes.c_char * SIZE).from_buffer(host))
    far.register_memory([(gpus[1], SIZE, LAST, "")], "VRAM")
    near.register_memory([(gpus[0], SIZE, 0, "")], "VRAM")
    near.register_memory([(there, SIZE, 0, "")], "DRAM")
    name = near.add_remote_agent(far.get_agent_metadata())

    def rows(address, device):
        return [(address + i, page, device) for i in range(0, SIZE, page)]

    theirs = near.prep_xfer_dlist(name, rows(gpus[1], LAST), "VRAM")
    for kind, own in (("VRAM", rows(gpus[0], 0)), ("DRAM", rows(there, 0))):
        order = list(range(SIZE // page))
        handle = near.make_prepped_xfer("READ", near.prep_xfer_dlist("", own, kind), order, theirs, order[::-1])
        near.transfer(handle)
        for transfer in handle._sent:
            transfer.result(20)
        assert near.check_xfer_state(handle) == "DONE"
    want = b"".join(made[i : i + page] for i in reversed(range(0, SIZE, page)))
    assert peek(gpus[0], SIZE) == want == host
    for address, device, words in ((gpus[0], 1, "memory of cuda:0"), (there, 0, "not memory of such a device")):
        try:
            near.register_memory([(address, SIZE, device, "")], "VRAM")
        except nixl.nixlInvalidParamError as error:
            assert words in str(error), error
        else:
            raise AssertionError("registered")
    near.close()
    far.close()
    """,
    )


def test_mooncakes_engine_copies_nothing_of_a_device_by_hand(library: str) -> None:
    """It moves such memory, and refuses to touch it with the processor."""
    passes(
        library,
        """
    from tent.compat.mooncake import TransferEngine

    one, two = TransferEngine(), TransferEngine()
    for transfers in (one, two):
        assert transfers.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    ours, theirs, made = allocate(0, SIZE), allocate(LAST, SIZE), os.urandom(SIZE)
    assert gpu.fakecuda_peek(made, ctypes.c_uint64(ours), ctypes.c_uint64(SIZE), 1) == 0
    assert one.register_memory(ours, SIZE) == two.register_memory(theirs, SIZE, f"cuda:{LAST}") == 0
    assert one.transfer_sync_write(f"127.0.0.1:{two.get_rpc_port()}", ours, theirs, SIZE) == 0
    assert peek(theirs, SIZE) == made
    assert two.write_bytes_to_buffer(theirs, b"x", 1) == -1
    try:
        two.read_bytes_from_buffer(theirs, 1)
    except tent.NotImplementedError as error:
        assert f"cuda:{LAST}" in str(error), error
    else:
        raise AssertionError("it was read")
    assert peek(theirs, SIZE) == made
    one.close()
    two.close()
    """,
    )


def test_without_a_driver_the_error_says_what_is_missing() -> None:
    pytest.importorskip("numpy")
    program = """
import tent
from tent.compat import nixl

agent, memory = nixl.nixl_agent("agent"), bytearray(4096)
for kind, call in (
    (nixl.nixlNotSupportedError, lambda: agent.register_memory([(4096, 4096, 0, "")], "VRAM")),
    (tent.DeviceNotFoundError, lambda: agent.engine.register(memory, location="cuda:0")),
    (tent.DeviceNotFoundError, lambda: agent.engine.allocate(4096, location="cuda:0")),
):
    try:
        call()
    except kind as error:
        assert '"cuda:0"' in str(error) and "no driver: /nonexistent.so" in str(error), error
    else:
        raise AssertionError("registered")
agent.engine.register(memory).close()
agent.close()
"""
    apart.passes(program, TENT_LIBCUDA="/nonexistent.so")
