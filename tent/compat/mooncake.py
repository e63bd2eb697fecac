"""Mooncake's `mooncake.engine` over tent: TransferEngine with upstream's calls and its numbers for their results.

Calls return 0 or a negative number, as upstream's do. A failure is logged once, with code, peer and cure. A call that
runs out of time is cancelled, and none of its bytes lands afterwards. Both sides must run tent.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import _native
from ..engine import Engine
from ..errors import InvalidArgumentError, NotImplementedError, TentError, TransferTimeoutError
from ..moving import READ, WRITE
from .mooncake_memory import Memory, registered_as
from .mooncake_peers import CONNECT_LIMIT, Begun, Peers, Wishes, host_and_port, service
from .options import Options

if TYPE_CHECKING:
    from ..segment import Segment
    from ..transfer import Transfer

logger = logging.getLogger("tent.compat.mooncake")

SUPPORT_CUDA = False
TIMEOUT = "MC_TRANSFER_TIMEOUT"  # seconds: upstream's variable
RUNNING, COMPLETED, FAILED, TIMED_OUT = 0, 1, -1, -2

# A build of upstream's module has it; tent's stands for one of the host's memory.
SUPPORT_EFA = SUPPORT_HIP = SUPPORT_INTRA_NVLINK = SUPPORT_MNNVL = SUPPORT_MUSA = False


class TransferOpcode(IntEnum):
    """Directions of a transfer, by upstream's binding and by its documentation."""

    Read = READ
    Write = WRITE
    READ = READ
    WRITE = WRITE


Read, Write = TransferOpcode.Read, TransferOpcode.Write
_Opcode = TransferOpcode  # for signatures inside the class that bears the name as well


class TransferNotify:
    """A notification: name and message."""

    __slots__ = ("msg", "name")

    def __init__(self, name: str | bytes = "", msg: str | bytes = "") -> None:
        self.name, self.msg = (text.decode() if isinstance(text, bytes) else text for text in (name, msg))

    def __repr__(self) -> str:
        return f"TransferNotify(name={self.name!r}, msg={self.msg!r})"


class _Unmade:
    """The engine before initialize()."""

    def __getattr__(self, name: str) -> Any:
        raise InvalidArgumentError("the TransferEngine was not initialized", hint="call initialize() first")


