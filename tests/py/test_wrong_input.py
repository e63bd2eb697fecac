"""Wrong input: a clear error before anything moves, and nothing has moved."""

from __future__ import annotations

import copy
import mmap
import pickle
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Pair

import tent

INVALID = tent.InvalidArgumentError

# (name, the error, words of its text, the call)
MOVES: list[tuple[str, type[Exception], str, Callable[[Pair], object]]] = [
    ("sizes differ", INVALID, "differ in size", lambda p: p.near.write(p.local[0:10], p.remote[0:11])),
    ("slice is too long", INVALID, "not inside", lambda p: p.local[0 : p.local.size + 1]),
    ("slice is negative", INVALID, "not inside", lambda p: p.local[-10:]),
    ("slice is empty", INVALID, "empty", lambda p: p.local[5:5]),
    ("slice is backwards", INVALID, "empty", lambda p: p.local[9:5]),
    ("slice has a step", INVALID, "step", lambda p: p.local[0:10:2]),
    ("slice is an index", INVALID, "slice of bytes", lambda p: p.local[3]),  # type: ignore[index]
    ("slice has a float", INVALID, "integers", lambda p: p.local[0:1.5]),  # type: ignore[misc]
    ("remote slice outside", INVALID, "not inside", lambda p: p.remote[0 : p.remote.size + 1]),
    ("remote slice empty", INVALID, "empty", lambda p: p.remote[7:7]),
    ("priority", INVALID, "priority", lambda p: p.near.write(p.local, p.remote, priority=3)),
    ("negative priority", INVALID, "priority", lambda p: p.near.write(p.local, p.remote, priority=-1)),
    ("negative timeout", INVALID, "timeout", lambda p: p.near.write(p.local, p.remote, timeout=-1)),
    ("timeout not a number", INVALID, "timeout", lambda p: p.near.write(p.local, p.remote, timeout=float("nan"))),
    ("transport", INVALID, "names no transport", lambda p: p.near.write(p.local, p.remote, hint="tpc")),
    ("transport number", INVALID, "names no transport", lambda p: p.near.write(p.local, p.remote, hint=99)),
    ("hint not built", tent.TentError, "", lambda p: p.near.write(p.local, p.remote, hint="rdma")),
    ("integrity", INVALID, "integrity", lambda p: p.near.write(p.local, p.remote, integrity="md5")),
    ("no stream", INVALID, "stream", lambda p: p.near.write(p.local, p.remote, stream="main")),
    ("notify", INVALID, "notify", lambda p: p.near.write(p.local, p.remote, notify="done")),  # type: ignore[arg-type]
    ("name too long", INVALID, "255", lambda p: p.near.write(p.local, p.remote, notify=("n" * 256, ""))),
    ("message too long", INVALID, "65536", lambda p: p.near.write(p.local, p.remote, notify=("n", b"m" * 65537))),
    ("keyword", TypeError, "prio", lambda p: p.near.write(p.local, p.remote, prio=1)),  # type: ignore[call-arg]
    ("operands swapped", INVALID, "local operand comes first", lambda p: p.near.write(p.remote, p.local)),
    ("remote is a number", INVALID, "remote operand", lambda p: p.near.write(p.local, 7)),  # type: ignore[arg-type]
    ("remote is a whole peer", INVALID, "as a whole", lambda p: p.near.write(p.local, p.peer)),
    ("local is nothing", INVALID, "no bytes", lambda p: p.near.write(None, p.remote)),
    (
        "unregistered",
        tent.AddressNotRegisteredError,
        "registered",
        lambda p: p.near.write(bytearray(10), p.remote[0:10]),
    ),
    ("beyond the region", tent.AddressNotRegisteredError, "leave the region", lambda p: beyond(p)),
    ("foreign region", INVALID, "another engine", lambda p: p.near.write(p.offered, p.remote)),
    ("foreign segment", tent.InvalidEntryError, "another engine", lambda p: p.far.write(p.offered, p.remote)),
    ("no such region", tent.AddressNotRegisteredError, "'vk'", lambda p: p.peer["vk"]),
    ("region's name", INVALID, "name", lambda p: p.peer[3]),  # type: ignore[index]
    ("slice of an address", INVALID, "nor a slice", lambda p: p.peer.pages(p.peer.memory(4096, 64), 64)),
    ("memory of size 0", INVALID, "range", lambda p: p.peer.memory(4096, 0)),
    ("memory beyond 2^64", INVALID, "range", lambda p: p.peer.memory(1 << 63, 1 << 63 | 1)),
    ("memory negative", INVALID, "range", lambda p: p.peer.memory(-1, 1)),
    ("pages of a text", INVALID, "no bytes", lambda p: p.near.write_pages("text", [0], p.remote, [0], page_bytes=64)),
    (
        "pages of an address",
        INVALID,
        "nor a slice",
        lambda p: p.near.write_pages(p.local, [0], p.peer.memory(4096, 64), [0], page_bytes=8),
    ),
    ("pages at a buffer", INVALID, "'bytes'", lambda p: p.near.write_pages(p.local, [0], b"0" * 64, [0], page_bytes=8)),
    ("page size of a slice", INVALID, "page_bytes", lambda p: p.near.write_pages(p.local[0:64], [0], p.remote, [0])),
    ("page size", INVALID, "page_bytes", lambda p: p.near.write_pages(p.local, [0], p.remote, [0])),
    ("page size 0", INVALID, "page_bytes", lambda p: p.near.write_pages(p.local, [0], p.remote, [0], page_bytes=0)),
    ("page outside", INVALID, "64", lambda p: p.near.write_pages(p.local, [64], p.remote, [0], page_bytes=64)),
    ("remote page outside", INVALID, "64", lambda p: p.near.write_pages(p.local, [0], p.remote, [64], page_bytes=64)),
    ("negative page", INVALID, "-1", lambda p: p.near.write_pages(p.local, [-1], p.remote, [0], page_bytes=64)),
    ("index counts", INVALID, "2 indexes", lambda p: p.near.write_pages(p.local, [0, 1], p.remote, [0], page_bytes=64)),
    ("fewer src", INVALID, "1 indexes", lambda p: p.near.write_pages(p.local, [0], p.remote, [0, 1], page_bytes=64)),
    ("index kind", INVALID, "integers", lambda p: p.near.write_pages(p.local, [0.5], p.remote, [0], page_bytes=64)),
    (
        "index format",
        INVALID,
        "format",
        lambda p: p.near.write_pages(p.local, b"0" * 8, p.remote, float_items(), page_bytes=64),
    ),
    (
        "index too big",
        INVALID,
        "64 bits",
        lambda p: p.near.write_pages(p.local, [1 << 64], p.remote, [0], page_bytes=64),
    ),
    ("no pages", INVALID, "no pages", lambda p: p.near.write_pages(p.local, [], p.remote, [], page_bytes=64)),
    (
        "ranges outside",
        INVALID,
        "range [1]",
        lambda p: p.near.write_ranges(p.local, [0, 4090], p.remote, [0, 0], [1, 7]),
    ),
    ("negative range", INVALID, "negative", lambda p: p.near.write_ranges(p.local, [-1], p.remote, [0], [1])),
    ("range of length 0", INVALID, "at least 1", lambda p: p.near.write_ranges(p.local, [0], p.remote, [0], [0])),
    ("range counts", INVALID, "differ in number", lambda p: p.near.write_ranges(p.local, [0], p.remote, [0, 1], [1])),
    (
        "range overflows",
        INVALID,
        "leave",
        lambda p: p.near.write_ranges(p.local, [2**63 - 1], p.remote, [0], [2**63 - 1]),
    ),
    ("notify whom", INVALID, "segment", lambda p: p.near.notify("127.0.0.1:1", "n", "m")),  # type: ignore[arg-type]
    (
        "grids differ",
        INVALID,
        "",
        lambda p: p.near.write_pages(p.near.pages(p.local, 64), [0], p.peer.pages(p.remote, 32), [0]),
    ),
    (
        "local is a remote grid",
        INVALID,
        "",
        lambda p: p.near.write_pages(p.peer.pages(p.remote, 64), [0], p.remote, [0]),
    ),
    (
        "foreign grid",
        tent.InvalidEntryError,
        "another engine",
        lambda p: p.near.write_pages(p.far.pages(p.offered, 64), [0], p.remote, [0]),
    ),
    (
        "another page size than the grid's",
        INVALID,
        "page_bytes is 32",
        lambda p: p.near.write_pages(p.near.pages(p.local, 64), [0], p.remote, [0], page_bytes=32),
    ),
    ("trace is a number", INVALID, "must be a str", lambda p: p.near.write(p.local, p.remote, trace=7)),  # type: ignore[arg-type]
    ("trace is too long", INVALID, "limit is 64", lambda p: p.near.write(p.local, p.remote, trace="t" * 65)),
    ("trace is no text", INVALID, "trace '", lambda p: p.near.write(p.local, p.remote, trace="\ud800")),
    ("message is a number", INVALID, "str or bytes", lambda p: p.near.write(p.local, p.remote, notify=("n", 3))),  # type: ignore[arg-type]
]


