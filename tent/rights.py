"""The rights of peers to memory of this engine: a permission, and the identities that have it."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ._text import shown
from .enums import Permission
from .errors import InvalidArgumentError, PermissionDeniedError
from .quantities import integer_of

_READABLE = (Permission.GlobalReadOnly, Permission.GlobalReadWrite)


def permission_of(wanted: Permission) -> int:
    """A permission as the engine takes it."""
    n = integer_of(wanted)
    if n is None or n not in list(Permission):
        raise InvalidArgumentError(f"permission is {shown(wanted)}: it must be a tent.Permission")
    return n


def allowed_of(wanted: Permission | None, named: bool, read_only: bool) -> int:
    """The permission of a region: as wanted, else by whether it has a name and whether its buffer is read-only."""
    if wanted is None:
        return int(_READABLE[not read_only]) if named else int(Permission.LocalReadWrite)
    allowed = permission_of(wanted)
    if read_only and allowed == Permission.GlobalReadWrite:
        raise PermissionDeniedError("the buffer is read-only: peers cannot be allowed to write to it")
    return allowed


def identities(what: str, patterns: str | Iterable[str] | None) -> str:
    """One pattern or many as a JSON list; "" for None. The engine checks them."""
    if patterns is None:
        return ""
    listed = [patterns] if isinstance(patterns, str) else list(patterns) if isinstance(patterns, Iterable) else [None]
    if not all(isinstance(pattern, str) for pattern in listed):
        raise InvalidArgumentError(f"{what} is {shown(patterns)}: it must be patterns of identities")
    return json.dumps(listed)
