"""NIXL's descriptor lists: rows of address, length and device, kept as one table of 64-bit words."""

from __future__ import annotations

import json
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import chain
from typing import Any

import numpy as np

from ..._text import shown
from ...buffers import is_tensor
from ...quantities import integer_of
from .errors import nixlInvalidParamError, nixlNotFoundError


class nixl_mem_t(IntEnum):
    """The kinds of memory, with the numbers of upstream's module."""

    DRAM_SEG = 0
    VRAM_SEG = 1
    BLK_SEG = 2
    OBJ_SEG = 3
    FILE_SEG = 4


DRAM_SEG, VRAM_SEG, BLK_SEG, OBJ_SEG, FILE_SEG = nixl_mem_t

KINDS = {
    "DRAM": DRAM_SEG,
    "VRAM": VRAM_SEG,
    "BLOCK": BLK_SEG,
    "BLK": BLK_SEG,
    "OBJ": OBJ_SEG,
    "FILE": FILE_SEG,
    "cpu": DRAM_SEG,
    "cuda": VRAM_SEG,
}
NAMES: dict[int, str] = {DRAM_SEG: "DRAM", VRAM_SEG: "VRAM", BLK_SEG: "BLOCK", OBJ_SEG: "OBJ", FILE_SEG: "FILE"}

RANGES_MOST = 1 << 24  # of a strided list: the engine takes no more in one

Row = tuple[int, int, int]
_HEAD = struct.Struct("=8sBxxxxxxxQ")
_MAGIC, _MAGIC_TEXTS = b"tentdesc", b"tentregs"


def kind_of(memory: Any) -> nixl_mem_t:
    """A kind of memory, which is given by its name or its number."""
    if isinstance(memory, str) and memory in KINDS:
        return KINDS[memory]
    if not isinstance(memory, (str, bool)) and memory in NAMES:
        return nixl_mem_t(memory)
    raise nixlInvalidParamError(f"the memory type is {shown(memory)}: known are {', '.join(KINDS)}")


class _DList:
    """A table of n x 3 words: address, length, device."""

    __slots__ = ("_kind", "_rows")

    def __init__(self, type: Any, descs: Any = (), *_: object, init_size: int = 0) -> None:
        """As upstream: the descriptors, or the number of empty ones."""
        self._kind = kind_of(type)
        self._rows = _table(_filled(descs, init_size))

    @property
    def rows(self) -> Any:
        """The table, an array of n x 3 unsigned 64-bit words."""
        return self._rows

    def getType(self) -> nixl_mem_t:
        return self._kind

    def descCount(self) -> int:
        return len(self._rows)

    def isEmpty(self) -> bool:
        return not len(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> Row:
        address, length, device = self._rows[i]
        return int(address), int(length), int(device)

    def __setitem__(self, i: int, row: Row) -> None:
        self._rows[i] = _table([row])[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._kind == self._kind and np.array_equal(other._rows, self._rows)

    __hash__ = None  # type: ignore[assignment]

    def append(self, row: Row) -> None:
        self._rows = np.concatenate([self._rows, _table([row])])

    addDesc = append

    def remDesc(self, i: int) -> None:
        self._rows = np.delete(self._rows, i, axis=0)

    def index(self, row: Row) -> int:
        """The place of a row; nixlNotFoundError if it is not there."""
        found = np.flatnonzero((self._rows == _table([row])[0]).all(axis=1))
        if not len(found):
            raise nixlNotFoundError(f"the descriptor {shown(row)} is not in the list")
        return int(found[0])

    def clear(self) -> None:
        self._rows = self._rows[:0]

    def trim(self) -> None:
        """Upstream gives back memory here; there is none to give back."""

    def print(self) -> None:
        sys.stdout.write(f"{self!r}\n")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {NAMES[self._kind]}: {len(self)} descriptors>"

    def serialized(self) -> bytes:
        """The list as bytes, for another process. Unlike upstream's they are no pickle."""
        return _HEAD.pack(_MAGIC, self._kind, len(self._rows)) + bytes(self._rows.tobytes())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._kind, self._rows)


class nixlXferDList(_DList):
    """Ranges to transfer."""

    __slots__ = ()


class _WithTexts(_DList):
    """Ranges of which each has a text besides."""

    __slots__ = ("_texts",)

    def __init__(self, type: Any, descs: Any = (), *_: object, init_size: int = 0) -> None:
        rows = _filled(descs, init_size)
        texts: list[str] = []
        if not isinstance(rows, np.ndarray):
            rows = list(rows)
            texts = [_text(row) for row in rows]
            rows = [row[:3] for row in rows]
        super().__init__(type, rows)
        self._texts = texts or [""] * len(self._rows)

    def __getitem__(self, i: int) -> Any:
        return (*super().__getitem__(i), self._texts[i])

    def __setitem__(self, i: int, row: Any) -> None:
        super().__setitem__(i, row[:3])
        self._texts[i] = _text(row)

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and isinstance(other, _WithTexts) and self._texts == other._texts

    __hash__ = None

    def append(self, row: Any) -> None:
        super().append(row[:3])
        self._texts.append(_text(row))

    addDesc = append

    def remDesc(self, i: int) -> None:
        super().remDesc(i)
        del self._texts[i]

    def index(self, row: Any) -> int:
        """The place of a range, whichever its text is."""
        return super().index(row[:3])

    def clear(self) -> None:
        super().clear()
        self._texts.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._kind, [(*map(int, row), text) for row, text in zip(self._rows, self._texts)])


