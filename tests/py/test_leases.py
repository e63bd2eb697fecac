"""Leases: parts of regions that peers have for a time, by their token or their name."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tent

PATIENCE = 30.0
SIZE = 64 << 10
PART = 4096


def pattern(seed: int, size: int) -> bytes:
    """Bytes of which each depends on its place."""
    return bytes((at * 131 + at // 251 + seed) % 256 for at in range(size))


@pytest.fixture
def ends(engines: Callable[..., tent.Engine]) -> Iterator[tuple[tent.Region, tent.Segment, tent.Region]]:
    """A region that no peer may touch, its owner as the other side has opened it, and memory of that side."""
    owner, asker = engines(), engines()
    with owner.allocate(SIZE) as pages, asker.allocate(SIZE) as own, asker.open(owner.address) as peer:
        pages.view[:] = pattern(1, SIZE)
        yield pages, peer, own


def mover(own: tent.Region) -> tent.Engine:
    return own._engine  # type: ignore[return-value]


def test_a_token_reaches_its_part_and_nothing_beside_it(ends: tuple[tent.Region, tent.Segment, tent.Region]) -> None:
    pages, peer, own = ends
    engine = mover(own)
    with pages.share(pages[PART : 3 * PART], "step-7", expires="60s") as lease:
        assert isinstance(lease, tent.Region) and lease.size == 2 * PART and len(lease.token) <= 128
        there = peer.lease(lease.token)
        assert there.size == 2 * PART and there.name == "step-7"
        assert peer["step-7"].size == there.size, "its name finds it as well"
        own.view[: 2 * PART] = pattern(2, 2 * PART)
        engine.write(own[0 : 2 * PART], there[0 : 2 * PART]).result(PATIENCE)
        expected = bytearray(pattern(1, SIZE))
        expected[PART : 3 * PART] = pattern(2, 2 * PART)
        assert bytes(pages.view) == expected
        engine.read(own[0:PART], there[PART : 2 * PART]).result(PATIENCE)
        assert bytes(own.view[:PART]) == expected[2 * PART : 3 * PART]
        assert not lease.closed
    assert lease.closed and not pages.closed
    with pytest.raises(tent.TentError):
        engine.write(own[0:PART], there[0:PART]).result(PATIENCE)
    peer.refresh()
    with pytest.raises(tent.AddressNotRegisteredError, match="it has ended"):
        peer.lease(lease.token)
    assert bytes(pages.view) == expected, "written after close()"


def test_a_lease_of_pages_reaches_them_and_nothing_between(
    ends: tuple[tent.Region, tent.Segment, tent.Region],
) -> None:
    pages, peer, own = ends
    engine, page = mover(own), 512
    chosen = [5, 2, 3, 9]
    expected = bytearray(pattern(1, SIZE))
    with pages.share(pages.pages(chosen, page), "kv") as lease:
        assert lease.size == 4 * page and lease.address == 0 and "several ranges" in repr(lease)
        for use in (lambda: lease.view, lambda: lease.__array_interface__):
            with pytest.raises((tent.InvalidArgumentError, AttributeError), match="several ranges"):
                use()
        with pytest.raises(tent.AddressNotRegisteredError):
            mover(pages).write(lease[0:8], pages[0:8])
        for there in (peer.lease(lease.token), peer["kv"]):
            assert there.size == 4 * page and there.address == 0
            own.view[:] = pattern(2, SIZE)
            engine.write_pages(own, [0, 1, 2, 3], there, [3, 1, 0, 2], page_bytes=page).result(PATIENCE)
            for here, at in enumerate([3, 1, 0, 2]):
                expected[chosen[at] * page : (chosen[at] + 1) * page] = own.view[here * page : (here + 1) * page]
            assert bytes(pages.view) == expected
            engine.read(own[0 : 2 * page], there[page : 3 * page]).result(PATIENCE)
            assert bytes(own.view[: 2 * page]) == expected[2 * page : 4 * page], "pages 2 and 3 are one range"
            with pytest.raises(tent.InvalidArgumentError, match="lie in two ranges"):
                engine.write(own[0 : 2 * page], there[0 : 2 * page]).result(PATIENCE)
        only = engine.open(f"{peer.address}/kv")
        assert only.size == 4 * page
        engine.read(own[0:page], only[3 * page : 4 * page]).result(PATIENCE)
        assert bytes(own.view[:page]) == expected[9 * page : 10 * page]
        only.close()
    with pytest.raises(tent.TentError):
        engine.write(own[0:8], there[3 * page : 3 * page + 8]).result(PATIENCE)
    assert bytes(pages.view) == expected


def test_a_page_of_several_leases_is_one_of_each(ends: tuple[tent.Region, tent.Segment, tent.Region]) -> None:
    pages, peer, own = ends
    engine, page = mover(own), 512
    layers = [[10, 20, 30], [60, 50, 40]]
    expected = bytearray(pattern(1, SIZE))
    own.view[:] = pattern(2, SIZE)
    keys, values = (pages.share(pages.pages(layer, page)) for layer in layers)
    with keys, values:
        far = peer.pages([peer.lease(keys.token), peer.lease(values.token)], page)
        near = engine.pages([own[0 : 3 * page], own[3 * page : 6 * page]], page)
        engine.write_pages(near, [2], far, [1]).result(PATIENCE)
    for i, layer in enumerate(layers):
        expected[layer[1] * page : (layer[1] + 1) * page] = own.view[(3 * i + 2) * page : (3 * i + 3) * page]
    assert bytes(pages.view) == expected


def test_a_permission_holds(ends: tuple[tent.Region, tent.Segment, tent.Region]) -> None:
    pages, peer, own = ends
    with pages.share(slice(0, PART), permission=tent.Permission.GlobalReadOnly) as lease:
        there = peer.lease(lease.token)
        assert there.readonly
        mover(own).read(own[0:PART], there[0:PART]).result(PATIENCE)
        with pytest.raises(tent.PermissionDeniedError):
            mover(own).write(own[0:PART], there[0:PART]).result(PATIENCE)
    assert bytes(pages.view) == pattern(1, SIZE) and bytes(own.view[:PART]) == pattern(1, PART)


def test_a_lease_ends_with_its_time_and_a_renewal_gives_more(
    ends: tuple[tent.Region, tent.Segment, tent.Region],
) -> None:
    pages, peer, own = ends
    long, short = pages.share(pages[0:PART], "long", expires=3600), pages.share(pages[0:PART], expires=0.001)
    there = peer.lease(long.token)
    assert repr(long).startswith("<Lease 'long' ") and "closed" not in repr(long)
    limit = time.monotonic() + PATIENCE
    while not short.closed:
        assert time.monotonic() < limit, "the lease does not end"
    with pytest.raises(tent.InvalidEntryError, match="share the range again"):
        short.renew(60)
    assert "closed" in repr(short)
    short.close()
    long.renew(None)
    mover(own).write(own[0:PART], there[0:PART]).result(PATIENCE)
    long.renew("1ms")
    while not long.closed:
        assert time.monotonic() < limit, "the lease does not end"
    with pytest.raises(tent.TentError):
        mover(own).write(own[0:PART], there[0:PART]).result(PATIENCE)
    long.close()


def test_a_lease_may_end_before_share_returns(
    ends: tuple[tent.Region, tent.Segment, tent.Region], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is stopped meanwhile gets a lease that has ended, and no error."""
    pages, peer, own = ends
    owner, library = mover(pages), mover(pages)._library
    call, limit = tent.Engine._call, time.monotonic() + PATIENCE

    def late(engine: tent.Engine, *arguments: Any) -> Any:
        made = call(engine, *arguments)
        if arguments[0] is library.pybind_ShareRegion:
            with pytest.raises(tent.InvalidEntryError):
                while time.monotonic() < limit:
                    call(owner, library.pybind_LeaseToken, json.loads(made)["lease"])
        return made

    with monkeypatch.context() as patch:
        patch.setattr(tent.Engine, "_call", late)
        lease = pages.share(pages[0:PART], expires=0.001)
    assert lease.closed and lease.token
    with pytest.raises(tent.TentError, match="ended"):
        peer.lease(lease.token)
    lease.close()
    bytes_before = bytes(pages.view)
    with pytest.raises(tent.TentError):
        mover(own).write(own[0:PART], peer[0:PART]).result(PATIENCE)
    assert bytes(pages.view) == bytes_before


