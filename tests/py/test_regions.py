"""The state of a region on each transport, and regions with pages that change."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Pair

import tent

PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mmap.restype = ctypes.c_size_t
libc.munmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
MAP_FIXED = 0x10


def anew(address: int, pages: int, protection: int = READ_WRITE) -> int:
    """Maps fresh pages at an address, 0 for any; earlier pages there are gone."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (MAP_FIXED if address else 0)
    at = libc.mmap(address, pages * PAGE, protection, flags, -1, 0)
    assert at not in (0, 2**64 - 1)
    return int(at)


@pytest.fixture
def pages() -> Iterator[int]:
    """The address of four pages."""
    at = anew(0, 4)
    yield at
    libc.munmap(at, 4 * PAGE)


def test_a_region_tells_its_transports(engines: Callable[..., tent.Engine]) -> None:
    engine = engines()
    with engine.allocate(PAGE, name="kv") as own:
        assert own.transports["tcp"] == "ready"
        assert set(own.transports.values()) == {"ready"}
        assert "over" not in repr(own)
    with pytest.raises(tent.InvalidEntryError):
        own.transports  # noqa: B018


REFUSES = "transport=shm fail_register code=NOT_HERE"


def test_a_region_lives_without_a_transport_that_cannot_use_it(engines: Callable[..., tent.Engine]) -> None:
    here, there = engines(allow_faults=True, faults=REFUSES), engines()
    kv, source = bytearray(PAGE), bytearray(b"\x5a" * PAGE)
    with here.register(source) as own, there.register(kv, name="kv"), here.open(there.address) as peer:
        assert own.transports["tcp"] == "ready"
        assert own.transports["shm"].startswith("not here: ")
        assert repr(own).endswith(" not here over shm>")
        here.write(own, peer["kv"]).result(timeout=10)
        assert kv == source
        explained = here.explain(own, peer["kv"])
        assert explained["taken"] == "tcp"
        reasons = {way["transport"]: way["reason"] for way in explained["rejected"]}
        assert "not registered with it: " in reasons["shm"]


def test_a_transport_that_is_required_makes_its_reason_an_error(engines: Callable[..., tent.Engine]) -> None:
    engine = engines(config={"transports/shm/required": True}, allow_faults=True, faults=REFUSES)
    with pytest.raises(tent.DeviceNotFoundError) as refusal:
        engine.register(bytearray(PAGE))
    assert refusal.value.code == "NOT_HERE"


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_remapped_pages_are_reached(engines: Callable[..., tent.Engine], pages: int, transport: str) -> None:
    settings = {f"transports/{name}/enable": name == transport for name in ("tcp", "shm")}
    owner, writer = engines(config=settings), engines(config=settings)
    source = bytearray(4 * PAGE)
    view = (ctypes.c_ubyte * len(source)).from_address(pages)
    with owner.register((pages, 4 * PAGE), name="kv") as kv, writer.register(source) as own:
        with writer.open(owner.address) as peer:
            there = peer["kv"]  # with the descriptor of before, from here on

            def write(byte: int, first: int = 0, end: int = 4) -> None:
                source[:] = bytes([byte]) * len(source)
                part = slice(first * PAGE, end * PAGE)
                writer.write(own[part], there[part]).result(timeout=10)
                assert bytes(view[part]) == source[part]

            write(1)
            anew(pages + PAGE, 2)
            kv.remap(PAGE, 2 * PAGE)
            assert bytes(view[PAGE : 3 * PAGE]) == bytes(2 * PAGE)
            write(2)
            anew(pages + 3 * PAGE, 1, 0)
            kv.remap(3 * PAGE)
            with pytest.raises(tent.TransferError) as lost:
                writer.write(own[3 * PAGE : 4 * PAGE], there[3 * PAGE : 4 * PAGE]).result(timeout=10)
            assert lost.value.code == "ADDRESS_NOT_REGISTERED"
            write(3, 0, 3)
            anew(pages + 3 * PAGE, 1)
            kv.remap(3 * PAGE, PAGE)
            write(4)


