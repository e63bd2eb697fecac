"""TransferEngine: the integer level, with Mooncake's names. Addresses, ids and records; the Engine behind it is
`engine.engine`."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from . import _native, files, moving, packing
from ._text import shown
from .engine import OPEN_TIMEOUT, Engine
from .enums import Permission, SegmentInfoType, TransferStatusEnum, kWildcardLocation
from .errors import InvalidArgumentError, transfer_error
from .local_memory import LocalMemory
from .page import CELL_WORDS, COMPLETED, PENDING
from .quantities import integer_of, limit_of, list_of, text_of
from .records import (
    BatchGuard,
    MemoryGuard,
    MemoryOptions,
    Notification,
    Request,
    SegmentInfo,
    SegmentInfoBuffer,
    TransferStatus,
)
from .request_array import RequestArray
from .rights import identities, permission_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._settings import Given


class _Polled:
    """The findings of the last polls of a batch. While the batch's first word in the page is the same, nothing is
    new."""

    __slots__ = ("at", "batch", "looks", "seen", "statuses")

    def __init__(self, batch: int, at: int, seen: int) -> None:
        self.batch = batch
        self.at = at
        self.seen = seen
        self.looks = _native.LOOKS_PER_CRANK
        self.statuses: dict[int, TransferStatus] = {}


class TransferEngine:
    """An Engine with Mooncake's names: integers, addresses and records. The config is a path, JSON text or a dict.

    Example:
        with tent.TransferEngine({"log_level": "error"}) as te:
            address_of_mine = te.allocate_local_memory(1 << 16)
            handle = te.open_segment(address)
            theirs = te.get_segment_info(handle).buffers[0].base
            batch = te.allocate_transfer_batch(16)
            te.submit_transfer(batch, [tent.Request(tent.OpCode.WRITE, address_of_mine, handle, theirs, 4096)])
            assert te.wait(batch, timeout=10).state == te.get_transfer_status(batch, 0).state
            te.free_transfer_batch(batch)
            te.close_segment(handle)
            te.free_local_memory(address_of_mine)

    Raises the exceptions of tent.errors, where Mooncake returns a code.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | Given | str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        **settings: Unpack[Given],
    ) -> None:
        self.engine = Engine(config, name=name, **settings)
        self._polled = _Polled(-1, 0, -1)  # of the batch that was polled last; replaced as a whole
        self._memory = LocalMemory(self.engine)
        self._words = self.engine._words

    # Identity

    def available(self) -> bool:
        """Whether the engine is open."""
        return not self.engine.closed

    def get_segment_name(self) -> str:
        """The name under which peers open this engine."""
        return self.engine.address

    def get_rpc_server_address(self) -> str:
        """The host of the control plane."""
        return self.engine.address.rpartition(":")[0].strip("[]")

    def get_rpc_server_port(self) -> int:
        """The port of the control plane."""
        return int(self.engine._info["port"])

    def get_local_topology(self) -> str:
        """Returns the topology of this machine, as JSON."""
        return self.engine._call(self.engine._library.pybind_Topology)

    def export_local_segment(self) -> bytes:
        """A blob for a handshake of your own; see Engine.export()."""
        return self.engine.export()

    # Segments

    def import_remote_segment(self, shared_handle: bytes) -> int:
        """Opens a blob of export_local_segment() without contacting the peer."""
        if not isinstance(shared_handle, (bytes, bytearray, memoryview)):
            raise InvalidArgumentError(f"shared_handle is {shown(shared_handle)}: a blob of export() is needed")
        return self.engine._opened_blob(shared_handle)

    def open_segment(
        self,
        segment_name: str,
        *,
        identity: str | Iterable[str] | None = None,
        create: bool = False,
        size: int | str | None = None,
        truncate: bool = False,
        readonly: bool = False,
        cached: bool = False,
        durability: str | None = None,
    ) -> int:
        """The handle of "host:port" (offsets are addresses), "host:port/region" (offsets count from 0) or "file:///path"
        (offsets are those of the file); "" is this engine, LOCAL_SEGMENT_ID. The keywords are those of Engine.open();
        without any, a file that may not be written is opened for reading."""
        options = files.Options(create, size, truncate, readonly, cached, durability)
        path = files.path_of(segment_name)
        wanted = identities("identity", identity)
        if path is None:
            options.refuse(segment_name)
        elif wanted:
            raise InvalidArgumentError(
                f"{shown(segment_name)} is a file, and identity= belongs to the address of a peer"
            )
        elif options.given:
            with files.opening(self.engine, [files.File(path, options)], OPEN_TIMEOUT) as (file,):
                return int(file["segment"])
        elif "\0" in path:
            raise InvalidArgumentError(f"{shown(segment_name)} holds a zero byte")
        name = text_of(segment_name, "segment_name", needed=True)
        opens = self.engine._library.pybind_OpenSegment
        with self.engine._opening(opens, name, wanted, False, False, 10_000) as handle:
            return handle

    def warmup_segment(self, handle: int) -> None:
        """Makes a segment ready for its first transfer; see Segment.connect()."""
        self.engine._call_long(self.engine._library.pybind_Connect, _segment(handle, "handle"), 10_000)

    def close_segment(self, handle: int) -> None:
        """Forgets a segment."""
        self.engine._call(self.engine._library.pybind_CloseSegment, _segment(handle, "handle"))

    def get_segment_info(self, handle: int) -> SegmentInfo:
        """Asks the peer for its regions."""
        fields = self.engine._call_long_json(self.engine._library.pybind_Segment, _segment(handle, "handle"), True)
        found = [SegmentInfoBuffer(r["address"], r["size"], r["location"]) for r in fields["regions"] or ()]
        return SegmentInfo(SegmentInfoType.File if fields["file"] else SegmentInfoType.Memory, found)

    def probe_peer_alive(self, handle: int, timeout: float | str = 5) -> bool:
        """Asks the peer; False if it does not answer in time or has restarted."""
        return bool(
            self.engine._call_long(
                self.engine._library.pybind_Alive, _segment(handle, "handle"), _native.milliseconds(timeout)
            )
        )

    # Memory

    def allocate_local_memory(self, size: int, location: str = kWildcardLocation) -> int:
        """New, zeroed memory that peers can reach by address; returns its address. register_local_memory of it changes
        nothing, and unregister_local_memory keeps peers out until it is registered again."""
        return self.allocate_local_memory_ex(size, MemoryOptions(location))

    def allocate_local_memory_ex(self, size: int, options: MemoryOptions) -> int:
        """The same with options."""
        options = _options(options)
        return self._memory.allocate(_u64(size, "size"), options.location, permission_of(options.perm))

    def free_local_memory(self, addr: int) -> None:
        """Ends the access of peers and unmaps memory of allocate_local_memory, at once; also behind close()."""
        self._memory.free(_u64(addr, "addr"))

    def allocate_memory_guard(self, size: int, location: str = kWildcardLocation) -> MemoryGuard:
        """allocate_local_memory for a `with` block."""
        return MemoryGuard(self.free_local_memory, self.allocate_local_memory(size, location), size)

    def allocate_memory_guard_ex(self, size: int, options: MemoryOptions) -> MemoryGuard:
        """The same with options."""
        return MemoryGuard(self.free_local_memory, self.allocate_local_memory_ex(size, options), size)

    def register_local_memory(self, addr: int, size: int, permission: Permission = Permission.GlobalReadWrite) -> None:
        """Makes memory known and reachable by address. The same range again is taken as it is, and refused with another
        permission. The caller keeps it mapped until unregister_local_memory."""
        self.register_local_memory_ex(addr, size, MemoryOptions(perm=permission))

    def register_local_memory_ex(self, addr: int, size: int, options: MemoryOptions) -> None:
        """The same with options."""
        self._register(addr, size, _options(options), [])

    def _register(self, addr: int, size: int, options: MemoryOptions, made: list[tuple[int, int]]) -> None:
        key = _u64(addr, "addr"), _u64(size, "size")
        self._memory.register(key, options.location, permission_of(options.perm), made)

    def register_local_memory_batch(
        self, addr_list: Sequence[int], size_list: Sequence[int], permission: Permission = Permission.GlobalReadWrite
    ) -> None:
        """Several ranges, all or none."""
        self.register_local_memory_batch_ex(addr_list, size_list, MemoryOptions(perm=permission))

    def register_local_memory_batch_ex(
        self, addr_list: Sequence[int], size_list: Sequence[int], options: MemoryOptions
    ) -> None:
        """The same with options."""
        pairs = list(zip(*_columns(addr_list, size_list)))
        options = _options(options)
        made: list[tuple[int, int]] = []
        try:
            for address, size in pairs:
                self._register(address, size, options, made)
        except BaseException:
            for address, size in made:
                self.unregister_local_memory(address, size)
            raise

    def unregister_local_memory(self, addr: int, size: int = 0) -> None:
        """Ends the access of peers; returns when they cannot touch it any more. Size 0 goes by address alone. After the
        builtin TimeoutError the memory is still in use: call again."""
        self._memory.unregister(_u64(addr, "addr"), _u64(size, "size"))

    def unregister_local_memory_batch(self, addr_list: Sequence[int], size_list: Sequence[int] = ()) -> None:
        """Several ranges; none if one of them is unknown. After the builtin TimeoutError those that are back are
        unregistered."""
        pairs = zip(*_columns(addr_list, size_list, needed=False))
        self._memory.unregister_all((_u64(address, "addr"), _u64(size, "size")) for address, size in pairs)

    # Batches

    def allocate_transfer_batch(self, batch_size: int) -> int:
        """The id of a new batch for up to `batch_size` requests."""
        n = integer_of(batch_size)
        if n is None or not 0 < n < 1 << 31:
            raise InvalidArgumentError(f"batch_size is {shown(batch_size)}: it must be from 1 to 2^31 - 1")
        return self.engine._call_asking(self.engine._library.pybind_NewBatch, n)

    def free_transfer_batch(self, batch_id: int) -> None:
        """Gives the id up; it is invalid from now on. Transfers under way go on."""
        self.engine._call(self.engine._library.pybind_FreeBatch, _u64(batch_id, "batch_id"))

    def allocate_batch_guard(self, batch_size: int) -> BatchGuard:
        """allocate_transfer_batch for a `with` block."""
        return BatchGuard(self.free_transfer_batch, self.allocate_transfer_batch(batch_size))

    def submit_transfer(
        self,
        batch_id: int,
        request_list: Sequence[Request] | RequestArray,
        notifi: Notification | None = None,
        *,
        count: int | None = None,
        trace: str | None = None,
    ) -> None:
        """Appends requests (of a RequestArray the first `count`) to a batch and starts them: all or none.

        The notification goes to the target after the last byte of the batch; a batch has at most one. `trace` is the
        caller's name for the batch, as that of a move; requests and the notification may bear it instead.
        """
        batch_id = _u64(batch_id, "batch_id")
        traces = [] if notifi is None else [_notification(notifi).trace]
        if isinstance(request_list, RequestArray):
            n = request_list._n if count is None else integer_of(count) or 0
            address = request_list._address
            if not 0 < n <= request_list._n:
                raise InvalidArgumentError(f"count is {shown(count)}: the array has {request_list._n} requests")
        else:
            if count is not None:
                raise InvalidArgumentError("count= belongs to a RequestArray")
            requests = packing.listed(request_list)
            packed, n = packing.packed(requests)
            address = packed.buffer_info()[0]
            traces += [request.trace for request in requests if request.trace is not None]
        if traces:
            trace = packing.agreed(trace, traces)
        engine = self.engine
        note, at = None, 0
        if notifi is not None or trace:
            note = moving.Packed(notifi and (notifi.name, notifi.data), trace)
            at = note.address
        try:  # as engine._call_asking() does, without its cost
            engine._library.pybind_Submit(engine._id, batch_id, address, n, at, False)
        except RuntimeError as error:
            engine._asked(error, engine._library.pybind_Submit, batch_id, address, n, at, False)

    def submit_transfer_notif(
        self,
        batch_id: int,
        request_list: Sequence[Request] | RequestArray,
        name: str,
        message: str | bytes,
        *,
        trace: str | None = None,
    ) -> None:
        """submit_transfer with a notification."""
        self.submit_transfer(batch_id, request_list, Notification(name, message), trace=trace)

    def cancel_transfer(self, batch_id: int, task_id: int | None = None) -> None:
        """Asks a task to end soon; one that has ended stays as it is. None is all, and the notification."""
        task = -1 if task_id is None else _task(task_id)
        self.engine._call(self.engine._library.pybind_Cancel, _u64(batch_id, "batch_id"), task)

    def get_transfer_status(self, batch_id: int, task_id: int) -> TransferStatus:
        """The state of one task; never INITIAL after submit. Cheap to repeat: while nothing is new it costs no call,
        and every 128th look lets the engine work."""
        polled = self._polled
        try:
            if batch_id == polled.batch and self._words[polled.at] == polled.seen:
                status = polled.statuses.get(task_id)
                if status is not None:
                    polled.looks = looks = polled.looks - 1
                    if looks > 0 or status.state > PENDING:
                        return status
                    polled.looks = _native.LOOKS_PER_CRANK
                    self.engine._call(self.engine._library.pybind_Progress)
        except ValueError:
            self.engine._check_open()
        return self._fetch(batch_id, _task(task_id))

    def _fetch(self, batch_id: int, task_id: int) -> TransferStatus:
        at = (_u64(batch_id, "batch_id") & 0xFFFFFFFF) * CELL_WORDS
        # The word is read first: a change after that makes it differ, and the next look asks again.
        try:
            word = self._words[at] if at < len(self._words) else 0
        except ValueError:
            self.engine._check_open()
            raise
        status = self._statuses(batch_id, task_id, 1)[0]
        polled = self._polled
        if polled.batch != batch_id or polled.seen != word:
            polled = self._polled = _Polled(batch_id, at, word)
        polled.statuses[task_id] = status
        return status

    def get_transfer_status_list(self, batch_id: int) -> list[TransferStatus]:
        """The states of all tasks."""
        n = int(self.engine._call_json(self.engine._library.pybind_Summary, _u64(batch_id, "batch_id"))["tasks"])
        return self._statuses(batch_id, 0, n) if n else []

    def get_transfer_status_overall(self, batch_id: int) -> TransferStatus:
        """The state of the batch: COMPLETED if all tasks are, else PENDING if any is, else the worst."""
        self.engine._call(self.engine._library.pybind_Progress)
        summary = self.engine._call_json(self.engine._library.pybind_Summary, _u64(batch_id, "batch_id"))
        return TransferStatus(TransferStatusEnum(summary["state"]), int(summary["bytes"]))

    def progress_batch(self, batch_id: int) -> None:
        """Lets the engine work, without blocking."""
        self.get_transfer_status_overall(batch_id)  # works first, and knows the batch

    def wait(self, batch_id: int, timeout: float | str | None = None) -> TransferStatus:
        """Waits for the end of every task. The builtin TimeoutError if `timeout` seconds were not enough: the batch
        goes on."""
        over = _native.instant(timeout)
        _u64(batch_id, "batch_id")
        while True:
            left_ms = _native.left_ms(over)
            state = self.engine._call(
                self.engine._library.pybind_Wait, batch_id, max(0, min(left_ms, _native.WAIT_SLICE_MS))
            )
            if state > PENDING:
                return self.get_transfer_status_overall(batch_id)
            if left_ms <= 0:
                raise TimeoutError(f"the batch has not ended within {limit_of(timeout)}; it goes on")

    def transfer_sync(
        self,
        requests: Sequence[Request] | RequestArray,
        timeout: float | str | None = None,
        *,
        trace: str | None = None,
    ) -> TransferStatus:
        """Submits requests and waits for their end. Raises TransferError unless all have COMPLETED. When `timeout`
        seconds were not enough they are cancelled, and the error comes after their end."""
        _native.milliseconds(timeout)  # a wrong one is refused before anything moves
        if not isinstance(requests, RequestArray):
            requests = packing.listed(requests)
        batch = self.allocate_transfer_batch(len(requests) or 1)  # submitting none is refused
        try:
            self.submit_transfer(batch, requests, trace=trace)
            try:
                status = self.wait(batch, timeout)
            except TimeoutError:
                status = self._canceled(batch)
                if status.state == TransferStatusEnum.CANCELED:
                    message = f"the requests had not ended within {limit_of(timeout)} and were canceled"
                    failure = {"message": message, "code": "TIMEOUT"}
                    raise transfer_error(TransferStatusEnum.TIMEOUT, failure, []) from None
            except BaseException:
                self._canceled(batch)
                raise
            return self._completed(batch, status)
        finally:
            self.free_transfer_batch(batch)

    def _completed(self, batch: int, status: TransferStatus) -> TransferStatus:
        """Returns the status of a batch that has ended, and raises TransferError for any other end than COMPLETED."""
        if status.state == COMPLETED:
            return status
        failure = self.engine._call_json(self.engine._library.pybind_Failure, batch)
        raise transfer_error(status.state, failure, [])

    def _canceled(self, batch: int) -> TransferStatus:
        self.engine._call(self.engine._library.pybind_Cancel, batch, -1)
        return self.wait(batch)

    def _statuses(self, batch_id: int, first: int, n: int) -> list[TransferStatus]:
        words = array("Q", bytes(16 * n))
        self.engine._call(self.engine._library.pybind_StatusInto, batch_id, first, n, words.buffer_info()[0])
        return [TransferStatus(_STATES[words[2 * i] & 0xFF], words[2 * i + 1]) for i in range(n)]

    # Notifications

    def send_notifi(self, target_id: int, notifi: Notification) -> None:
        """Sends a notification without data, and returns when the peer has it. Its `trace` goes with it."""
        packed = moving.Packed((_notification(notifi).name, notifi.data), notifi.trace)
        batch = self.engine._call_asking(
            self.engine._library.pybind_Notify, _segment(target_id, "target_id"), packed.address, 0, False
        )
        try:
            self._completed(batch, self.wait(batch))
        finally:
            self.free_transfer_batch(batch)

    def recv_notifi(self) -> list[Notification]:
        """All notifications that have come."""
        return self.engine.notifications.drain()

    # Ending

    def close(self, timeout: float | str | None = 30) -> None:
        """See Engine.close()."""
        self.engine.close(timeout)

    def __enter__(self) -> TransferEngine:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.engine.__exit__(*raised)

    def __repr__(self) -> str:
        return f"<TransferEngine over {self.engine!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a TransferEngine cannot be pickled; send engine.export() and open it in the other process")