@pytest.mark.parametrize("expires", [None, 0.001])
def test_a_lease_that_nobody_closes_keeps_no_memory(engine: tent.Engine, expires: float | None) -> None:
    """It ends by its time, or with its region."""
    region = engine.allocate(SIZE)
    memory = weakref.ref(region._memory)
    lease = region.share(region[0:PART], expires=expires)
    limit = time.monotonic() + PATIENCE
    while expires and not lease.closed:
        assert time.monotonic() < limit, "the lease does not end"
    if not expires:
        region.close()
        assert lease.closed
    del lease  # without a ResourceWarning
    region.close()
    del region
    gc.collect()
    assert memory() is None and not engine._memories


def test_a_region_takes_its_leases_with_it(engines: Callable[..., tent.Engine]) -> None:
    owner, asker = engines(), engines()
    pages, own = owner.allocate(SIZE), asker.allocate(SIZE)
    view = pages.view
    leases = [pages.share(pages[at : at + PART]) for at in range(0, SIZE, PART)]
    with asker.open(owner.address) as peer:
        parts = [peer.lease(lease.token) for lease in leases]
        for there in parts:
            asker.write(own[0:PART], there[0:PART]).result(PATIENCE)
        pages.close()
        view[:] = pattern(3, SIZE)
        for there in parts:
            with pytest.raises(tent.TentError):
                asker.write(own[0:PART], there[0:PART]).result(PATIENCE)
    assert all(lease.closed for lease in leases) and bytes(view) == pattern(3, SIZE)
    for lease in leases:
        lease.close()
    own.close()


