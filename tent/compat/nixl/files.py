"""The files of an agent, which NIXL names by open descriptors, or by paths as `rw,create:/path`; tent does by paths."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .errors import (
    nixlBackendError,
    nixlInvalidParamError,
    nixlNotAllowedError,
    nixlNotFoundError,
    nixlNotSupportedError,
)

if TYPE_CHECKING:
    from ...addresses import Addresses
    from ...engine import Engine
    from .backends import Backends
    from .descriptors import nixlRegDList

_numbers = itertools.count(1)
_Identity = tuple[int, int]  # of a file: its file system and its inode


class _Named(NamedTuple):
    """A file that is named by its path, and the flags with which it is opened."""

    path: str
    flags: int
    direct: bool  # past the page cache; the engine knows how where a file system has no O_DIRECT


_FLAGS = {"ro": os.O_RDONLY, "rw": os.O_RDWR, "create": os.O_CREAT, "direct": 0, "noatime": 0, "sync": os.O_SYNC}


def named(text: str) -> _Named | None:
    """The file that the text of a descriptor names as upstream does, by `ro` or `rw`, flags, and a path. Any other text
    names none: the device of the descriptor is the number of an open file."""
    modes, _, path = text.partition(":")
    words = modes.split(",")
    if not path or words[0] not in ("ro", "rw") or not set(words[1:]) <= {"create", "direct", "noatime", "sync"}:
        return None
    if "sync" in words:
        raise nixlNotSupportedError(f"{text!r}: files of tent are not opened with O_SYNC")
    flags = 0
    for word in words:
        flags |= _FLAGS[word]
    return _Named(path, flags, "direct" in words)


class _File:
    """A registered file. The identity counts, because a descriptor's number is used again after its file is closed."""

    __slots__ = ("_by", "_fd", "_identity", "_modes", "n", "number", "segment")

    def __init__(self, engine: Engine, fd: int, by: _Named | None, bypasses: bool) -> None:
        """The descriptor of a file that was named by its path is this file's, and ends with it. `bypasses`: past the
        page cache, also if the descriptor says otherwise."""
        self.n = 0  # registrations
        self.number = next(_numbers)
        self._fd, self._by = fd, by
        path, self._identity = _path(fd)
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        # As upstream, the descriptor decides about the page cache.
        self._modes: dict[str, Any] = {
            "readonly": flags & os.O_ACCMODE == os.O_RDONLY,
            "cached": not (bypasses or flags & os.O_DIRECT),
        }
        self.segment = engine.open(f"file://{path}", **self._modes)

    def close(self) -> None:
        """Nothing of the file is used any more."""
        self.n = 0
        self.segment.close()
        if self._by is not None:
            os.close(self._fd)

    def is_meant(self, fd: int, by: _Named | None) -> bool:
        """Whether the descriptor, or the path, is still or again of this file, which was named in the same way."""
        if by is None or by != self._by:
            return by == self._by and _path(fd)[1] == self._identity
        with contextlib.suppress(OSError):
            facts = os.stat(by.path)
            return (facts.st_dev, facts.st_ino) == self._identity
        return False

    def check(self, end: int, grows: bool) -> None:
        """Raises as reach(end, grows) would, and for a file that may not grow."""
        if self.n == 0:
            raise nixlNotFoundError(f"the file of descriptor {self._fd} is not registered any more")
        if end > self.segment.size:
            self._place()
        if grows and self._modes["readonly"]:
            raise nixlNotAllowedError(f"the file of descriptor {self._fd} was opened for reading only")

    def reach(self, engine: Engine, end: int, grows: bool) -> None:
        """Makes the segment as long as its file is by now, and before that the file, if it `grows`, of `end` bytes."""
        if end <= self.segment.size:
            return
        grown: dict[str, Any] = {"create": True, "size": end} if grows else {}
        before, self.segment = self.segment, engine.open(f"file://{self._place()}", **self._modes, **grown)
        before.close()  # moves that are under way go on

    def _place(self) -> str:
        path, identity = _path(self._fd)
        if identity != self._identity:
            raise nixlInvalidParamError(f"the descriptor {self._fd} was closed, and is that of {path} now")
        return path


class FileRanges:
    """Ranges of registered files, of one or of many. As upstream, one without bytes has its index, and nothing of it
    moves. Each transfer looks its own ranges up, since a WRITE makes a file longer."""

    __slots__ = ("files", "n", "places", "rows")

    def __init__(self, files: dict[int, _File], rows: Any) -> None:
        """For Files only. `files` are those of the rows, by their descriptors."""
        self.files = files
        self.rows = rows
        self.n = len(rows)
        full = rows[:, 1] > 0
        # As in moves.Ranges: where each range is, -1 for one without bytes; None where every one has some.
        self.places = None if full.all() else np.where(full, np.arange(len(rows)), -1)

    def close(self) -> None:
        """Nothing is held."""


