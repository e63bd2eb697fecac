"""The terms of a move: the keywords that every moving call shares. Their names, order, defaults, meaning and checks are
here; the calls repeat the signature alone, because people read it where they type, and a test compares them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from . import moving
from .enums import PRIO_HIGH
from .moving import Hint, Notify

MEANING = {
    "priority": "PRIO_HIGH, PRIO_MEDIUM or PRIO_LOW: urgent bytes pass the others wherever they would wait for them.",
    "timeout": "Seconds from this call on, at most; then it ends as TIMEOUT, without a further byte. None: no limit.",
    "notify": "(name, message) for the peer, at most 255 and 65536 bytes; it arrives after the last byte.",
    "hint": "The transport to try first, by name or TransportType; the others follow when it fails.",
    "stream": "Not in this version: NotImplementedError unless it is None.",
    "integrity": '"crc32c": each slice carries a checksum, and one that changed on its way is sent again.',
    "durability": '"data", for files: it ends when all that it writes is on stable storage, as fdatasync promises.',
}

F = TypeVar("F", bound=Callable[..., object])


# As the engine takes them: the first word without its operation, the deadline in ns or 0, and the notification.
Terms = tuple[int, int, moving.Packed | None]


def terms(
    priority: int = PRIO_HIGH,
    timeout: float | None = None,
    notify: Notify | None = None,
    hint: Hint = None,
    stream: object = None,
    integrity: str | None = None,
    durability: str | None = None,
) -> Terms:
    """Returns the checked terms of a move. Raises InvalidArgumentError or NotImplementedError for a wrong one."""
    return (
        moving.word(0, priority, hint, stream, integrity, durability),
        0 if timeout is None else moving.deadline(timeout),
        None if notify is None else moving.Packed(notify),
    )


def documented(function: F) -> F:
    """Appends the meaning of each keyword that a moving call takes to its docstring."""
    code = function.__code__
    keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    lines = [f"    {name}: {MEANING[name]}" for name in keywords if name in MEANING]
    if function.__doc__:  # `python -OO` has none
        margin = "" if sys.version_info >= (3, 13) else "        "  # of docstrings as the compiler leaves them
        function.__doc__ = f"\n{margin}".join([function.__doc__.rstrip(), "", "Args:", *lines])
    return function
