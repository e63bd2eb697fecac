"""Batch: moves that are collected, then submitted as one Transfer, all or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import TYPE_CHECKING, Any, NoReturn

from . import _abi, _native, moving
from ._abi import Terms
from .errors import InvalidArgumentError
from .moving import READ, WRITE, Hint, Local, Remote
from .terms import Given, filled, not_a_priority
from .transfer import Transfer

if TYPE_CHECKING:
    from .grid import Grid
    from .handle import Handle
    from .indexes import Integers


class Batch:
    """Collects moves, to several peers if need be; `with engine.batch() as b: ...; b.submit()`.

    One thread at a time. Leaving the block without submit() discards the moves. The common arguments hold for
    every move; `timeout` counts from engine.batch(), or for a move that gives its own, from there. With
    durability="data" it ends when every file that it writes is on stable storage, each synced once.
    """

    __slots__ = ("__weakref__", "_builder", "_engine", "_keep", "_notify", "_requests", "_terms")

    def __init__(self, engine: Handle, given: Given) -> None:
        """For tent only; users call Engine.batch(). `given` is what terms() has made of the common arguments."""
        self._builder = 0
        self._engine = engine
        packed, self._notify = given
        self._terms = filled(READ, engine._default_priority, packed)
        self._keep: list[object] = []  # the operands of every move
        self._requests = 0
        words = _abi.packed(self._terms)
        self._builder = engine._call(engine._library.pybind_Builder, words.buffer_info()[0])

    def __len__(self) -> int:
        return self._requests

    def __bool__(self) -> bool:
        return True

    def write(
        self,
        local: Local,
        remote: Remote,
        *,
        priority: int | None = None,
        timeout: float | str | None = None,
        hint: Hint = None,
    ) -> None:
        """Adds a WRITE; see Engine.write()."""
        self._move(WRITE, local, remote, priority, timeout, hint)

    def read(
        self,
        local: Local,
        remote: Remote,
        *,
        priority: int | None = None,
        timeout: float | str | None = None,
        hint: Hint = None,
    ) -> None:
        """Adds a READ; see Engine.read()."""
        self._move(READ, local, remote, priority, timeout, hint)

    def write_ranges(
        self, local: Local, local_offsets: Integers, remote: Remote, remote_offsets: Integers, lengths: Integers
    ) -> None:
        """Adds ranges; see Engine.write_ranges()."""
        self._ranges(WRITE, (local, local_offsets, remote, remote_offsets, lengths))

    def read_ranges(
        self, local: Local, local_offsets: Integers, remote: Remote, remote_offsets: Integers, lengths: Integers
    ) -> None:
        """Adds ranges; see Engine.read_ranges()."""
        self._ranges(READ, (local, local_offsets, remote, remote_offsets, lengths))

    def write_pages(
        self,
        pages: Local | Grid,
        src: Integers,
        remote_pages: Remote | Grid,
        dst: Integers,
        *,
        page_bytes: int | str | None = None,
    ) -> None:
        """Adds pages; see Engine.write_pages()."""
        self._pages(WRITE, (pages, src, remote_pages, dst, page_bytes))

    def read_pages(
        self,
        pages: Local | Grid,
        src: Integers,
        remote_pages: Remote | Grid,
        dst: Integers,
        *,
        page_bytes: int | str | None = None,
    ) -> None:
        """Adds pages; see Engine.read_pages()."""
        self._pages(READ, (pages, src, remote_pages, dst, page_bytes))

    def submit(self) -> Transfer:
        """Submits everything as one Transfer, or nothing at all. The batch is used up either way."""
        self._check_open()
        builder, self._builder = self._builder, 0
        note = 0 if self._notify is None else self._notify.address
        try:
            batch = self._engine._call_asking(self._engine._library.pybind_Commit, builder, note)
        except BaseException:
            self._builder = builder
            self._discard()
            raise
        return Transfer(self._engine, batch, -1, self._keep)

    def _check_open(self) -> None:
        if self._builder == 0:
            raise InvalidArgumentError("the batch was submitted or left", hint="make a new one: engine.batch()")

    def _with(self, op: int, **own: int) -> Terms:
        """The common terms, with the operation and the terms of one move."""
        self._check_open()
        return _abi.terms(**{**dict(zip(_abi.TAKES, self._terms, strict=True)), "opcode": op, **own})

    def _move(
        self, op: int, local: Any, remote: Any, priority: int | None, timeout: float | str | None, hint: Hint
    ) -> None:
        own: dict[str, int] = {}
        if priority is True or priority is False:
            raise not_a_priority(priority)
        if priority is not None:
            own["priority"] = priority
        if timeout is not None:
            own["deadline_ns"] = moving.deadline(timeout)
        if hint is not None:
            own["transport_hint"] = moving.transport_number(hint)
        _, _, keep = moving.move(self._engine, self._builder, self._with(op, **own), local, remote)
        self._keep.extend(keep)
        self._requests += 1

    def _ranges(self, op: int, operands: tuple[Any, Any, Any, Any, Any]) -> None:
        operands = *operands[:4], _sized(operands[4])
        _, _, keep = moving.ranges(self._engine, self._builder, self._with(op), operands)
        self._keep.extend(keep)
        self._requests += len(operands[4])

    def _pages(self, op: int, operands: tuple[Any, Any, Any, Any, int | str | None]) -> None:
        operands = operands[0], _sized(operands[1]), *operands[2:]
        _, _, keep = moving.pages(self._engine, self._builder, self._with(op), operands)
        self._keep.extend(keep)
        self._requests += len(operands[1]) * (getattr(operands[0], "n_regions", 0) or 1)  # addresses have none

    def _discard(self) -> None:
        builder, self._builder = self._builder, 0
        if builder and self._engine._usable():
            self._engine._call(self._engine._library.pybind_Discard, builder)
        self._keep = []

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self._discard()

    async def __aenter__(self) -> Batch:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._discard()

    def __repr__(self) -> str:
        return f"<Batch of {self._requests} requests at {self._engine.address}{'' if self._builder else ', used up'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Batch cannot be pickled or copied; it belongs to its engine")

    @_native.finalizer
    def __del__(self) -> None:
        if getattr(self, "_builder", 0):
            self._discard()


def _sized(indexes: Any) -> Any:
    """Integers that can be counted: those of an iterator can be taken once alone."""
    return list(indexes) if isinstance(indexes, Iterable) and not isinstance(indexes, Sized) else indexes
