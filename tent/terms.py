"""The terms of a move: the keywords that every moving call shares.

Their names, order, defaults and meaning are here; the calls repeat the signature alone, because people read it where
they type, and a test compares them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from . import _abi, moving
from ._text import shown
from .enums import IntentType
from .errors import InvalidArgumentError
from .gpu_stream import handle
from .moving import READ, Hint, Notify, Require

MEANING = _abi.MEANING | {
    "notify": "(name, message) for the peer, at most 255 and 65536 bytes; it arrives after the last byte.",
    "trace": "The caller's name for it, at most 64 bytes: in events, logs, spans and errors, and at the peer.",
}

F = TypeVar("F", bound=Callable[..., object])


# The terms as the engine takes them, of a READ, and the notification. The priority may be missing: see `filled`.
Given = tuple[Any, moving.Packed | None]


def terms(
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
) -> Given:
    """Returns the terms of a move as the engine reads them; the engine checks the ranges of numbers.

    Raises InvalidArgumentError for a word that is wrong.
    """
    if priority is True or priority is False:
        raise not_a_priority(priority)
    packed = _abi.terms(  # by position: names cost a tenth of a small move
        READ,
        priority,  # type: ignore[arg-type]
        0 if hint is None else moving.transport_number(hint),
        _abi.name_number("policy", policy) if policy else 0,
        0 if timeout is None else moving.deadline(timeout),
        intent,
        0 if integrity is None else _abi.number("integrity", integrity),
        0 if durability is None else _abi.number("durability", durability),
        0 if require is None else required(require),
        0 if stream is None else handle(stream),
    )
    return packed, None if notify is None and trace is None else moving.Packed(notify, trace)


def filled(op: int, priority: int, packed: Any) -> _abi.Terms:
    """Returns the terms of `packed` with an operation, and with a priority where the caller has given none."""
    return (op, priority if packed[1] is None else packed[1], *packed[2:])


def required(names: Require) -> int:
    """Returns the mask of the transports that a move requires; no names are an error, not every transport."""
    if isinstance(names, int) or not names or not (mask := _abi.mask("require", names)):
        raise InvalidArgumentError(f"require is {shown(names)}: it must name a transport, or be None for any of them")
    return mask


def not_a_priority(priority: object) -> InvalidArgumentError:
    """The error for True and False, which Python would take for 1 and 0."""
    return InvalidArgumentError(f"priority is {shown(priority)}: it must be {_abi.TAKES['priority']}")


def documented(function: F) -> F:
    """Appends the meaning of each keyword that a moving call takes to its docstring."""
    code = function.__code__
    keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    lines = [f"    {name}: {MEANING[name]}" for name in keywords if name in MEANING]
    if function.__doc__:  # `python -OO` has none
        margin = "" if sys.version_info >= (3, 13) else "        "  # of docstrings as the compiler leaves them
        function.__doc__ = f"\n{margin}".join([function.__doc__.rstrip(), "", "Args:", *lines])
    return function