class nixlRemoteDList(_WithTexts):
    """Ranges of remote agents, each with the agent's name."""

    __slots__ = ()


class nixlRegDList(_WithTexts):
    """Ranges to register, each with a text that only some backends read. As upstream, it is bytes in a row."""

    __slots__ = ("files",)

    def __init__(self, type: Any, descs: Any = (), *_: object, init_size: int = 0) -> None:
        super().__init__(type, descs, init_size=init_size)
        # The files that this list stands for, by the number of the Files: one entry a registration.
        self.files: dict[int, list[dict[int, int]]] = {}

    @property
    def texts(self) -> Sequence[str]:
        """The text of each row."""
        return self._texts

    @property
    def devices(self) -> list[int]:
        """The device of each row."""
        return list(self._rows[:, 2].tolist())

    def trim(self) -> nixlXferDList:  # type: ignore[override]
        """The ranges without their texts."""
        return nixlXferDList(self._kind, self._rows)

    def __getitem__(self, i: int) -> Any:
        address, length, device, text = super().__getitem__(i)
        return address, length, device, text.encode("utf-8", "surrogateescape")

    def serialized(self) -> bytes:
        texts = json.dumps(self._texts).encode()
        return _HEAD.pack(_MAGIC_TEXTS, self._kind, len(self)) + bytes(self._rows.tobytes()) + texts


def _filled(descs: Any, n: Any) -> Any:
    """Descriptors, or empty ones where their number is given instead."""
    count = integer_of(descs)
    if count is None and not n:
        return descs
    return np.zeros((n if count is None else count, 3), np.uint64)


def _text(row: Any) -> str:
    """The fourth item of a row, which is text or bytes."""
    text = row[3] if len(row) > 3 else ""
    return text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else str(text)


def deserialized(data: bytes) -> nixlXferDList | nixlRegDList:
    """The list that serialized() made."""
    if len(data) < _HEAD.size or not data.startswith((_MAGIC, _MAGIC_TEXTS)):
        raise nixlInvalidParamError(
            "the bytes are no descriptor list of tent: the other side runs the real NIXL, or they were cut"
        )
    magic, kind, n = _HEAD.unpack_from(data)
    end = _HEAD.size + 24 * n
    if len(data) < end or (magic == _MAGIC and len(data) > end):
        raise nixlInvalidParamError(f"a descriptor list of {n} rows has {end} bytes, not {len(data)}")
    rows = np.frombuffer(data[_HEAD.size : end], np.uint64).reshape(n, 3)
    return nixlXferDList(kind, rows) if magic == _MAGIC else _with_texts(kind, rows, data[end:])


def _with_texts(kind: int, rows: Any, data: bytes) -> nixlRegDList:
    try:
        texts = json.loads(data)
        if not isinstance(texts, list) or len(texts) != len(rows) or not all(isinstance(text, str) for text in texts):
            raise ValueError
    except ValueError:
        raise nixlInvalidParamError(f"a list of {len(rows)} ranges to register has not a text for each") from None
    return nixlRegDList(kind, [(*map(int, row), text) for row, text in zip(rows, texts)])