def float_items() -> memoryview:
    return memoryview(array("d", [0.0] * 8))


def beyond(p: Pair) -> object:
    return p.near.write((p.local.address + 1, p.local.size), p.remote)


@pytest.mark.parametrize(("error", "words", "call"), [m[1:] for m in MOVES], ids=[m[0] for m in MOVES])
def test_a_wrong_move_is_refused_and_moves_nothing(
    pair: Callable[..., Pair], error: type[Exception], words: str, call: Callable[[Pair], object]
) -> None:
    both = pair(4096)
    with pytest.raises(error) as caught:
        call(both)
    assert words in str(caught.value)
    if isinstance(caught.value, tent.TentError):
        assert caught.value.code.isupper()
    both.check()
    assert both.far.notifications.drain() == []


def test_a_batch_with_one_wrong_request_moves_nothing(pair: Callable[..., Pair]) -> None:
    both = pair(4096)
    with both.near.batch() as batch:
        batch.write(both.local[0:10], both.remote[0:10])
        with pytest.raises(tent.TentError):
            batch.write(bytearray(10), both.remote[20:30])
    both.check()
    with both.near.batch() as empty, pytest.raises(INVALID):
        empty.submit()


def test_pages_of_a_read_only_buffer_are_never_written(pair: Callable[..., Pair], keep: Any) -> None:
    """Also where a WRITE has shown before that the grid fits."""
    both = pair(4096)
    fixed = bytes(both.mine.view)
    region = keep(both.near.register(fixed, name="fixed", permission=tent.Permission.GlobalReadOnly))
    for _ in range(2):
        both.near.write_pages(region, [0], both.remote, [0], page_bytes=64).result(10)
        with pytest.raises(tent.TentError, match="read-only"):
            both.near.read_pages(region, [1], both.remote, [1], page_bytes=64).result(10)
    assert fixed == both.mine.expected
    both.theirs.expect(0, fixed[:64])
    both.check()
    region.close()