def test_a_reservation_fills(engines: Callable[..., tent.Engine], pages: int) -> None:
    anew(pages, 4, 0)
    source = bytearray(range(256)) * (PAGE // 256)
    owner, writer = engines(), engines()
    with pytest.raises(tent.InvalidArgumentError, match="growable"):
        owner.register((pages, 4 * PAGE), name="kv")
    with owner.register((pages, 4 * PAGE), name="kv", growable=True) as kv, writer.register(source) as own:
        with writer.open(owner.address) as peer:
            for page in (2, 0):
                there = peer["kv"][page * PAGE : (page + 1) * PAGE]
                with pytest.raises(tent.TransferError) as lost:
                    writer.write(own, there).result(timeout=10)
                assert lost.value.code == "ADDRESS_NOT_REGISTERED"
                anew(pages + page * PAGE, 1)
                kv.remap(page * PAGE, PAGE)
                writer.write(own, there).result(timeout=10)
                assert ctypes.string_at(pages + page * PAGE, PAGE) == source


@pytest.mark.parametrize(("offset", "length"), [(-1, 4), (0, 0), (PAGE, 1), (0, PAGE + 1)])
def test_remaps_outside_of_the_region(engines: Callable[..., tent.Engine], offset: int, length: int) -> None:
    with engines().register(bytearray(PAGE)) as own, pytest.raises(tent.InvalidArgumentError):
        own.remap(offset, length)


def test_memory_of_allocate_keeps_its_pages(engines: Callable[..., tent.Engine]) -> None:
    with engines().allocate(PAGE) as own, pytest.raises(tent.InvalidArgumentError, match="keeps its pages"):
        own.remap()


def test_a_fence_names_its_peers_by_all_that_peers_are_known_by(pair: Callable[..., Pair]) -> None:
    both = pair(4096)
    near = both.near.peer_id
    row = next(peer for peer in both.far.peers() if peer.id == near)
    for peer in (row, near, f"id:{near}", f"id:{near[:16]}*", both.near.address, f"uid:{os.getuid()}"):
        both.offered.fence(peer, timeout=10)
    for nobody in ("dns:other.svc", f"id:{both.far.peer_id}", "127.0.0.1:9"):
        with pytest.raises(tent.InvalidEntryError, match="no peer is"):
            both.offered.fence(nobody, timeout=10)
    with pytest.raises(tent.InvalidEntryError, match=r'no peer is "dns:other\.svc"; give'):  # and none of its port
        both.offered.fence("dns:other.svc", timeout=10)
    with pytest.raises(tent.InvalidArgumentError, match="peer is empty"):
        both.offered.fence("", timeout=10)
    both.theirs.expect(0, both.mine.expected)
    both.near.write(both.local, both.remote).result(10)


def test_a_close_beside_no_transfer_looks_at_no_cell(engine: tent.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = bytearray(PAGE)
    with monkeypatch.context() as patch:
        patch.setattr(tent.Engine, "_under_way", lambda _: pytest.fail("it has looked at all batches"))
        engine.register(buffer).close()
    buffer.append(1)  # it is the program's


def test_a_read_only_region_over_the_same_bytes_keeps_no_read_from_the_other(
    pair: Callable[..., Pair], keep: Any
) -> None:
    """Regions may overlap. The smaller one, which may not be written, is for WRITEs alone, in every form."""
    both = pair(8192)
    near, local, remote = both.near, both.local, both.remote
    fixed = keep(near.register(both.mine.view[:4096].toreadonly()))
    for read in (
        lambda: near.read(local[0:64], remote[0:64]),
        lambda: near.read(both.mine.view[64:128], remote[64:128]),
        lambda: near.read_ranges(near, [local.address + 128], both.peer, [remote.address + 128], [64]),
        lambda: near.read_pages(local[0:4096], [3], remote, [3], page_bytes=64),
        lambda: near.read_pages(near.pages(local[0:4096], 64), [4], both.peer.pages(remote, 64), [4]),
        lambda: near.read_pages(
            near.addresses([local.address + 320], 64), [0], both.peer.addresses([remote.address + 320], 64), [0]
        ),
    ):
        assert read().result(10) == 64
    with near.batch() as batch:
        batch.write(fixed[0:64], remote[4096:4160])
        batch.read(local[384:448], remote[384:448])
        batch.submit().result(10)
    both.mine.expect(0, both.theirs.expected[:448])
    both.theirs.expect(4096, both.theirs.expected[:64])
    for refused in (
        lambda: near.read(fixed[0:64], remote[512:576]),
        lambda: near.read(fixed.view[0:64], remote[512:576]),
        lambda: near.read_pages(fixed, [0], remote, [8], page_bytes=64),
        lambda: near.read_pages(near.pages(fixed, 64), [0], both.peer.pages(remote, 64), [8]),
    ):
        with pytest.raises(tent.InvalidArgumentError, match="is read-only: a READ cannot be stored there"):
            refused()
    both.check()
    fixed.close()
