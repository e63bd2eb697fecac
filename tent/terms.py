"""The terms of a move: the keywords that every moving call shares.

Their names, order, defaults and meaning are here; the calls repeat the signature alone, because people read it where
they type, and a test compares them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from . import _abi, moving
from .enums import PRIO_HIGH, IntentType
from .errors import NotImplementedError
from .moving import READ, Hint, Notify

MEANING = {
    "priority": _abi.MEANING["priority"],
    "timeout": _abi.MEANING["timeout"],
    "notify": "(name, message) for the peer, at most 255 and 65536 bytes; it arrives after the last byte.",
    "hint": _abi.MEANING["hint"],
    "stream": "Not in this version: NotImplementedError unless it is None.",
    "integrity": _abi.MEANING["integrity"],
    "durability": _abi.MEANING["durability"],
    "intent": _abi.MEANING["intent"],
    "policy": _abi.MEANING["policy"],
}

F = TypeVar("F", bound=Callable[..., object])


Given = tuple[_abi.Terms, moving.Packed | None]  # the terms as the engine takes them, of a READ, and the notification


def terms(
    priority: int = PRIO_HIGH,
    timeout: float | None = None,
    notify: Notify | None = None,
    hint: Hint = None,
    stream: object = None,
    integrity: str | None = None,
    durability: str | None = None,
    intent: IntentType = IntentType.UNSPEC,
    policy: str = "",
) -> Given:
    """Returns the terms of a move as the engine reads them; the engine checks the ranges of numbers.

    Raises InvalidArgumentError or NotImplementedError for a word that is wrong.
    """
    if stream is not None:
        raise NotImplementedError("stream= is not in this version", hint="submit when the source is ready")
    packed = _abi.terms(  # by position: names cost a tenth of a small move
        READ,
        priority,
        0 if hint is None else moving.transport_number(hint),
        _abi.name_number("policy", policy) if policy else 0,
        0 if timeout is None else moving.deadline(timeout),
        intent,
        0 if integrity is None else _abi.number("integrity", integrity),
        0 if durability is None else _abi.number("durability", durability),
    )
    return packed, None if notify is None else moving.Packed(notify)


def documented(function: F) -> F:
    """Appends the meaning of each keyword that a moving call takes to its docstring."""
    code = function.__code__
    keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    lines = [f"    {name}: {MEANING[name]}" for name in keywords if name in MEANING]
    if function.__doc__:  # `python -OO` has none
        margin = "" if sys.version_info >= (3, 13) else "        "  # of docstrings as the compiler leaves them
        function.__doc__ = f"\n{margin}".join([function.__doc__.rstrip(), "", "Args:", *lines])
    return function