def _table(rows: Any) -> Any:
    if isinstance(rows, np.ndarray):
        if rows.ndim != 2 or rows.shape[1] != 3 or rows.dtype.kind not in "iu":
            raise nixlInvalidParamError(f"an array of descriptors is N x 3 integers, not {rows.shape} of {rows.dtype}")
        return np.array(rows, dtype=np.uint64, order="C")  # a copy, as upstream's: callers use their arrays again
    listed = list(rows)
    for row in listed:
        if len(row) != 3:
            raise nixlInvalidParamError(f"a descriptor is (address, length, device), not {shown(row)}")
    try:
        words = array("Q", chain.from_iterable(listed))  # which takes no fraction and no text, as NumPy would
        return np.array(words).reshape(len(listed), 3)
    except (OverflowError, TypeError) as error:
        raise nixlInvalidParamError(f"a descriptor is three integers, not negative: {error}") from None


def described(descs: Any, memory: str | None, columns: int) -> tuple[int, Any]:
    """The kind of memory and the rows of descriptors in any form: tuples of 3 or `columns` items, an array, a tensor or
    tensors. Only tensors have their kind of memory with them."""
    if is_tensor(descs):
        return of_tensors([descs])
    if isinstance(descs, np.ndarray):
        if descs.ndim == 1 and len(descs):  # one range
            descs = descs.reshape(1, -1)
    else:
        descs = list(descs)
        if descs and is_tensor(descs[0]):
            return of_tensors(descs)
        for row in descs:
            if not isinstance(row, tuple) or len(row) not in (3, columns):
                raise nixlInvalidParamError(f"a descriptor is a tuple of {columns} items, not {shown(row)}")
    if memory is None:
        raise nixlInvalidParamError("the memory type is missing: it is known of tensors alone")
    return kind_of(memory), descs


def is_strided(descs: Any) -> bool:
    """Whether descriptors are an array with the five columns of a strided list."""
    return isinstance(descs, np.ndarray) and descs.ndim == 2 and descs.shape[1] == 5


def strided(rows: Any) -> Any:
    """The rows of a strided list. Its columns are address, length, device, stride and count."""
    if rows.dtype.kind not in "iu":
        raise nixlInvalidParamError(f"a strided list is N x 5 integers, not {rows.shape} of {rows.dtype}")
    table = np.ascontiguousarray(rows, dtype=np.uint64)
    if not table[:, 4].all():
        raise nixlInvalidParamError("a strided descriptor has a count of 0")
    total = sum(table[:, 4].tolist())  # of Python's integers, which do not overflow
    if total > RANGES_MOST:
        raise nixlInvalidParamError(f"a strided list has {total} ranges: at most {RANGES_MOST} are allowed")
    counts = table[:, 4].astype(np.int64)
    which = np.repeat(np.arange(len(table)), counts)
    step = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    flat = np.empty((len(which), 3), np.uint64)
    flat[:, 0] = table[which, 0] + table[which, 3] * step.astype(np.uint64)
    flat[:, 1:] = table[which, 1:3]
    return flat


def of_tensors(tensors: Iterable[Any]) -> tuple[int, list[Row]]:
    """The kind of memory and the rows of tensors, which must be contiguous and on one device."""
    kind, rows = DRAM_SEG, []
    device = None
    for tensor in tensors:
        if not is_tensor(tensor):
            raise nixlInvalidParamError(f"a list of tensors has a {type(tensor).__name__!r} in it")
        if device is not None and tensor.device != device:
            raise nixlInvalidParamError(f"tensors of one list are on {device} and on {tensor.device}")
        if not tensor.is_contiguous():
            raise nixlInvalidParamError("a tensor is not contiguous: give tensor.contiguous()")
        device = tensor.device
        kind = DRAM_SEG if device.type == "cpu" else VRAM_SEG
        rows.append((tensor.data_ptr(), tensor.numel() * tensor.element_size(), max(tensor.get_device(), 0)))
    return kind, rows