@pytest.mark.parametrize("permission", list(tent.Permission))
def test_permissions_hold(pair: Callable[..., Pair], keep: Any, permission: tent.Permission) -> None:
    both = pair(4096)
    region = keep(both.far.register(both.theirs.view, name="limited", permission=permission))
    if permission == tent.Permission.LocalReadWrite:
        with pytest.raises(tent.AddressNotRegisteredError, match="no region 'limited'"):
            both.peer["limited"]
    else:
        limited = both.peer["limited"]
        both.near.read(both.local, limited).result(10)
        both.mine.expect(0, both.theirs.expected)
    if permission == tent.Permission.GlobalReadOnly:
        with pytest.raises((tent.PermissionDeniedError, tent.TransferError)) as caught:
            both.near.write(both.local[0:7], limited[0:7]).result(10)
        assert caught.value.code == "PERMISSION_DENIED"
    both.check()
    region.close()


def test_unnamed_regions_are_for_nobody_else(pair: Callable[..., Pair], keep: Any) -> None:
    both = pair(4096)
    hidden = bytearray(b"hidden" * 100)
    region = keep(both.far.register(hidden))
    with pytest.raises((tent.PermissionDeniedError, tent.AddressNotRegisteredError, tent.TransferError)):
        both.near.read(both.local[0:600], both.peer.memory(region.address, 600)).result(10)
    both.check()


