"""Integer sequences as the engine reads them: address, item size, stride. Nothing is copied that has a buffer."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import buffers
from ._abi import Strided
from ._text import shown
from .errors import InvalidArgumentError

UNSIGNED = 16  # beside the item size: the items are unsigned

Integers = Sequence[int] | memoryview | Any
Ranges = Sequence[tuple[int, int]] | Integers  # pairs (address, size), or addresses

_SIGNS = dict.fromkeys("bhilqn", 0) | dict.fromkeys("BHILQN", UNSIGNED)  # by the format of an item


class Index(NamedTuple):
    """n integers at address; `code` is the item size, with UNSIGNED; `owner` keeps them there."""

    address: int
    code: int
    stride: int
    n: int
    owner: object

    def words(self) -> Strided:
        """The sequence as an argument block has it."""
        return self.address, self.code, self.stride & 0xFFFFFFFFFFFFFFFF


def pairs(values: Any, what: str) -> tuple[Index, Index]:
    """The first two columns of a table: a list of pairs, or an integer array of two dimensions."""
    if isinstance(values, (list, tuple)):
        flat = [number for pair in values for number in _pair(pair, what)]
        both = _from_list(flat, what, "Q")
        second = both._replace(address=both.address + 8, stride=16, n=len(values))
        return both._replace(stride=16, n=len(values)), second
    try:
        view = memoryview(values)
    except (TypeError, ValueError, BufferError):
        raise _wrong(what, type(values).__name__) from None
    if view.shape is None or view.strides is None or view.ndim != 2 or view.shape[1] < 2:
        raise _wrong(what, f"an array of the shape {tuple(view.shape or ())}")
    kind = _kind(view, what)
    rows, step = view.strides
    if view.shape[0] == 0:
        return Index(0, kind, rows, 0, view), Index(0, kind, rows, 0, view)
    first = Index(buffers.address_of(view), kind, rows, view.shape[0], view)
    return first, first._replace(address=first.address + step)


def _pair(pair: Any, what: str) -> Any:
    try:
        if len(pair) == 2:
            return pair
    except TypeError:
        pass
    raise InvalidArgumentError(f"{what}: {shown(pair)} is no pair (address, size)")


def one(value: int) -> Index:
    """A sequence of any length with one value in every place."""
    packed = array("Q", [value])
    return Index(packed.buffer_info()[0], 8 | UNSIGNED, 0, 1, packed)


def describe(values: Any, what: str) -> Index:
    """Where the integers of `values` are: a list, tuple or range, any integer buffer (also strided), a CPU tensor. They
    must be left alone until the call they are for has returned."""
    if type(values) is array:
        sign = _SIGNS.get(values.typecode)
        if sign is None:
            raise _wrong(what, f"array of type {values.typecode!r}")
        address, n = values.buffer_info()
        return Index(address, values.itemsize | sign, values.itemsize, n, values)
    if isinstance(values, (list, tuple, range)):
        return _from_list(values, what)
    if buffers.is_tensor(values):
        return _from_tensor(values, what)
    try:
        view = memoryview(values)
    except (TypeError, ValueError, BufferError):
        try:
            return _from_list(list(values), what)
        except TypeError:
            raise _wrong(what, type(values).__name__) from None
    return _from_view(view, what)


def _wrong(what: str, found: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{what}: integers are needed (a list, or an integer buffer), not {found}")


def _from_list(values: Any, what: str, code: str = "q") -> Index:
    try:
        packed = array(code, values)
    except OverflowError:
        raise InvalidArgumentError(f"{what}: a value does not fit in 64 bits") from None
    except TypeError as error:
        raise _wrong(what, str(error)) from None
    address, n = packed.buffer_info()
    return Index(address, 8 | (UNSIGNED if code == "Q" else 0), 8, n, packed)


def _from_view(view: memoryview, what: str) -> Index:
    if view.ndim != 1:
        raise _wrong(what, f"an array of {view.ndim} dimensions")
    kind = _kind(view, what)
    n = view.shape[0] if view.shape else 0
    if n == 0:
        return Index(0, kind, view.itemsize, 0, view)
    stride = view.strides[0] if view.strides else view.itemsize
    return Index(buffers.address_of(view), kind, stride, n, view)


def _kind(view: memoryview, what: str) -> int:
    """The size of an item, and whether it is unsigned."""
    code = view.format.lstrip("@=<" if sys.byteorder == "little" else "@=>")
    sign = _SIGNS.get(code)
    if sign is None:
        raise _wrong(what, f"items of format {view.format!r}")
    return view.itemsize | sign


def _from_tensor(tensor: Any, what: str) -> Index:
    name = str(tensor.dtype).removeprefix("torch.")
    kind, _, bits = name.partition("int")
    if tensor.device.type != "cpu" or tensor.dim() != 1 or kind not in ("", "u") or not bits.isdigit():
        raise _wrong(what, f"a {tensor.dim()}-dimensional tensor of {name} on {tensor.device}")
    item = int(bits) // 8
    unsigned = UNSIGNED if kind else 0
    return Index(tensor.data_ptr(), item | unsigned, tensor.stride(0) * item, len(tensor), tensor)
