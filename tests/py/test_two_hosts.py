"""Memory of GPUs on two pretended hosts in one domain of multi-node NVLink. These are two processes with boot ids of
their own, in a network of their own. The driver and NVML are emulated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import apart
import pytest
from gpu import COMMON, ORACLE, REAL, driver, management, passes

__all__ = ["driver", "management"]  # the fixtures `library` and `nvml`

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of the network need root"),
    pytest.mark.skipif(REAL, reason="the two hosts are pretended ones, with an emulated NVML"),
]

# Before the first import of tent: a network with an address that is not loopback, and a machine's own boot id.
HOSTS = """
    import ctypes, fcntl, os, socket, struct, tempfile

    libc = ctypes.CDLL(None, use_errno=True)
    NEWNS, NEWNET, BIND, PRIVATE, REC = 0x20000, 0x40000000, 4096, 1 << 18, 16384

    def done(result):
        assert result == 0, os.strerror(ctypes.get_errno())

    def enter_own_network():
        done(libc.unshare(NEWNET))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            for name, address in ((b"lo", "127.0.0.1"), (b"lo:1", "10.99.0.1")):
                given = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
                fcntl.ioctl(any_socket, 0x8916, struct.pack("16s16s8x", name, given))  # SIOCSIFADDR
                fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH22x", name, 0x41))  # SIOCSIFFLAGS: up, running

    def become_another_machine():
        done(libc.unshare(NEWNS))
        done(libc.mount(b"none", b"/", None, REC | PRIVATE, None))
        with tempfile.NamedTemporaryFile() as file, open("/proc/sys/kernel/random/uuid", "rb") as made:
            file.write(made.read())
            file.flush()
            done(libc.mount(file.name.encode(), b"/proc/sys/kernel/random/boot_id", None, BIND, None))
"""

SETTINGS = """
    PAGE, PAGES = 16 << 10, 64
    SIZE = PAGE * PAGES

    def settings():
        return {"rpc_server_hostname": "10.99.0.1", "security/cluster_key": os.environ["TEST_KEY"]}
"""

# A process on the other host, with memory of allocate(). It shows all bytes at each line.
OWNER = """
    import sys

    with tent.Engine(settings()) as engine:
        with engine.allocate(SIZE, location="cuda:1", name="cache") as cache:
            poke(cache.address, pattern(2, SIZE))
            print(engine.address, flush=True)
            for line in sys.stdin:
                print(peek(cache.address, SIZE).hex(), flush=True)
"""


@pytest.fixture(name="domain")
def in_domain(nvml: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a process with GPUs in a domain, and a key of a cluster."""
    key = tmp_path / "cluster.key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    monkeypatch.setenv("TEST_KEY", str(key))
    monkeypatch.setenv("TENT_LIBNVIDIA_ML", nvml)


@pytest.mark.usefixtures("domain")
def test_pages_move_between_gpus_of_two_hosts(library: str, tmp_path: Path) -> None:
    """The report names the transport, and the other host's memory changes in the written pages alone."""
    owner = tmp_path / "owner.py"
    begin = "\nbecome_another_machine()\n"
    owner.write_text(dedent(HOSTS) + begin + "".join(map(dedent, (COMMON, ORACLE, SETTINGS, OWNER))))
    program = f"""
    import subprocess, sys

    pipe = subprocess.PIPE
    owner = subprocess.Popen([sys.executable, {str(owner)!r}], stdin=pipe, stdout=pipe, text=True)
    where = owner.stdout.readline().strip()

    def theirs():
        print(file=owner.stdin, flush=True)
        return bytes.fromhex(owner.stdout.readline())

    mine = pattern(1, SIZE)
    address = allocate(0, SIZE)
    poke(address, mine)
    with tent.Engine(settings()) as engine, engine.register((address, SIZE), name="own") as own:
        assert own.transports["mnnvl"].startswith("not shared: "), "the peer needs none of ours"
        with engine.open(where) as segment:
            here, there = engine.pages([own], PAGE), segment.pages([segment["cache"]], PAGE)
            explained = engine.explain(own, segment["cache"][0:SIZE])
            assert explained["taken"] == "mnnvl", explained
            source, target = [3, 0, 63, 17], [40, 41, 0, 63]
            assert engine.write_pages(here, source, there, target).result(timeout=20) == 4 * PAGE
            want = bytearray(pattern(2, SIZE))
            for a, b in zip(source, target):
                want[b * PAGE : (b + 1) * PAGE] = mine[a * PAGE : (a + 1) * PAGE]
            assert theirs() == want
            assert engine.read_pages(here, [1, 2], there, [40, 5]).result(timeout=20) == 2 * PAGE
            now = bytearray(mine)
            now[PAGE : 2 * PAGE], now[2 * PAGE : 3 * PAGE] = want[40 * PAGE : 41 * PAGE], want[5 * PAGE : 6 * PAGE]
            assert peek(address, SIZE) == now
            assert theirs() == want, "a second look"
    owner.stdin.close()
    assert owner.wait(timeout=20) == 0
    """
    text = dedent(HOSTS) + "\nenter_own_network()\n" + "".join(map(dedent, (COMMON, ORACLE, SETTINGS, program)))
    apart.passes(text, TENT_LIBCUDA=library, TENT_FAKECUDA_IMEX="1")


