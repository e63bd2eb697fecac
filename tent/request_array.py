"""RequestArray: requests that are packed already, for programs that submit many."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from typing import Any

from . import _abi
from ._text import shown
from .errors import InvalidArgumentError
from .quantities import integer_of


class Column:
    """One field of all requests: a writable view that takes slices from any integer buffer or list.

    It stands for a memoryview where NumPy has not been imported; memoryview itself would only take slices of its own
    format.
    """

    __slots__ = ("view",)

    def __init__(self, view: memoryview) -> None:
        self.view = view

    def __len__(self) -> int:
        return len(self.view)

    def __getitem__(self, key: int | slice) -> Any:
        return Column(self.view[key]) if isinstance(key, slice) else self.view[key]

    def __setitem__(self, key: int | slice, value: Any) -> None:
        try:
            if not isinstance(key, slice):
                self.view[key] = value
                return
            target = self.view[key]
            words = array("Q", [value]) * len(target) if isinstance(value, int) else array("Q", list(value))
            target[:] = memoryview(words)
        except (OverflowError, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"these are not {len(self.view)} integers of 64 bits, unsigned: {error}"
            ) from None

    def __iter__(self) -> Iterator[int]:
        return iter(self.view.tolist())

    def tolist(self) -> list[int]:
        """The values as a list."""
        return self.view.tolist()

    def __repr__(self) -> str:
        return f"Column({self.tolist()!r})"


class RequestArray(_abi.Columns):
    """n packed requests, all zero (READ, PRIO_HIGH, no deadline) at first.

    The columns have the names of Request's fields. They are writable views, NumPy arrays if NumPy has been imported.
    Terms that Request takes as a word are numbers here; a word that is assigned to a column is that of every request.
    The array is reusable as soon as submit_transfer has returned. A copy, also one by pickle, has requests of its own.
    """

    __slots__ = ("_address", "_n", "_words")

    def __init__(self, n: int) -> None:
        count = integer_of(n)
        if count is None or not 0 < count < 1 << 31:
            raise InvalidArgumentError(f"RequestArray({shown(n)}): it has from 1 to 2^31 - 1 requests")
        self._hold(array("Q", bytes(8 * _abi.RECORD_WORDS)) * count)

    def _hold(self, words: array[int]) -> None:
        self._n = len(words) // _abi.RECORD_WORDS
        self._words = words
        self._address = words.buffer_info()[0]  # of these words alone: a copy must not take it along

    def __getstate__(self) -> bytes:
        return self._words.tobytes()

    def __setstate__(self, packed: bytes) -> None:
        self._hold(array("Q", packed))

    def __len__(self) -> int:
        return self._n

    def __repr__(self) -> str:
        return f"<RequestArray of {self._n}>"


def _column(at: int, name: str) -> property:
    def get(requests: RequestArray) -> Any:
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            return numpy.frombuffer(requests._words, numpy.uint64)[at :: _abi.RECORD_WORDS]
        return Column(memoryview(requests._words)[at :: _abi.RECORD_WORDS])

    def put(requests: RequestArray, values: Any) -> None:
        if values is None or isinstance(values, str):
            values = _abi.number(name, values) if name in _abi.WORDS else _abi.name_number(name, values or "")
        get(requests)[:] = values

    return property(get, put, doc=_abi.DOCS[name])


for _at, _name in enumerate(_abi.COLUMNS):
    if _name in _abi.Columns.__annotations__:
        setattr(RequestArray, _name, _column(_at, _name))
