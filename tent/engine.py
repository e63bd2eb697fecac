"""Engine: one process's instance, and the face of everything that people do with tent."""

from __future__ import annotations

import base64
import json
import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, NoReturn

from . import _abi, _aio, _native, buffers, files, grid, loop, moving, page, settings
from ._text import shown
from ._transports import learn_transports
from .addresses import Addresses
from .admission import Admission
from .closing import abandon, close_at_exit, close_engine, close_in_background
from .enums import IntentType, Permission
from .errors import InvalidArgumentError
from .events import Events
from .explanation import Explanation
from .grid import Grid
from .indexes import Integers, Ranges
from .memory import Memory
from .moves import Moves
from .moving import WRITE
from .notifications import Notifications
from .quantities import bytes_of, list_of, text_of
from .region import Region, RegionSlice
from .rights import allowed_of, identities
from .segment import Segment
from .tail import Tail
from .terms import filled, terms
from .traffic import Traffic

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._gotent import Library
    from ._settings import Given

Target = str | bytes | bytearray | memoryview | os.PathLike[str]

OPEN_TIMEOUT = 10.0  # seconds to reach a peer; a refused connection fails at once


class Engine(Moves, Admission):
    """Moves bytes between own memory and that of peers. Use it in a `with` block; any thread may.

    `config` is a dict, JSON text or a path; further settings are keywords and win over it, key by key. Leaving the
    block waits for transfers under way, to their own limits; leaving it by an exception cancels them.

    Example:
        with tent.Engine({"log_level": "error"}, name="prefill") as prefill:
            kv = prefill.allocate(1 << 20, name="kv")
            decode = prefill.open(address)  # of another engine
            prefill.write(kv[0:4096], decode["kv"][4096:8192]).result(timeout=10)
            prefill.notify(decode, "page", "1").result(timeout=10)
            print(prefill.topology(), prefill.traffic(), prefill.config["log_level"].value)
            print(prefill.explain(kv[0:4096], decode["kv"][4096:8192])["routes"])
            print(prefill.metrics()["tent_write_bytes_total"], prefill.metrics_text())
        assert prefill.closed  # or close(), or in a coroutine aclose()

    Raises InvalidArgumentError for a wrong setting, with its key, its range and the nearest known key.
    """

    __slots__ = {
        "__weakref__": "",
        "_info": "",
        "notifications": "The notifications that peers have sent, a Notifications.",
    }

    def __init__(
        self,
        config: Mapping[str, Any] | Given | str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        **keywords: Unpack[Given],
    ) -> None:
        self._closed = True  # until there is something to close
        self._closing = _native.renewed(threading.RLock())
        texts = (*settings.layers(config, keywords), text_of(name, "name"))
        library = _native.load()
        self._library = library
        opened = partial(library.pybind_Open, _native.environment(), *texts)
        with _native.result_of(opened, partial(abandon, self, library)) as self._id:
            self._begin(library)

    def _begin(self, library: Library) -> None:
        """Makes the Python side of an engine that Go has opened."""
        info = json.loads(_native.call(library.pybind_Info, self._id))
        self.address: str = info["address"]
        self.name: str = info["name"]
        self.peer_id: str = info["id"]
        self._info: dict[str, Any] = info
        learn_transports(info["numbers"])
        self._default_priority = int(info["default_priority"])
        cells = info["page_bytes"] // page.CELL_BYTES
        self._states = page.states_at(info["page_address"], cells)
        self._words = page.words_at(info["page_address"], cells * page.CELL_WORDS)
        self._tail = Tail(library, self._id)
        self._live, self._ends = {}, {}
        self._looks = repeat(None, _native.LOOKS_PER_CRANK - 1)
        self._spent = deque()
        self._spare = min(64, cells // 8)
        self._memories = {}
        self._streams = weakref.WeakSet()
        self._hub = loop.Hub(library, self._id, info["event_fd"])
        self._closed = False
        self.notifications = Notifications(weakref.proxy(self), info["note_fd"])
        _native.cut_off_in_child(self)
        close_at_exit(self)

    # Memory

    def register(
        self,
        buffer: Any,
        *,
        name: str | None = None,
        location: str = "*",
        permission: Permission | None = None,
        peers: str | Iterable[str] | None = None,
        growable: bool = False,
    ) -> Region:
        """Makes a buffer known, so that it can be moved and, if it is named, reached by peers.

        Anything with DLPack, `__cuda_array_interface__`, the buffer protocol, `data_ptr()` and `nbytes`, or (address,
        size); contiguous, in C or in Fortran order: bytes move as they are stored. It is kept alive until the region is
        closed, and by views of the region. Named regions can be read and written by peers, unnamed ones by nobody,
        read-only buffers only be read; `permission` says otherwise, and `peers` names the identities that have it:
        "spiffe://prod/prefill/*", "dns:*.prefill.svc", "uid:1000", "id:" and the `peer_id` of an engine. None is all
        peers, an empty list nobody. Others do not learn of the region.

        Example:
            page = bytearray(4096)
            with engine.register(page, name="page") as own:
                engine.read(own, segment["kv"][0:4096]).result(timeout=10)

        A `growable` buffer may lack pages, as address space that is reserved and filled later. A transfer that needs
        bytes without pages fails as ADDRESS_NOT_REGISTERED, and no other does. Call Region.remap() when pages came or
        went.

        Raises InvalidArgumentError for an object without contiguous bytes, for memory that is not mapped and for a name
        that is taken.
        """
        found = buffers.describe(buffer)
        if location == "*":
            location = found.location
        allowed = allowed_of(permission, bool(name), found.read_only)
        arguments = (
            text_of(name, "name"),
            text_of(location, "location", needed=True),
            allowed,
            identities("peers", peers),
        )
        memory = Memory(found.address, found.size, found.read_only, found.owner)
        with self._registering(memory) as ids:
            self._register(ids, found.address, found.size, found.read_only, bool(growable), *arguments)
            if self._info["platforms"]:  # one of them may know the memory
                location = self._call_json(self._library.pybind_RegionStanding, ids[0])["location"]
            return self._adopt(ids[0], memory, name or "", location)

    def allocate(
        self,
        size: int | str,
        *,
        name: str | None = None,
        location: str = "cpu:0",
        permission: Permission | None = None,
        peers: str | Iterable[str] | None = None,
        prefault: bool = False,
        hugepages: bool = False,
    ) -> Region:
        """Returns a region of `size` bytes ("64MiB" too) of new, zeroed memory, which peers of this host can share.

        Example:
            with engine.allocate(1 << 16, name="scratch") as scratch:
                scratch.view[:4] = b"tent"

        Each page is taken from the system at its first use, which is slower than the next ones; `prefault=True` takes
        all of them now. `hugepages=True` takes them from the kernel's pool of huge pages (`vm.nr_hugepages`, mostly of
        2 MiB): a NIC that registers them needs far fewer entries, and a copy fewer look-ups. They are all taken now, in
        whole ones. `permission` and `peers` are those of register(). The memory is unmapped when the region and every
        view of it are gone.

        Raises OutOfMemoryError, a MemoryError, for more than this machine, a cgroup or the pool has left; nothing was
        touched then. InvalidArgumentError for huge pages of a device.
        """
        n = bytes_of(size, "size", least=1)
        allowed = allowed_of(permission, bool(name), False)
        given = identities("peers", peers)
        pages = bool(prefault), bool(hugepages)
        texts = text_of(name, "name"), text_of(location, "location", needed=True)

        def take(made: dict[str, Any]) -> tuple[int, Memory, str]:
            memory = Memory(made["address"], made["size"], False, None, partial(self._tail.free_memory, made["id"]))
            self._memories[made["id"]] = memory
            return made["id"], memory, made.get("location") or location

        def undo(made: tuple[int, Memory, str]) -> None:
            self._undone([made[0]])

        with self._allocating(take, undo, n, *texts, allowed, *pages, given) as (id, memory, where):
            return self._adopt(id, memory, name or "", where)

    def _adopt(self, id: int, memory: Memory, name: str, location: str) -> Region:
        self._memories[id] = memory
        return Region(self, id, memory, name, location)

    def pages(
        self,
        regions: Region | RegionSlice | Iterable[Region | RegionSlice],
        page_bytes: int | str,
        *,
        stride: int | str | None = None,
        offset: int | str = 0,
        rows: int = 1,
        row_stride: int | str | None = None,
    ) -> Grid:
        """Returns a reusable grid of pages over one or many equal regions, or slices of regions (layers, K and V).

        Example:
            with engine.pages([region[0:65536], region[65536:131072]], 4096) as ours:  # two layers of 16 pages
                with segment.pages([segment["kv"][0:65536], segment["kv"][65536:131072]], 4096) as theirs:
                    engine.write_pages(ours, [0, 1], theirs, [7, 3]).result(timeout=10)

        Page i has `rows` rows of `page_bytes` bytes; row r begins at offset + i * stride + r * row_stride of each
        region. `stride` is page_bytes unless given.
        """
        return grid.own(self, regions, page_bytes, stride, offset, rows, row_stride)

    def addresses(self, ranges: Ranges, lengths: Integers | int | str | None = None) -> Addresses:
        """Prepares ranges of own memory by plain address, each inside one registered region, for write_pages() and
        read_pages().

        Example:
            here = engine.addresses([(region.address, 4096), (region.address + 8192, 4096)])
            there = segment.addresses([segment["kv"].address, segment["kv"].address + 4096], 4096)
            engine.write_pages(here, [1, 0], there, [0, 1]).result(timeout=10)

        `ranges` are pairs (address, size), an integer array of two or more columns that begins with them, or addresses
        alone with `lengths`, one for all or one each. Posting 16,384 of them takes less than a millisecond.
        """
        self._check_open()
        return Addresses(self, -1, ranges, lengths, self, asks=False)

    # Peers

    def open(
        self,
        target: Target,
        *,
        timeout: float | str = OPEN_TIMEOUT,
        identity: str | Iterable[str] | None = None,
        wait: bool = False,
        create: bool = False,
        size: int | str | None = None,
        truncate: bool = False,
        readonly: bool = False,
        cached: bool = False,
        durability: str | None = None,
    ) -> Segment:
        """Opens a peer or a file.

        A peer is "host:port", "host:port/region", a name where metadata_type lists them ("decode-0", "decode-0/kv"), a
        blob of export(), or "" for this engine itself; a file of this machine is "file:///path" (as it stands, without
        percent-decoding) or an os.PathLike.

        Example:
            with engine.open(address, timeout=5) as peer, engine.open(f"{address}/kv") as kv:
                engine.write(region[0:64], peer["kv"][0:64]).result(timeout=10)
                engine.read(region[0:64], kv[0:64]).result(timeout=10)
            with engine.open(f"file://{folder}/cache", create=True, size=1 << 20) as file:
                engine.write(region[0:4096], file[0:4096], durability="data").result(timeout=10)

        It talks to the peer and raises PeerUnreachableError at once if nobody is there; a blob is only looked at, its
        first use talks. `timeout` is in seconds, or "500ms". `identity` has patterns of those that the peer may have;
        anybody else is refused as PEER_NOT_ADMITTED. With `wait` a peer, a name and a region have `timeout` to come up;
        without it an absent one is an error at once. The other keywords are for files: `create` makes an absent one,
        with mode 0600, and grows it to `size` bytes; only `truncate` ever makes one smaller; `readonly` refuses to
        write; `cached` goes through the page cache, for bytes that are soon needed again; durability="data" is that of
        every transfer that writes there.
        """
        self._check_open()
        if isinstance(target, str) and target.startswith(("/", "./", "../", "~")):
            raise InvalidArgumentError(
                f"{shown(target)} is no address", hint="a file is file:///path or a pathlib.Path"
            )
        options = files.Options(create, size, truncate, readonly, cached, durability)
        path = files.path_of(target)
        if (identity is not None or wait) and (path is not None or not isinstance(target, str)):
            given = "identity=" if identity is not None else "wait="
            raise InvalidArgumentError(f"target is {shown(target)}, and {given} belongs to the address of a peer")
        if path is not None:
            with files.opening(self, [files.File(path, options)], timeout) as (file,):
                return Segment(self, file["segment"], file)
        options.refuse(target)
        if isinstance(target, (bytes, bytearray, memoryview)):
            return Segment(self, self._opened_blob(target))
        if not isinstance(target, str):
            raise InvalidArgumentError(f"target is {shown(target)}: an address or a blob of export() is needed")
        return self._opened(text_of(target, "target"), identity, False, wait, timeout)

    def _opened(
        self, address: str, identity: str | Iterable[str] | None, another: bool, wait: bool, timeout: float | str
    ) -> Segment:
        wanted, limit = identities("identity", identity), _native.milliseconds(timeout)
        with self._opening(self._library.pybind_OpenSegment, address, wanted, another, wait, limit) as peer:
            return Segment(self, peer)

    def open_peer(
        self,
        address: str,
        *,
        timeout: float | str = OPEN_TIMEOUT,
        identity: str | Iterable[str] | None = None,
        wait: bool = False,
    ) -> Segment:
        """Opens another engine by an address that came from outside, with a request over HTTP for example.

        Example:
            with engine.open_peer(address, timeout=5) as peer:
                engine.read(region[0:64], peer["kv"][0:64]).result(timeout=10)

        It takes addresses and names, as open() does. It never opens a file of this machine, nor this
        engine itself: those are an InvalidArgumentError.
        """
        self._check_open()
        if not isinstance(address, str):
            raise InvalidArgumentError(f"address is {shown(address)}: the text of another engine's address is needed")
        return self._opened(text_of(address, "address"), identity, True, wait, timeout)

    async def open_async(
        self,
        target: Target,
        *,
        timeout: float | str = OPEN_TIMEOUT,
        identity: str | Iterable[str] | None = None,
        wait: bool = False,
        create: bool = False,
        size: int | str | None = None,
        truncate: bool = False,
        readonly: bool = False,
        cached: bool = False,
        durability: str | None = None,
    ) -> Segment:
        """Opens as open() does, with the same keywords, without blocking the event loop.

        Example:
            async with await engine.open_async(address) as peer:
                assert await engine.read(region[0:64], peer["kv"][0:64]) == 64
        """
        how = partial(self.open, target, timeout=timeout, identity=identity, wait=wait)
        file = {"create": create, "size": size, "truncate": truncate, "readonly": readonly, "cached": cached}
        return await _aio.in_thread(partial(how, **file, durability=durability))

    def export(self, regions: Region | str | Iterable[Region | str] | None = None) -> bytes:
        """Returns a blob for a handshake of your own; open() takes it in another process.

        Example:
            with engine.allocate(4096, name="page"):
                other.open(engine.export(["page"])).close()

        It has addresses, the id of the engine, regions (all named ones unless chosen) and versions, and no secrets.
        """
        names = None if regions is None else self._names_of([regions] if isinstance(regions, str) else regions)
        return base64.b64decode(self._call(self._library.pybind_Export, json.dumps(names)))

    def _names_of(self, regions: Region | Iterable[Region | str]) -> list[str]:
        """The names of own regions."""
        names = []
        for region in [regions] if isinstance(regions, Region) else list_of(regions, "regions", "regions or names"):
            if isinstance(region, Region):
                if region._engine is not self:
                    raise InvalidArgumentError(f"{region!r} belongs to another engine")
                region._check_open()
                if not region.name:
                    raise InvalidArgumentError(f"{region!r} has no name, by which peers would find it")
                names.append(region.name)
            elif isinstance(region, str):
                names.append(text_of(region, "a region's name"))
            else:
                raise InvalidArgumentError(f"{shown(region)} is neither a Region nor a name of one")
        return names

    # Looking

    @property
    def config(self) -> settings.Settings:
        """Every setting by key, with the value in force and its origin."""
        return settings.Settings((entry["key"], settings.Setting.of(entry)) for entry in self._info["config"] or ())

    def explain(
        self,
        local: moving.Local,
        remote: moving.Remote,
        *,
        op: int = WRITE,
        priority: int | None = None,
        intent: IntentType = IntentType.UNSPEC,
        policy: str = "",
    ) -> Explanation:
        """Returns the routes that a move between these operands would take, in order, and why not the others."""
        own = moving.local_slice(self, local, op)
        segment, region, offset, size = moving.remote_slice(self, remote)
        given, _ = terms(priority, intent=intent, policy=policy)
        how = dict(zip(_abi.TAKES, _abi.packed(filled(op, self._default_priority, given)), strict=True))
        return Explanation(
            self._call_long_json(
                self._library.pybind_Explain,
                how["opcode"],
                how["priority"],
                how["intent_type"],
                how["policy_name"],
                own.address,
                min(own.size, size),
                segment,
                region,
                offset,
            )
        )

    def topology(self) -> dict[str, Any]:
        """Returns the topology of this machine: network interfaces, memories, and their distances."""
        return dict(self._call_json(self._library.pybind_Topology))

    def events(self) -> Events:
        """Returns a new reader of the events of rails, links and peers.

        It is an iterator, also for `async for`, with drain(), wait_for() and fileno(). Each reader has a place of its
        own and begins at the oldest event kept.
        """
        self._check_open()
        return Events(self, self._info["events"])

    def metrics(self) -> dict[str, float]:
        """Returns every counter by name, with and without labels."""
        return dict(self._call_json(self._library.pybind_Metrics))

    def metrics_text(self) -> str:
        """Returns the counters in Prometheus' text format."""
        return self._call(self._library.pybind_MetricsText)

    def traffic(self) -> Traffic:
        """Returns the bytes that each rail has carried, its rate, and the bytes in flight; print it for a table."""
        return Traffic.of(self.metrics())

    def close(self, timeout: float | str | None = 30) -> None:
        """Closes the engine: no byte is read or written any more when this returns. Again: no effect.

        It waits up to `timeout` seconds for transfers under way (None: to their own limits) and cancels the rest. Peers
        that do not answer make it some 3 s longer. The callbacks of transfers have run by then, but for one that takes
        longer than 5 s, and the one that calls close() itself. In a signal handler that has interrupted tent itself or
        `logging`, they may run behind it. A signal handler that raises shortens the wait: the rest are cancelled, and
        its exception comes when all is over. In a handler that has interrupted a close() of the engine, it returns.
        """
        close_engine(self, timeout)

    async def aclose(self, timeout: float | str | None = 30) -> None:
        """close() without blocking the event loop."""
        await _aio.in_thread(close_engine, self, timeout)

    def __enter__(self) -> Engine:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        close_engine(self, None if kind is None else 0)

    async def __aenter__(self) -> Engine:
        self._check_open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.aclose(None if kind is None else 0)

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        name, address = getattr(self, "name", ""), getattr(self, "address", "no address")
        return f"<Engine {address}{state}>" if name == address else f"<Engine {name!r} at {address}{state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Engine cannot be pickled; send engine.export() and open it in the other process")

    @_native.finalizer
    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(f"{self!r} was dropped without close()", ResourceWarning, source=self, stacklevel=2)
            close_in_background(self)