@pytest.mark.usefixtures("domain")
def test_memory_says_how_other_hosts_reach_it(library: str) -> None:
    passes(
        library,
        """
    def types(address):
        value = ctypes.c_uint64()
        assert gpu.cuPointerGetAttribute(ctypes.byref(value), 14, ctypes.c_uint64(address)) == 0
        return value.value

    SIZE = 2 << 20
    address = allocate(0, SIZE)
    with tent.Engine() as engine:
        with engine.allocate(SIZE, location="cuda:1") as made:
            assert types(made.address) == 9, "by fabric handles, and by descriptors"
            assert peek(made.address, SIZE) == bytes(SIZE)
            assert made.transports["mnnvl"] == "ready" and "mnnvl" not in repr(made), made
        with engine.register((address, SIZE), permission=tent.Permission.GLOBAL_READ_WRITE) as own:
            assert "asked for no fabric handle" in own.transports["mnnvl"], own.transports
            assert repr(own).endswith(" not shared over mnnvl>"), own
    with tent.Engine({"transports/mnnvl/handle_type": "posix_fd"}) as engine:
        with engine.allocate(SIZE, location="cuda:1") as made:
            assert types(made.address) == 1, "by descriptors alone"
    with tent.Engine({"transports/mnnvl/enable": False}) as engine:
        with engine.allocate(4096, location="cuda:1") as made:
            assert types(made.address) == 0, "small, and of cuMemAlloc"
    """,
        IMEX="1",
        RDMA_VMM="1",
    )


def dedent(text: str) -> str:
    return textwrap.dedent(text)


@pytest.mark.usefixtures("domain")
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"IMEX": "1"}, ""),
        ({"IMEX": "0"}, "CUDA_ERROR_NOT_PERMITTED, 800); this process has no IMEX channel"),
        ({"IMEX": "1", "FABRIC": "0"}, "the device gives no fabric handles (attribute 128 is 0)"),
    ],
)
def test_doctor_and_topo_say_the_missing_part(library: str, settings: dict[str, str], says: str) -> None:
    env = os.environ | {"TENT_LIBCUDA": library} | {f"TENT_FAKECUDA_{k}": v for k, v in settings.items()}

    def tool(*arguments: str) -> str:
        command = [sys.executable, "-m", "tent", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env).stdout

    checks = {check["name"]: check for check in json.loads(tool("doctor", "--json"))["checks"]}
    found = checks["transport mnnvl"]
    table = " ".join(tool("topo", "--table").split())
    if not says:
        assert found["ok"] and found["found"][1] == f"cuda:1: NVLink domain {'c1' * 16}, clique 7", found
        assert "no NVLink to other hosts" not in table and "clique 7" in table, table
        return
    assert not found["ok"] and says in found["reason"], found
    assert "no NVLink to other hosts: cuda.fabric: cuda:1: " in table and says in table, table