class Files:
    """The registered files of an agent by their descriptors. Any thread may use them."""

    def __init__(self, engine: Engine, backends: Backends) -> None:
        self._engine = engine
        self._backends = backends
        self._lock = threading.Lock()
        self._number = next(_numbers)
        self._files: dict[int, _File] = {}

    def open(self, descs: nixlRegDList) -> None:
        """Registers the files of a list, all or none, and notes them in it. The errors are tent's and NIXL's."""
        opened: Counter[int] = Counter()
        own: dict[int, int] = {}
        try:
            for _, _, fd, text in descs:
                number = self._open(fd, named(text)).number
                opened[fd] += 1
                if own.setdefault(fd, number) != number:
                    raise nixlInvalidParamError(f"the device {fd} is two files in one list")
        except BaseException:
            with self._lock:
                self._leave(opened)
            raise
        descs.files.setdefault(self._number, []).append(own)

    def _open(self, fd: int, by: _Named | None) -> _File:
        with self._lock:
            file = self._files.get(fd)
            if file is None or not file.is_meant(fd, by):
                made = self._made(fd, by)
                if file is not None:
                    self._forget(fd, file)
                file = self._files[fd] = made
            file.n += 1
            return file

    def _made(self, fd: int, by: _Named | None) -> _File:
        bypasses = self._backends.bypass_the_cache()
        if by is None:
            return _File(self._engine, fd, None, bypasses)
        try:
            fd = os.open(by.path, by.flags | os.O_CLOEXEC, 0o644)
        except (OSError, ValueError) as error:
            raise nixlBackendError(f"the file {by.path!r} cannot be opened: {error}") from error
        try:
            return _File(self._engine, fd, by, bypasses or by.direct)
        except BaseException:
            os.close(fd)
            raise

    def _forget(self, fd: int, file: _File) -> None:
        del self._files[fd]
        file.close()

    def close(self, descs: nixlRegDList) -> None:
        """Takes the registrations of a list back, all or none; the descriptors stay open. A list that was registered
        means its own files: where a number is that of another file by now, nothing is left to take back. Any other list
        means the files that its numbers are registered for now."""
        with self._lock:
            noted = descs.files.get(self._number)
            if noted == []:
                raise nixlNotFoundError("the files of the list are not registered any more")
            own = noted[-1] if noted else {}
            leaving: Counter[int] = Counter()
            for _, _, fd, _ in descs:
                if fd in own and (fd not in self._files or self._files[fd].number != own[fd]):
                    continue
                if leaving[fd] == self._registered(fd).n:
                    raise nixlNotFoundError(f"the file of descriptor {fd} is not registered that often")
                leaving[fd] += 1
            if noted:
                noted.pop()
            self._leave(leaving)

    def _leave(self, leaving: Counter[int]) -> None:
        for fd, n in leaving.items():
            file = self._files.get(fd)
            if file is not None:
                file.n = max(0, file.n - n)
                if file.n == 0:
                    self._forget(fd, file)

    def _registered(self, fd: int) -> _File:
        file = self._files.get(fd)
        if file is None:
            raise nixlNotFoundError(f"the file of descriptor {fd} is not registered")
        return file

    def ranges(self, rows: Any) -> FileRanges:
        """The ranges of a list with descriptors of registered files in its third column."""
        with self._lock:
            return FileRanges({fd: self._registered(fd) for fd in np.unique(rows[:, 2]).tolist()}, rows)

    @contextlib.contextmanager
    def looked_up(self, ranges: FileRanges, chosen: Any, grows: bool) -> Iterator[Iterator[tuple[Any, Addresses]]]:
        """The chosen ranges, file by file: their places in `chosen`, and the engine's list of them. Files that are too
        short grow if `grows`. None is registered or taken back meanwhile."""
        with self._lock, contextlib.ExitStack() as lists:
            yield self._by_file(ranges, chosen, grows, lists)

    def _by_file(
        self, ranges: FileRanges, chosen: Any, grows: bool, lists: contextlib.ExitStack
    ) -> Iterator[tuple[Any, Addresses]]:
        rows = ranges.rows[chosen]
        order = np.argsort(rows[:, 2], kind="stable")
        parts = []
        for places in np.split(order, np.flatnonzero(np.diff(rows[order, 2])) + 1):
            own = rows[places]
            parts.append((places, own, ranges.files[int(own[0, 2])], max(int(at) + int(size) for at, size, _ in own)))
        for _, _, file, end in parts:  # all of them before one of them grows
            file.check(end, grows)
        for places, own, file, end in parts:
            file.reach(self._engine, end, grows)
            listed = file.segment.addresses(own)
            lists.callback(listed.close)
            yield places, listed


def _path(fd: int) -> tuple[str, _Identity]:
    """The path of an open file. A file that was removed or renamed since has none."""
    try:
        path, facts = os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd)
        there = os.stat(path)
    except OSError as error:
        raise nixlInvalidParamError(f"the device of a FILE descriptor is an open file: {fd}: {error}") from None
    if (there.st_dev, there.st_ino) != (facts.st_dev, facts.st_ino):
        raise nixlInvalidParamError(f"the file of descriptor {fd} is no longer at {path}")
    return path, (facts.st_dev, facts.st_ino)


def facts_of(fd: int, text: str) -> dict[str, str] | None:
    """Size and times of a file, by its path or its descriptor; None if it is not there."""
    by = named(text)
    try:
        facts = os.stat(by.path if by else text or fd)
    except (OSError, ValueError):
        return None
    return {"size": str(facts.st_size), "mode": oct(facts.st_mode), "mtime": str(int(facts.st_mtime))}