def test_wrong_parts_and_tokens_say_what_is_wrong(ends: tuple[tent.Region, tent.Segment, tent.Region]) -> None:
    pages, peer, own = ends
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: pages.share(pages[0 : SIZE + 1]), "not inside"),
        (lambda: pages.share(slice(5, 5)), "empty"),
        (lambda: pages.share(own[0:PART]), "is no part of"),
        (lambda: pages.share([0, 1]), "region.share"),  # type: ignore[list-item]
        (lambda: pages.share([]), "region.share"),
        (lambda: pages.share(5), "region.share"),  # type: ignore[arg-type]
        (lambda: pages.share([pages[0:8], own[0:8]]), "is no part of"),
        (lambda: pages.share([pages[0:8], pages[7:9]]), "overlap"),
        (lambda: pages.share([pages[at : at + 1] for at in range(0, 2050, 2)]), "at most 1024"),
        (lambda: pages.pages([0, SIZE // 16], 16), r"index \[1\]"),
        (lambda: pages.pages([-1], 16), r"index \[0\]"),
        (lambda: pages.pages([0], 0), "page_bytes"),
        (lambda: pages.share(pages[0:1], expires=0), "ends later"),
        (lambda: pages.share(pages[0:1], expires="soon"), "expires is 'soon'"),
        (lambda: pages.share(pages[0:1], expires=-1), "expires is -1"),
        (lambda: pages.share(pages[0:1], permission=tent.Permission.LocalReadWrite), "GlobalReadOnly"),
        (lambda: pages.share(pages[0:1], peers="decode"), "peers"),
        (lambda: pages.share(pages[0:1], peers=5), "patterns of identities"),  # type: ignore[arg-type]
        (lambda: pages.share(pages[0:1], peers=["decode", 5]), "patterns of identities"),  # type: ignore[list-item]
        (lambda: peer.lease("decode-0"), "no token"),
        (lambda: peer.lease(""), "no token"),
    ]
    for call, words in wrong:
        with pytest.raises(tent.InvalidArgumentError, match=words):
            call()
    with pages.share(pages[0:PART]) as lease:
        with pytest.raises(tent.InvalidArgumentError, match="shared again"):
            lease.share(lease[0:1])
        with pytest.raises(tent.InvalidArgumentError, match="region"):
            lease.remap()
        with pytest.raises(tent.TentError, match="another engine"):
            own._engine.open(own._engine.address).lease(lease.token)  # type: ignore[attr-defined]


STOPPED = """
import sys, tent
with tent.Engine() as engine, engine.open(sys.argv[1]) as peer, engine.allocate(4096) as own:
    there = peer.lease(sys.argv[2])
    own.view[:] = b"x" * 4096
    engine.write(own[0:4096], there[0:4096]).result(30)
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            engine.write(own[0:4096], there[0:4096]).result(30)
        except tent.TentError as error:
            print(error.code, flush=True)
        else:
            print("written", flush=True)
"""


def test_a_peer_that_stands_still_keeps_no_lease_open(engines: Callable[..., tent.Engine]) -> None:
    """It is stopped while it has the lease. close() is the end all the same, and nothing lands when it goes on."""
    owner = engines()
    with owner.allocate(SIZE) as pages, pages.share(pages[0:PART]) as lease:
        command = [sys.executable, "-c", STOPPED, owner.address, lease.token]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
            assert peer.stdin and peer.stdout
            assert peer.stdout.readline() == "ready\n"
            peer.stdin.write("again\n" * 3)
            peer.stdin.flush()
            assert peer.stdout.readline() == "written\n"
            os.kill(peer.pid, signal.SIGSTOP)
            try:
                lease.close()
                pages.view[:] = pattern(4, SIZE)
            finally:
                os.kill(peer.pid, signal.SIGCONT)
            peer.stdin.write("again\n")
            peer.stdin.close()
            assert "written" not in peer.stdout.read().splitlines()[-1]
            assert peer.wait(PATIENCE) == 0
        assert bytes(pages.view) == pattern(4, SIZE), "written after close()"
