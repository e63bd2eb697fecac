"""Streams of devices, as the engine knows them: a handle of 64 bits.

A framework's default stream has the handle 0, 1 or 2 on every device. So where the object says its device, the engine
is given the device's number in the bits above these: `(device + 1) << 2 | handle`. No pointer is that small.
"""

from __future__ import annotations

import operator
from typing import Any

from ._text import shown
from .errors import InvalidArgumentError

_LEGACY, _PER_THREAD = 1, 2  # CU_STREAM_LEGACY and CU_STREAM_PER_THREAD


def handle(stream: object) -> int:
    """The number of a stream: torch's, CuPy's, one with __cuda_stream__, or the handle of a driver itself.

    A default stream that names no device is that of the calling thread's current one.
    """
    found = _found(stream)
    if found is None or not 0 <= found[0] < 1 << 64:
        raise InvalidArgumentError(
            f"stream is {shown(stream)}: it must be a stream of a device, or its handle",
            hint="torch.cuda.current_stream(), an object with __cuda_stream__, or a CUstream as an integer",
        )
    number, device = found
    if number > _PER_THREAD:
        return number
    return (number or _LEGACY) if device is None else (device + 1) << 2 | (number or _LEGACY)


def _found(stream: Any) -> tuple[int, int | None] | None:
    """The handle and the device of a stream; None where it is no stream."""
    if hasattr(type(stream), "__index__"):
        return None if isinstance(stream, bool) else (operator.index(stream), None)
    try:
        for name, device in (("cuda_stream", "device_index"), ("ptr", "device_id")):  # torch, CuPy
            if hasattr(stream, name):
                at = getattr(stream, device, None)
                return operator.index(getattr(stream, name)), None if at is None or at < 0 else operator.index(at)
        protocol = getattr(stream, "__cuda_stream__", None)
        if protocol is None:
            return None
        _version, number = protocol() if callable(protocol) else protocol
        return operator.index(number), None
    except (TypeError, ValueError):
        return None