def test_registering_wrong_things(engines: Callable[..., tent.Engine], keep: Any) -> None:
    engine = engines()
    taken = keep(engine.register(bytearray(10), name="taken"))
    for buffer, keywords, error, words in [
        (bytearray(10), {"name": "taken"}, tent.TentError, "taken"),
        (bytearray(0), {}, INVALID, "empty"),
        (memoryview(bytearray(100))[::2], {}, INVALID, "strides (2,)"),
        (object(), {}, INVALID, "object"),
        ("text", {}, INVALID, "str"),
        ((0, 10), {}, INVALID, "address"),
        ((1 << 63, 1 << 63 | 1), {}, INVALID, "address space"),
        ((-1, 10), {}, INVALID, "address"),
        ((4096, 0), {}, INVALID, "empty"),
        ((4096, -1), {}, INVALID, "empty"),
        ((4096,), {}, INVALID, "tuple"),
        (b"constant", {"permission": tent.Permission.GlobalReadWrite}, tent.PermissionDeniedError, "read-only"),
        (bytearray(10), {"permission": 7}, INVALID, "Permission"),
        (bytearray(10), {"location": "gpu:0"}, INVALID, "gpu:0"),
    ]:
        with pytest.raises(error) as caught:
            engine.register(buffer, **keywords)  # type: ignore[arg-type]
        assert words in str(caught.value)
    for size in (0, -1, 1 << 63, 1.5, None, True):
        with pytest.raises(INVALID):
            engine.allocate(size)  # type: ignore[arg-type]
    with pytest.raises(tent.TentError):
        engine.allocate(4096, location="cuda:0")
    taken.close()


