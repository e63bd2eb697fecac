"""The files of an agent, which NIXL names by open descriptors, or by paths as `rw,create:/path`; tent does by paths."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import _native, files
from ...engine import OPEN_TIMEOUT
from ...segment import Segment, close_all
from .errors import (
    nixlBackendError,
    nixlInvalidParamError,
    nixlNotAllowedError,
    nixlNotFoundError,
    nixlNotSupportedError,
)

if TYPE_CHECKING:
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

    __slots__ = ("_by", "_fd", "_identity", "_modes", "_path", "n", "number", "segment")

    segment: Segment  # once it was opened

    def __init__(self, fd: int, by: _Named | None, bypasses: bool) -> None:
        """The descriptor of a file that was named by its path is this file's, and ends with it. `bypasses`: past the
        page cache, also if the descriptor says otherwise."""
        self.n = 0  # registrations
        self.number = next(_numbers)
        self._fd, self._by = fd, by
        self._path, self._identity = _path(fd)
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        # As upstream, the descriptor decides about the page cache.
        self._modes: dict[str, Any] = {
            "readonly": flags & os.O_ACCMODE == os.O_RDONLY,
            "cached": not (bypasses or flags & os.O_DIRECT),
        }

    def meant(self, size: int | None = None) -> files.File:
        """The file for the engine to open; one of a size is as long as that or longer then."""
        return files.File(self._path, files.Options(create=size is not None, size=size, **self._modes))

    def close(self) -> None:
        """Closes its descriptor, if that is its own. The segment is the caller's."""
        self.n = 0
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

    def check(self, end: int, grows: bool) -> bool:
        """Whether the file must be opened again, since it was shorter than `end` bytes. Raises for one that is lost,
        and for one that may not grow."""
        if self.n == 0:
            raise nixlNotFoundError(f"the file of descriptor {self._fd} is not registered any more")
        short = end > self.segment.size
        if short:
            self._look()
        if grows and self._modes["readonly"]:
            raise nixlNotAllowedError(f"the file of descriptor {self._fd} was opened for reading only")
        return short

    def _look(self) -> None:
        self._path, identity = _path(self._fd)
        if identity != self._identity:
            raise nixlInvalidParamError(f"the descriptor {self._fd} was closed, and is that of {self._path} now")


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


class Files:
    """The registered files of an agent by their descriptors. Any thread may use them."""

    def __init__(self, engine: Engine, backends: Backends) -> None:
        self._engine = engine
        self._backends = backends
        self._lock = _native.renewed(threading.RLock())
        self._number = next(_numbers)
        self._files: dict[int, _File] = {}

    def open(self, descs: nixlRegDList) -> None:
        """Registers the files of a list, all or none, and notes them in it. The errors are tent's and NIXL's."""
        devices = descs.devices
        with self._lock:
            made: dict[int, _File] = {}
            try:
                meant = [self._meant(fd, named(text), made) for fd, text in zip(devices, descs.texts, strict=True)]
                self._open(list(made.values()))
            except BaseException:
                for file in made.values():
                    file.close()
                raise
            replaced = [self._files[fd] for fd in made if fd in self._files]
            self._files.update(made)
            for file in meant:
                file.n += 1
            self._forget(replaced)
        own = {fd: file.number for fd, file in zip(devices, meant, strict=True)}
        descs.files.setdefault(self._number, []).append(own)

    def _meant(self, fd: int, by: _Named | None, made: dict[int, _File]) -> _File:
        """The file of a descriptor: a registered one, or one that is put into `made`."""
        file = made.get(fd) or self._files.get(fd)
        if file is not None and file.is_meant(fd, by):
            return file
        if fd in made:
            raise nixlInvalidParamError(f"the device {fd} is two files in one list")
        file = made[fd] = self._made(fd, by)
        return file

    def _made(self, fd: int, by: _Named | None) -> _File:
        bypasses = self._backends.bypass_the_cache()
        if by is None:
            return _File(fd, None, bypasses)
        try:
            fd = os.open(by.path, by.flags | os.O_CLOEXEC, 0o644)
        except (OSError, ValueError) as error:
            raise nixlBackendError(f"the file {by.path!r} cannot be opened: {error}") from error
        try:
            return _File(fd, by, bypasses or by.direct)
        except BaseException:
            os.close(fd)
            raise

    def _open(self, opened: list[_File], sizes: Iterable[int | None] = itertools.repeat(None)) -> None:
        """Opens files in the engine, all or none; each is as long as its size then, if it has one."""
        if not opened:
            return
        meant = [file.meant(size) for file, size in zip(opened, sizes, strict=False)]
        with files.opening(self._engine, meant, OPEN_TIMEOUT) as described:
            for file, fields in zip(opened, described, strict=True):
                file.segment = Segment(self._engine, fields["segment"], fields)

    def _forget(self, left: list[_File]) -> None:
        """Nothing of the files is used any more."""
        close_all(self._engine, [file.segment for file in left])
        for file in left:
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
            for fd in descs.devices:
                if fd in own and (fd not in self._files or self._files[fd].number != own[fd]):
                    continue
                if leaving[fd] == self._registered(fd).n:
                    raise nixlNotFoundError(f"the file of descriptor {fd} is not registered that often")
                leaving[fd] += 1
            if noted:
                noted.pop()
            self._leave(leaving)

    def _leave(self, leaving: Counter[int]) -> None:
        left = []
        for fd, n in leaving.items():
            file = self._files.get(fd)
            if file is not None:
                file.n = max(0, file.n - n)
                if file.n == 0:
                    left.append(self._files.pop(fd))
        self._forget(left)

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
    def reached(self, ranges: FileRanges, rows: Any, grows: bool) -> Iterator[Any]:
        """The numbers of the segments of some rows. Files that are too short grow if `grows`. None is
        registered or taken back meanwhile."""
        with self._lock:
            devices, places = np.unique(rows[:, 2], return_inverse=True)
            ends = np.zeros(len(devices), np.uint64)
            np.maximum.at(ends, places, rows[:, 0] + rows[:, 1])
            own = [ranges.files[fd] for fd in devices.tolist()]
            # All of them before one of them grows.
            short = [(file, end) for file, end in zip(own, ends.tolist(), strict=True) if file.check(end, grows)]
            self._reopen([file for file, _ in short], [end if grows else None for _, end in short])
            yield np.array([file.segment._handle for file in own], np.int64)[places]

    def _reopen(self, short: list[_File], sizes: list[int | None]) -> None:
        before = [file.segment for file in short]
        self._open(short, sizes)
        close_all(self._engine, before)  # moves that are under way go on


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
