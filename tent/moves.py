"""Moves: the calls of an Engine that move bytes. Each returns a Transfer without waiting for its end, and raises before
anything moves when an argument is wrong. One that names memory which is not known here yet asks the peer first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _abi, moving
from .batch import Batch
from .enums import PRIO_HIGH, IntentType
from .errors import InvalidArgumentError
from .handle import Handle
from .moving import READ, WRITE, Begun, Hint, Local, Notify, Remote, Require
from .region import RegionSlice
from .segment import RemoteSlice, Segment
from .terms import Given, documented, filled, terms
from .transfer import Transfer

if TYPE_CHECKING:
    from .grid import Grid
    from .indexes import Integers

UNSPEC = IntentType.UNSPEC

Form = Callable[..., Begun]  # moving.ranges or moving.pages


class Moves(Handle):
    """The moving half of Engine."""

    __slots__ = ()

    @documented
    def write(
        self,
        local: Local,
        remote: Remote,
        *,
        priority: int | None = None,
        timeout: float | str | None = None,
        notify: Notify | None = None,
        hint: Hint = None,
        stream: object = None,
        integrity: str | None = None,
        durability: str | None = None,
        intent: IntentType = IntentType.UNSPEC,
        policy: str = "",
        require: Require = None,
        trace: str | None = None,
    ) -> Transfer:
        """Moves bytes from here to a peer.

        Example:
            transfer = engine.write(region[0:4096], segment["kv"][8192:12288], timeout=5, notify=("page", "2"))
            assert transfer.result() == 4096

        `local` is a Region, a slice of one, or a buffer inside one; `remote` a RemoteRegion or a slice of it, memory()
        of a Segment, or an own Region. Both have the same number of bytes.
        """
        return self._move(
            WRITE,
            local,
            remote,
            priority,
            timeout,
            notify,
            hint,
            stream,
            integrity,
            durability,
            intent,
            policy,
            require,
            trace,
        )

    @documented
    def read(
        self,
        local: Local,
        remote: Remote,
        *,
        priority: int | None = None,
        timeout: float | str | None = None,
        notify: Notify | None = None,
        hint: Hint = None,
        stream: object = None,
        integrity: str | None = None,
        intent: IntentType = IntentType.UNSPEC,
        policy: str = "",
        require: Require = None,
        trace: str | None = None,
    ) -> Transfer:
        """Moves bytes from a peer to here; operands as in write(). `notify` says that its memory is free.

        Example:
            engine.read(region[0:64], segment["kv"][0:64], integrity="crc32c").result(timeout=10)
        """
        return self._move(
            READ,
            local,
            remote,
            priority,
            timeout,
            notify,
            hint,
            stream,
            integrity,
            None,
            intent,
            policy,
            require,
            trace,
        )

    @documented
    def write_ranges(
        self,
        local: Local,
        local_offsets: Integers,
        remote: Remote,
        remote_offsets: Integers,
        lengths: Integers,
        *,
        priority: int | None = None,
        timeout: float | str | None = None,
        notify: Notify | None = None,
        hint: Hint = None,
        stream: object = None,
        integrity: str | None = None,
        durability: str | None = None,
        intent: IntentType = IntentType.UNSPEC,
        policy: str = "",
        require: Require = None,
        trace: str | None = None,
    ) -> Transfer:
        """Moves many ranges from here to a peer as one transfer.

        Example:
            engine.write_ranges(region, [0, 4096], segment["kv"], [64, 0], [64, 32]).result(timeout=10)

        Offsets count bytes from the operands' first ones. Offsets and lengths are lists or integer buffers of one
        length, read before the call returns.
        """
        given = terms(priority, timeout, notify, hint, stream, integrity, durability, intent, policy, require, trace)
        return self._many(moving.ranges, WRITE, given, (local, local_offsets, remote, remote_offsets, lengths))

    @documented
    def read_ranges(
        self,
        local: Local,
        local_offsets: Integers,
        remote: Remote,
        remote_offsets: Integers,
        lengths: Integers,
        *,
        priority: int | None = None,
        timeout: float | str | None = None,
        notify: Notify | None = None,
        hint: Hint = None,
        stream: object = None,
        integrity: str | None = None,
        intent: IntentType = IntentType.UNSPEC,
        policy: str = "",
        require: Require = None,
        trace: str | None = None,
    ) -> Transfer:
        """Moves many ranges from a peer to here as one transfer; operands as in write_ranges().

        Example:
            engine.read_ranges(region, [0, 4096], segment["kv"], [64, 0], [64, 32]).result(timeout=10)
        """
        given = terms(priority, timeout, notify, hint, stream, integrity, None, intent, policy, require, trace)
        return self._many(moving.ranges, READ, given, (local, local_offsets, remote, remote_offsets, lengths))

    @documented
    def write_pages(
        self,
        pages: Local | Grid,
        src: Integers,
        remote_pages: Remote | Grid,
        dst: Integers,
        *,
        page_bytes: int | str | None = None,
        priority: int | None = None,
        timeout: float | str | None = None,
        notify: Notify | None = None,
        hint: Hint = None,
        stream: object = None,
        integrity: str | None = None,
        durability: str | None = None,
        intent: IntentType = IntentType.UNSPEC,
        policy: str = "",
        require: Require = None,
        trace: str | None = None,
    ) -> Transfer:
        """Moves page src[i] of each local region to page dst[i] of its counterpart, all as one transfer.

        Example:
            engine.write_pages(region, [0, 1, 2], segment["kv"], [9, 4, 7], page_bytes=4096).result(timeout=10)

        Pages are those of the operands of write(), memory() excepted, together with `page_bytes`; or grids from
        pages(). `src` and `dst` are lists or integer buffers of one length, read before the call returns.
        """
        given = terms(priority, timeout, notify, hint, stream, integrity, durability, intent, policy, require, trace)
        return self._many(moving.pages, WRITE, given, (pages, src, remote_pages, dst, page_bytes))

    @documented
    def read_pages(
        self,
        pages: Local | Grid,
        src: Integers,
        remote_pages: Remote | Grid,
        dst: Integers,
        *,
        page_bytes: int | str | None = None,
        priority: int | None = None,
        timeout: float | str | None = None,
        notify: Notify | None = None,
        hint: Hint = None,
        stream: object = None,
        integrity: str | None = None,
        intent: IntentType = IntentType.UNSPEC,
        policy: str = "",
        require: Require = None,
        trace: str | None = None,
    ) -> Transfer:
        """Moves page dst[i] of each remote region to page src[i] of its local counterpart, all as one transfer.

        Example:
            engine.read_pages(region, [0, 1, 2], segment["kv"], [9, 4, 7], page_bytes=4096).result(timeout=10)

        The order of the operands is that of write_pages(): local ones first.
        """
        given = terms(priority, timeout, notify, hint, stream, integrity, None, intent, policy, require, trace)
        return self._many(moving.pages, READ, given, (pages, src, remote_pages, dst, page_bytes))

    @documented
    def batch(
        self,
        *,
        priority: int | None = None,
        timeout: float | str | None = None,
        notify: Notify | None = None,
        hint: Hint = None,
        stream: object = None,
        integrity: str | None = None,
        durability: str | None = None,
        intent: IntentType = IntentType.UNSPEC,
        policy: str = "",
        require: Require = None,
        trace: str | None = None,
    ) -> Batch:
        """Collects moves, to be submitted as one transfer, all or nothing; see Batch.

        Example:
            with engine.batch(priority=tent.PRIO_LOW) as batch:
                batch.write(region[0:64], segment["kv"][0:64])
                batch.read(region[64:128], segment["kv"][64:128])
                batch.write_ranges(region, [128], segment["kv"], [128], [64])
                batch.read_ranges(region, [192], segment["kv"], [192], [64])
                batch.write_pages(region, [2], segment["kv"], [2], page_bytes=4096)
                batch.read_pages(region, [3], segment["kv"], [3], page_bytes=4096)
                transfer = batch.submit()
            assert transfer.result(timeout=10) == 4 * 64 + 2 * 4096
        """
        given = terms(priority, timeout, notify, hint, stream, integrity, durability, intent, policy, require, trace)
        return Batch(self, given)

    def notify(
        self, peer: Segment, name: str | bytes, message: str | bytes = b"", *, trace: str | None = None
    ) -> Transfer:
        """Sends a notification without data; result() returns 0 when the peer has it. Limits are those of notify=, and
        `trace` is that of a move."""
        if not isinstance(peer, Segment) or peer._engine is not self:
            raise InvalidArgumentError("notify() needs a segment of this engine, from open()")
        peer._check_open()
        packed = moving.Packed((name, message), trace)
        batch = self._call_asking(self._library.pybind_Notify, peer._handle, packed.address, 0, False)
        return Transfer(self, batch, 0, (RemoteSlice(peer, 0, 0, 0),))

    def _move(
        self,
        op: int,
        local: Any,
        remote: Any,
        priority: int | None,
        timeout: float | str | None,
        notify: Notify | None,
        hint: Hint,
        stream: object,
        integrity: str | None,
        durability: str | None,
        intent: IntentType,
        policy: str,
        require: Require,
        trace: str | None,
    ) -> Transfer:
        """One READ or WRITE. From a slice to a slice, the usual case, all checks of moving.move stand here."""
        given, note = None, None
        if not (
            ((priority is None and not self._default_priority) or priority is PRIO_HIGH)
            and timeout is None
            and notify is None
            and hint is None
            and stream is None
            and integrity is None
            and durability is None
            and intent is UNSPEC
            and not policy
            and require is None
            and trace is None
        ):
            given, note = terms(
                priority, timeout, notify, hint, stream, integrity, durability, intent, policy, require, trace
            )
        if (
            type(local) is RegionSlice
            and type(remote) is RemoteSlice
            and not self._closed
            and (region := local.region)._engine is self
            and not region._closed
            and (segment := remote.segment)._engine is self
            and not segment._closed
            and (size := local.size) == remote.size
            and (op == WRITE or not region._memory.read_only)
        ):
            try:
                if given is None:
                    batch = self._library.pybind_Move(
                        self._id, op, local.address, size, segment._handle, remote.region_id, remote.offset
                    )
                else:
                    words = (local.address, segment._handle, remote.offset, size, remote.region_id)
                    record = _abi.record(filled(op, self._default_priority, given), *words)
                    address = 0 if note is None else note.address
                    batch = self._library.pybind_Start(self._id, 0, record.buffer_info()[0], 1, address)
            except RuntimeError:  # a peer has to be asked first, there is no room yet, or the call below raises it
                pass
            else:
                return Transfer(self, batch, size, (local, remote))
        self._check_open()
        known = _abi.terms(op) if given is None else filled(op, self._default_priority, given)
        return Transfer(self, *moving.move(self, 0, known, local, remote, note))

    def _many(self, form: Form, op: int, given: Given, operands: tuple[Any, ...]) -> Transfer:
        """Ranges or pages."""
        self._check_open()
        packed, note = given
        return Transfer(self, *form(self, 0, filled(op, self._default_priority, packed), operands, note))