class TransferEngine:
    """Mooncake's engine. Any thread may use it, and several may wait in it at a time.

    Example:
        import numpy
        from tent.compat.mooncake import TransferEngine

        one, two = TransferEngine(), TransferEngine()
        for transfers in (one, two):
            assert transfers.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        source, target = numpy.full(4096, 7, numpy.uint8), numpy.zeros(4096, numpy.uint8)
        assert one.register_memory(source.ctypes.data, 4096) == two.register_memory(target.ctypes.data, 4096) == 0
        peer = f"127.0.0.1:{two.get_rpc_port()}"
        assert one.transfer_sync_write(peer, source.ctypes.data, target.ctypes.data, 4096) == 0
        assert target[0] == 7
    """

    TransferOpcode = TransferOpcode  # upstream has it here too

    def __init__(self, *, options: Mapping[str, Any] | None = None) -> None:
        """`options` are the terms of its transfers and the settings of its engine, see tent.compat.options; without
        them TENT_COMPAT counts."""
        self.options = Options.of(options)
        self.engine: Engine = _Unmade()  # type: ignore[assignment]
        self._memory: Memory = _Unmade()  # type: ignore[assignment]
        self._peers: Peers = _Unmade()  # type: ignore[assignment]
        self._lock = _native.renewed(threading.RLock())
        self._wishes = Wishes()
        self._batches: dict[int, Begun] = {}
        self._last = 0
        self._limit = _limit()

    # The engine

    def initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str) -> int:
        """Starts the engine on this host name or address, with or without a port. 0, or -1 with the reason in the log.

        Peers find each other by address alone with "P2PHANDSHAKE". With "etcd://HOST:PORT", "redis://HOST:PORT" or the
        URL of an HTTP metadata server they find a host name without a port there, too. `protocol` is no more than a
        wish: tent takes the best transport for each pair of memories. `device_name`, a list of network cards, is no
        more than that either.
        """
        return self._started(local_hostname, metadata_server, protocol, device_name)

    def initialize_ext(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, metadata_type: str
    ) -> int:
        """initialize() with the kind of metadata as well: "p2p", "etcd", "redis" or "http"."""
        return self._started(local_hostname, metadata_server, protocol, device_name, metadata_type)

    def _started(self, host: str, metadata: str, protocol: str, devices: str, kind: str = "") -> int:
        if isinstance(self.engine, Engine):
            logger.error("the TransferEngine was initialized before, at %s", self.engine.address)
            return FAILED
        if devices:
            logger.warning("device_name %r is not used: the engine takes the cards that reach a peer", devices)
        name, port = host_and_port(host)
        settings = {"rpc_server_hostname": name, "rpc_server_port": port, **service(metadata, kind, name, port)}
        settings = {key: value for key, value in settings.items() if value} | dict(self.options.config or {})
        try:
            self.engine = Engine(settings)
            self._memory, self._peers = Memory(self.engine), Peers(self.engine, settings.get("local_segment_name", ""))
        except TentError as error:
            logger.error("initialize: %s: %s", error.code, error)
            return FAILED
        logger.info("tent at %s stands for Mooncake's engine; protocol %r is a wish", self.engine.address, protocol)
        return 0

    def get_rpc_port(self) -> int:
        """The port of the engine; peers name it by "host:port"."""
        return int(self.engine.address.rpartition(":")[2])

    def get_local_topology(self, device_name: str | None = None) -> str:
        """The devices of this machine, as JSON, also before initialize(): upstream's tool asks so."""
        if isinstance(self.engine, Engine):
            return json.dumps(self.engine.topology())
        with Engine(dict(self.options.config or {})) as engine:
            return json.dumps(engine.topology())

    def get_engine(self) -> Any:
        """Not supported: upstream's C++ object does not exist here."""
        raise NotImplementedError("get_engine is not supported: the engine behind this one is the attribute `engine`")

    get_engine_ptr = get_engine

    # Memory

    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Makes memory known, readable and writable for peers."""
        return self.batch_register_memory([buffer_addr], [capacity], location)

    def batch_register_memory(
        self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*"
    ) -> int:
        """Registers many ranges, all or none."""
        try:
            self._memory.register(zip(buffer_addresses, capacities, strict=True), location)
        except (TentError, ValueError) as error:
            return self._failed("register_memory", error)
        return 0

    def unregister_memory(self, buffer_addr: int) -> int:
        """Ends the access of peers; none of them touches the memory when it returns."""
        return self.batch_unregister_memory([buffer_addr])

    def batch_unregister_memory(self, buffer_addresses: Sequence[int]) -> int:
        """Ends the access of peers to many ranges."""
        results = [self._done("unregister_memory", self._memory.unregister, address) for address in buffer_addresses]
        return min(results, default=0)

    def allocate_managed_buffer(self, length: int) -> int:
        """The address of new memory, which peers of this host can share; 0 if there is not enough."""
        try:
            return self._memory.allocate(length)
        except TentError as error:
            self._failed("allocate_managed_buffer", error)
            return 0

    def free_managed_buffer(self, buffer_addr: int, length: int) -> int:
        """Gives memory of allocate_managed_buffer() back."""
        return self._done("free_managed_buffer", self._memory.free, buffer_addr)

    def write_bytes_to_buffer(self, dest_address: int, src_ptr: bytes | str, length: int) -> int:
        """Copies bytes into registered or allocated memory of this process. Text is UTF-8."""
        data = src_ptr.encode() if isinstance(src_ptr, str) else bytes(memoryview(src_ptr))  # bytes(5) are five zeros
        return self._done("write_bytes_to_buffer", self._memory.write, dest_address, data, length)

    def read_bytes_from_buffer(self, source_address: int, length: int) -> bytes:
        """Copies bytes out of registered or allocated memory of this process."""
        return self._memory.read(source_address, length)

    def get_first_buffer_address(self, segment_name: str) -> int:
        """The address of the memory that a peer has registered first; 0 if it offers none."""
        try:
            regions = self._peers.segment(segment_name).refresh()
        except TentError as error:
            self._failed("get_first_buffer_address", error)
            return 0
        return regions[min(regions, key=registered_as)].address if regions else 0

    # Transfers that wait

    def transfer_sync_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Moves bytes to a peer and waits."""
        lists = [buffer], [peer_buffer_address], [length]
        return self._waited(self._begun(target_hostname, Write, *lists, None, transport_hint))

    def transfer_sync_read(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Moves bytes from a peer and waits."""
        lists = [buffer], [peer_buffer_address], [length]
        return self._waited(self._begun(target_hostname, Read, *lists, None, transport_hint))

    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: _Opcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """Moves bytes in a direction and waits; the peer gets the notification after the last byte."""
        lists = [buffer], [peer_buffer_address], [length]
        return self._waited(self._begun(target_hostname, opcode, *lists, notify, transport_hint))

    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Moves many ranges to a peer and waits."""
        lists = buffers, peer_buffer_addresses, lengths
        return self._waited(self._begun(target_hostname, Write, *lists, None, transport_hint))

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Moves many ranges from a peer and waits."""
        lists = buffers, peer_buffer_addresses, lengths
        return self._waited(self._begun(target_hostname, Read, *lists, None, transport_hint))

    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: _Opcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """Moves many ranges in a direction and waits."""
        lists = buffers, peer_buffer_addresses, lengths
        return self._waited(self._begun(target_hostname, opcode, *lists, notify, transport_hint))

    # Transfers that go on

    def batch_transfer_async_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Begins to move many ranges to a peer. Returns the number of the batch; 0 when it could not begin."""
        lists = buffers, peer_buffer_addresses, lengths
        return self._posted(self._begun(target_hostname, Write, *lists, None, transport_hint))

    def batch_transfer_async_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Begins to move many ranges from a peer. Returns the number of the batch; 0 when it could not begin."""
        lists = buffers, peer_buffer_addresses, lengths
        return self._posted(self._begun(target_hostname, Read, *lists, None, transport_hint))

    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: _Opcode,
        transport_hint: str = "",
        notify: TransferNotify | None = None,
    ) -> int:
        """Begins to move many ranges in a direction. Returns the number of the batch; 0 when it could not begin. Its
        notification is an addition to upstream's call."""
        lists = buffers, peer_buffer_addresses, lengths
        return self._posted(self._begun(target_hostname, opcode, *lists, notify, transport_hint))

    def transfer_submit_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Begins to move one range to a peer."""
        lists = [buffer], [peer_buffer_address], [length]
        return self._posted(self._begun(target_hostname, Write, *lists, None, transport_hint))

    def transfer_check_status(self, batch_id: int) -> int:
        """1 when a batch is complete, 0 while it is under way, -1 when it has failed, -2 when its time ran out. Any
        number but 0 is the last answer for this batch: it is forgotten."""
        with self._lock:
            found = self._batches.get(batch_id)
        if found is None:
            logger.error("transfer_check_status: there is no batch %r", batch_id)
            return FAILED
        if not found.ended():
            return RUNNING
        with self._lock:
            self._batches.pop(batch_id, None)
        return self._outcome(found)

    def get_batch_transfer_status(self, batch_ids: Sequence[int]) -> int:
        """Waits for batches: 0 when all are complete, else -1. They are forgotten."""
        result = 0
        for batch_id in batch_ids:
            with self._lock:
                found = self._batches.pop(batch_id, None)
            if found is None:
                logger.error("get_batch_transfer_status: there is no batch %r", batch_id)
                result = FAILED
                continue
            if self._outcome(found) != COMPLETED:
                result = FAILED
        return result

    def _begun(
        self,
        peer: str,
        op: _Opcode,
        buffers: Sequence[int],
        addresses: Sequence[int],
        lengths: Sequence[int],
        notify: TransferNotify | None,
        hint: str,
    ) -> Begun | None:
        """Begins a transfer; None, and a line in the log, when it could not begin."""
        try:
            return self._peers.use(peer, self._move(op, buffers, addresses, lengths, notify, hint))
        except (TentError, ValueError) as error:
            self._failed(f"a transfer with {peer}", error)
            return None

    def _waited(self, begun: Begun | None) -> int:
        """0 when a transfer has begun and completes, else -1."""
        return 0 if begun is not None and self._outcome(begun) == COMPLETED else FAILED

    def _posted(self, begun: Begun | None) -> int:
        """The number of a batch for a transfer; 0 when it could not begin."""
        if begun is None:
            return 0
        with self._lock:
            self._last += 1
            self._batches[self._last] = begun
            return self._last

    def _move(
        self,
        op: _Opcode,
        buffers: Sequence[int],
        addresses: Sequence[int],
        lengths: Sequence[int],
        notify: TransferNotify | None,
        hint: str,
    ) -> Callable[[Segment], Transfer | None]:
        """The call that begins a transfer with a segment; it returns None where there is nothing to move."""
        move = self.engine.read_ranges if TransferOpcode(op) == READ else self.engine.write_ranges
        if not len(lengths) or 0 in lengths:  # as upstream, the rest moves
            rows = [row for row in zip(buffers, addresses, lengths, strict=True) if row[2]]
            buffers, addresses, lengths = ([row[i] for row in rows] for i in range(3))
        terms = dict(self.options.terms)
        if terms["timeout"] is None:
            terms["timeout"] = self._limit + sum(lengths) * 1e-9  # upstream adds a nanosecond for each byte
        note = None if notify is None else (notify.name, notify.msg)

        def begin(segment: Segment) -> Transfer | None:
            if len(lengths):
                begins = partial(move, self.engine, buffers, segment, addresses, lengths, notify=note, **terms)
                return self._wishes.begin(begins, hint)
            return None if note is None else self.engine.notify(segment, *note)

        return begin

    def _outcome(self, begun: Begun) -> int:
        error = begun.error()
        if error is None:
            return COMPLETED
        self._failed(f"a transfer with {begun.peer}", error)
        self._peers.note(begun.peer, begun.segment, error)
        return TIMED_OUT if isinstance(error, TransferTimeoutError) else FAILED

    def _done(self, call: str, change: Callable[..., None], *arguments: Any) -> int:
        """0 when a change of local memory was made, else -1 and a line in the log."""
        try:
            change(*arguments)
        except (TentError, TimeoutError) as error:
            return self._failed(call, error)
        return 0

    def _failed(self, call: str, error: Exception) -> int:
        """Logs a failure once; upstream's numbers say nothing."""
        logger.error("%s has failed: %s: %s", call, getattr(error, "code", type(error).__name__), error)
        return FAILED

    # Peers

    def send_probe(self, peer_server_name: str) -> int:
        """0 when a peer answers, else -1."""
        try:
            self._peers.probe(peer_server_name)
        except TentError as error:
            return self._failed(f"a probe of {peer_server_name}", error)
        return 0

    def warmup_efa_segment(self, segment_name: str) -> int:
        """Connects to a peer ahead of the first transfer."""
        try:
            self._peers.segment(segment_name).connect(CONNECT_LIMIT)
        except TentError as error:
            return self._failed(f"a connection to {segment_name}", error)
        return 0

    def get_notifies(self) -> list[TransferNotify]:
        """The notifications that have come since the last call."""
        return [TransferNotify(note.name, note.message) for note in self.engine.notifications.drain()]

    # Calls of upstream that tent does not have

    def transfer_write_on_cuda(self, *arguments: Any, **keywords: Any) -> None:
        """Not supported: transfers in the order of a CUDA stream."""
        raise NotImplementedError("transfers on a CUDA stream are not supported")

    transfer_read_on_cuda = transfer_write_on_cuda
    batch_transfer_write_on_cuda = transfer_write_on_cuda
    batch_transfer_read_on_cuda = transfer_write_on_cuda

    def close(self) -> None:
        """Cancels transfers that are under way and closes the engine; upstream has no such call. Again: no effect."""
        if isinstance(self.engine, Engine):
            self.engine.close(timeout=0)

    def __repr__(self) -> str:
        where = f"at {self.engine.address}" if isinstance(self.engine, Engine) else "not initialized"
        return f"<TransferEngine of Mooncake over tent, {where}>"


def _limit() -> float:
    """Seconds that a transfer may take: upstream's 30, at least 5."""
    text = os.environ.get(TIMEOUT, "30")
    try:
        return max(5.0, float(text))
    except ValueError:
        raise InvalidArgumentError(f"{TIMEOUT} is {text!r}: it must be seconds") from None


__all__ = [
    "SUPPORT_CUDA",
    "SUPPORT_EFA",
    "SUPPORT_HIP",
    "SUPPORT_INTRA_NVLINK",
    "SUPPORT_MNNVL",
    "SUPPORT_MUSA",
    "Read",
    "TransferEngine",
    "TransferNotify",
    "TransferOpcode",
    "Write",
]
