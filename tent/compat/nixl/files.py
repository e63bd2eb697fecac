"""The files of an agent. NIXL names a file by its open descriptor, tent by its path."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .errors import nixlInvalidParamError, nixlNotFoundError

if TYPE_CHECKING:
    from ...engine import Engine
    from ...segment import Segment

_Identity = tuple[int, int]  # of a file: its file system and its inode


class _File:
    """A registered file. The identity counts, because a descriptor's number is used again after its file is closed."""

    __slots__ = ("identity", "n", "segment")

    def __init__(self, segment: Segment, identity: _Identity) -> None:
        self.segment = segment
        self.identity = identity
        self.n = 0  # registrations


class Files:
    """The registered files of an agent by their descriptors. Any thread may use them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._files: dict[int, _File] = {}

    def open(self, descriptors: Iterable[int]) -> None:
        """Registers files, all or none. The errors are tent's and NIXL's."""
        opened: list[int] = []
        try:
            for fd in descriptors:
                self._open(fd)
                opened.append(fd)
        except BaseException:
            with contextlib.suppress(nixlNotFoundError):
                self.close(opened)
            raise

    def _open(self, fd: int) -> None:
        path, identity = _path(fd)
        with self._lock:
            file = self._files.get(fd)
            if file is None or file.identity != identity:
                if file is not None:
                    file.segment.close()
                file = self._files[fd] = _File(self._engine.open(f"file://{path}"), identity)
            file.n += 1

    def close(self, descriptors: Iterable[int]) -> None:
        """Takes registrations back; the descriptors stay open."""
        for fd in descriptors:
            with self._lock:
                file = self._files.get(fd)
                if file is None:
                    raise nixlNotFoundError(f"the file of descriptor {fd} is not registered")
                file.n -= 1
                if file.n == 0:
                    del self._files[fd]
                    file.segment.close()

    def segment(self, fd: int) -> Segment:
        """The segment of a registered file."""
        with self._lock:
            file = self._files.get(fd)
        if file is None:
            raise nixlNotFoundError(f"the file of descriptor {fd} is not registered")
        return file.segment


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
    path = text.partition(":")[2] if ":" in text else text
    try:
        facts = os.stat(path or fd)
    except (OSError, ValueError):
        return None
    return {"size": str(facts.st_size), "mode": oct(facts.st_mode), "mtime": str(int(facts.st_mtime))}