def test_read_only_buffers(pair: Callable[..., Pair], keep: Any) -> None:
    both = pair(4096)
    constant = keep(both.near.register(b"constant" * 100))
    both.near.write(constant[0:800], both.remote[0:800]).result(10)
    both.theirs.expect(0, b"constant" * 100)
    for operand in (constant, b"constant"):
        with pytest.raises(INVALID, match="read-only"):
            both.near.read(operand, both.remote[0:800])
    named = keep(both.far.register(b"public!!" * 10, name="public"))
    both.near.read(both.local[0:80], both.peer["public"]).result(10)
    both.mine.expect(0, b"public!!" * 10)
    with pytest.raises((tent.PermissionDeniedError, tent.TransferError)):
        both.near.write(both.local[0:80], both.peer["public"]).result(10)
    assert bytes(named.view) == b"public!!" * 10
    assert named.view.readonly
    both.check()


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("127.0.0.1:1", tent.PeerUnreachableError),
        ("no-such-host.invalid:80", tent.PeerUnreachableError),
        ("127.0.0.1", tent.TentError),
        ("127.0.0.1:notaport", tent.TentError),
        ("file:///tmp", tent.TentError),
        ("file:///no/such/file", tent.TentError),
        ("file:relative", INVALID),
        (b"not a blob", tent.TentError),
        (7, INVALID),
    ],
)
def test_opening_an_absent_peer_fails_at_once(
    engines: Callable[..., tent.Engine], target: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        engines().open(target)


def test_opening_a_region_that_is_not_there(pair: Callable[..., Pair]) -> None:
    both = pair(4096)
    with pytest.raises(LookupError) as caught:
        both.near.open(both.far.address + "/vk")
    assert "vk" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"transfer_stall_timeot": 3}, "transfer_stall_timeout"),
        ({"transports": {"tcp": {"lanse": 2}}}, "lanes"),
        ({"rpc_server_port": "many"}, "rpc_server_port"),
        ({"rpc_server_port": 70000}, "rpc_server_port"),
        ({"config": "/no/such/file.json"}, "/no/such/file.json"),
        ({"config": "{ not json"}, "not JSON"),
        ({"config": 7}, "config"),
        ({"rpc_server_hostname": object()}, "JSON"),
    ],
)
def test_wrong_settings_name_the_key(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(INVALID) as caught:
        tent.Engine(**settings)
    assert words in str(caught.value)


@pytest.mark.interpreter
def test_everything_of_a_closed_engine_says_so(pair: Callable[..., Pair]) -> None:
    both = pair(4096)
    transfer = both.near.write(both.local, both.remote)
    both.theirs.expect(0, both.mine.expected)
    transfer.result(10)
    both.near.close()
    both.near.close()  # again: no effect
    for call in (
        lambda: both.near.write(both.local, both.remote),
        lambda: both.near.write_pages(both.local, [0], both.remote, [0], page_bytes=64),
        lambda: both.near.batch(),
        lambda: both.near.register(bytearray(10)),
        lambda: both.near.allocate(10),
        lambda: both.near.open(both.far.address),
        lambda: both.near.export(),
        lambda: both.near.metrics(),
        lambda: both.near.notifications.get(1),
        lambda: both.near.notifications.fileno(),
        lambda: both.near.__enter__(),
        lambda: both.local.fence(),
        lambda: both.peer.alive(),
        lambda: both.peer["other"],
        lambda: both.near.notify(both.peer, "n"),
    ):
        with pytest.raises(tent.EngineClosedError):
            call()
    assert transfer.done()
    assert transfer.result() == 4096
    assert "closed" in repr(both.near) and "closed" in repr(both.local) and "closed" in repr(both.peer)
    both.local.close()
    both.peer.close()


def test_closed_regions_and_segments(pair: Callable[..., Pair]) -> None:
    both = pair(4096)
    part = both.local[0:10]
    both.local.close()
    for operand in (both.local, part):
        with pytest.raises(tent.InvalidEntryError):
            both.near.write(operand, both.remote[0:10])
    with pytest.raises(tent.AddressNotRegisteredError):
        both.near.write(both.mine.view[0:10], both.remote[0:10])
    both.peer.close()
    with pytest.raises(tent.InvalidEntryError):
        both.near.write(part, both.remote[0:10])
    both.check()


def test_a_region_closed_by_its_owner_refuses(pair: Callable[..., Pair]) -> None:
    both = pair(4096)
    both.near.write(both.local, both.remote).result(10)
    both.theirs.expect(0, both.mine.expected)
    both.offered.close()
    both.theirs.view[:] = bytes(4096)
    both.theirs.expect(0, bytes(4096))
    with pytest.raises(tent.TentError) as caught:
        both.near.write(both.local, both.remote).result(10)
    assert caught.value.code in ("STALE_ID", "INVALID_ENTRY", "ADDRESS_NOT_REGISTERED", "STALE_GENERATION")
    both.check()


TEXTS: list[tuple[str, Callable[[Pair, Any], object]]] = [
    ("name", lambda p, text: tent.Engine(name=text)),
    ("name", lambda p, text: p.near.register(bytearray(8), name=text)),
    ("name", lambda p, text: p.near.allocate(8, name=text)),
    ("name", lambda p, text: p.local.share(p.local[0:8], text)),
    ("location", lambda p, text: p.near.register(bytearray(8), location=text)),
    ("location", lambda p, text: p.near.allocate(8, location=text)),
    ("address", lambda p, text: p.near.open_peer(text)),
    ("target", lambda p, text: p.near.open(text)),
    ("token", lambda p, text: p.peer.lease(text)),
    ("peer", lambda p, text: p.local.fence(text)),
    ("peer", lambda p, text: p.near.disconnect(text)),
]


@pytest.mark.parametrize(("named", "call"), TEXTS)
@pytest.mark.parametrize("text", [7, ["a"], "a\0b", "\ud800"])
def test_a_text_that_is_none_is_named(
    pair: Callable[..., Pair], named: str, call: Callable[[Pair, Any], object], text: Any
) -> None:
    both = pair(4096)
    with pytest.raises(INVALID) as caught:
        call(both, text)
    assert str(caught.value).startswith(f"{named} is {text!r}: "), caught.value
    both.check()


@pytest.mark.parametrize(("named", "call"), [entry for entry in TEXTS if entry[0] in ("location", "token")])
def test_a_text_that_is_needed_is_not_none(
    pair: Callable[..., Pair], named: str, call: Callable[[Pair, Any], object]
) -> None:
    both = pair(4096)
    with pytest.raises(INVALID, match=f"{named} is None: "):
        call(both, None)


def test_nobody_is_a_wanted_identity(pair: Callable[..., Pair]) -> None:
    both = pair(4096)
    with pytest.raises(tent.PermissionDeniedError, match="wanted was nobody"):
        both.near.open(both.far.address, identity=[])
    both.check()


@pytest.mark.parametrize("named", ["trace", "policy", "notify"])
def test_a_text_of_a_move_that_utf8_cannot_write(pair: Callable[..., Pair], named: str) -> None:
    both = pair(4096)
    text: Any = ("\ud800", b"") if named == "notify" else "\ud800"
    with pytest.raises(INVALID):
        both.near.write(both.local, both.remote, **{named: text})
    both.check()


def test_handles_cannot_be_pickled_or_copied(pair: Callable[..., Pair]) -> None:
    both = pair(4096)
    transfer = both.near.write(both.local, both.remote)
    both.theirs.expect(0, both.mine.expected)
    transfer.result(10)
    for thing in (both.near, both.local, both.peer, transfer):
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=r"engine\.export\(\)"):
                attempt(thing)
    with pytest.raises(TypeError):
        pickle.dumps(both.near.notifications)