_STATES = tuple(TransferStatusEnum)


def _options(value: MemoryOptions) -> MemoryOptions:
    if not isinstance(value, MemoryOptions):
        raise InvalidArgumentError(f"options is {shown(value)}: it must be a tent.MemoryOptions")
    return value


def _notification(value: Notification) -> Notification:
    if not isinstance(value, Notification):
        raise InvalidArgumentError(f"notifi is {shown(value)}: it must be a tent.Notification")
    return value


def _columns(addresses: Iterable[int], sizes: Iterable[int], needed: bool = True) -> tuple[list[int], list[int]]:
    """The addresses and sizes of a batch as lists of one length; sizes that are not needed may be left out."""
    at, of = list_of(addresses, "addr_list", "addresses"), list_of(sizes, "size_list", "sizes")
    if len(at) != len(of) and (of or needed):
        raise InvalidArgumentError(f"{len(at)} addresses and {len(of)} sizes")
    return at, of or [0] * len(at)


def _u64(value: int, what: str) -> int:
    return _number(value, what, 1 << 64, "an integer of 64 bits, not negative")


def _segment(value: int, what: str) -> int:
    return _number(value, what, 1 << 63, "the handle of a segment")


def _task(value: int) -> int:
    return _number(value, "task_id", 1 << 31, "the index of a request")


def _number(value: int, what: str, end: int, takes: str) -> int:
    """The border to Go does not check the range of integers; this does."""
    n = integer_of(value)
    if n is None or not 0 <= n < end:
        raise InvalidArgumentError(f"{what} is {shown(value)}: it must be {takes}")
    return n
