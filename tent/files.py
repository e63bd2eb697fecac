"""Files as segments: the targets and keywords of Engine.open() for them, and durability."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _native
from ._text import shown
from .errors import InvalidArgumentError, TentError
from .quantities import bytes_of

if TYPE_CHECKING:
    from .handle import Handle

SCHEME = "file://"

_CREATE, _TRUNCATE, _READONLY, _DURABLE, _CACHED = 1, 2, 4, 8, 16  # flags of pybind_OpenFiles


def path_of(target: Any) -> str | None:
    """The absolute path that a target names, "file:///path" or an os.PathLike; None if it is no file."""
    if isinstance(target, os.PathLike):
        path = os.fspath(target)
        if not isinstance(path, str):
            raise InvalidArgumentError(f"{target!r}: a path of text is needed", hint="os.fsdecode() makes one of bytes")
        return os.path.abspath(path)
    if not isinstance(target, str) or not target.startswith("file:"):
        return None
    if not target.startswith(SCHEME + "/"):
        raise InvalidArgumentError(f"{target!r} has no absolute path", hint='three slashes follow "file:"')
    return target[len(SCHEME) :]


def durable(durability: Any) -> bool:
    """Returns whether a transfer ends only when its bytes are on stable storage."""
    if durability not in (None, "data"):
        raise InvalidArgumentError(
            f'durability is {shown(durability)}: it must be None or "data"',
            hint='None: the bytes were handed to the kernel; "data": fdatasync has returned',
        )
    return durability is not None


class Options:
    """The keywords of open() that only files take."""

    __slots__ = ("flags", "given", "size")

    def __init__(
        self,
        create: Any = False,
        size: Any = None,
        truncate: Any = False,
        readonly: Any = False,
        cached: Any = False,
        durability: Any = None,
    ) -> None:
        flags = {"create": create, "truncate": truncate, "readonly": readonly, "cached": cached}
        for name, value in flags.items():
            if not isinstance(value, bool):
                raise InvalidArgumentError(f"{name} is {shown(value)}: it must be True or False")
        self.size = 0 if size is None else bytes_of(size, "size")
        synced = durable(durability)
        self.flags = create * _CREATE | truncate * _TRUNCATE | readonly * _READONLY | cached * _CACHED
        self.flags |= synced * _DURABLE
        named = flags | {"size": self.size, "durability": durability}
        self.given = [name for name, value in named.items() if value]

    def refuse(self, target: object) -> None:
        """For a target that is no file."""
        if self.given:
            raise InvalidArgumentError(
                f"{self.given[0]}= is for files, and {shown(target)} is none", hint='"file:///path" is one'
            )


class File(NamedTuple):
    """A file to be opened, by its absolute path."""

    path: str
    options: Options


@contextmanager
def opening(engine: Handle, given: Iterable[File], timeout: float | str) -> Iterator[list[dict[str, Any]]]:
    """Opens files, all or none, such that Ctrl-C works. The value describes each, with its number as "segment".

    They are closed again if the caller is interrupted before the block has ended.
    """
    targets = [{"path": _named(file.path), "flags": file.options.flags, "size": file.options.size} for file in given]
    limit, text = _native.milliseconds(timeout), json.dumps(targets)

    def undo(text: str) -> None:
        with suppress(TentError):  # the engine has closed meanwhile, and the files with it
            close(engine, [file["segment"] for file in json.loads(text)])

    opens = partial(engine._call, engine._library.pybind_OpenFiles, text, limit)
    with _native.result_of(opens, undo) as made:
        yield json.loads(made)


def close(engine: Handle, segments: Iterable[int]) -> None:
    """Closes segments by their numbers, in one call."""
    engine._call(engine._library.pybind_CloseSegments, json.dumps(list(segments)))


def _named(path: str) -> str:
    if "\0" in path:
        raise InvalidArgumentError(f"{path!r} holds a zero byte")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{path!r} is not UTF-8") from None
    return path