@pytest.mark.interpreter
def test_errors_survive_pickling() -> None:
    error = tent.TransferError("gone", code="PEER_UNREACHABLE", hint="look", peer="a:1", failed_tasks=[1, 2])
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), back.code, back.peer, back.failed_tasks, str(back)) == (
        tent.TransferError,
        "PEER_UNREACHABLE",
        "a:1",
        [1, 2],
        "gone; look",
    )


@pytest.mark.interpreter
def test_each_error_is_the_builtin_that_people_catch() -> None:
    for error, builtin in [
        (tent.InvalidArgumentError, ValueError),
        (tent.AddressNotRegisteredError, LookupError),
        (tent.InvalidEntryError, LookupError),
        (tent.DeviceNotFoundError, LookupError),
        (tent.PermissionDeniedError, PermissionError),
        (tent.PeerUnreachableError, ConnectionError),
        (tent.PeerTimeoutError, TimeoutError),
        (tent.PeerRestartedError, ConnectionError),
        (tent.ForkError, RuntimeError),
        (tent.TransferTimeoutError, TimeoutError),
        (tent.errors.NotImplementedError, NotImplementedError),
    ]:
        assert issubclass(error, builtin) and issubclass(error, tent.TentError)
        assert str(error("why", hint="the cure")) == "why; the cure"
    assert tent.TentException is tent.TentError
    assert "NotImplementedError" not in tent.__all__


@pytest.mark.interpreter
def test_a_file_mapping_is_a_buffer_too(pair: Callable[..., Pair], keep: Any, tmp_path: Any) -> None:
    both = pair(8192)
    path = tmp_path / "weights"
    path.write_bytes(b"w" * 8192)
    with path.open("rb") as file:
        weights = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    region = keep(both.near.register(weights))
    both.near.write(region, both.remote).result(10)
    both.theirs.expect(0, b"w" * 8192)
    both.check()
