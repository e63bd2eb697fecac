"""The local side of an agent: registered ranges and open files."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ... import _native
from ..taking_back import close_all
from .descriptors import DRAM_SEG, FILE_SEG, NAMES, VRAM_SEG, nixlRegDList
from .errors import nixlNotFoundError, nixlNotSupportedError, translated, translating
from .files import Files, facts_of

if TYPE_CHECKING:
    from ...engine import Engine
    from ...region import Region
    from .backends import Backends

_Key = tuple[int, int, int, int]  # kind, address, length, device


class Memory:
    """The memory of one agent. Any thread may use it; a range that was registered twice is held until it left twice."""

    def __init__(self, engine: Engine, owner: str, backends: Backends) -> None:
        """`owner` is the agent's name, under which peers see the regions."""
        self._engine = engine
        self._owner = owner
        self._lock = _native.renewed(threading.RLock())
        self._regions: dict[_Key, list[Region]] = {}
        self.files = Files(engine, backends)
        self._registered = 0

    def register(self, descs: nixlRegDList) -> None:
        """Registers the ranges of a list, all or none."""
        kind = descs.getType()
        if kind == FILE_SEG:
            with translating():
                self.files.open(descs)
            return
        made: list[tuple[_Key, Region]] = []
        try:
            with translating():
                for key in _keys(descs):
                    region = self._region(*key)
                    made.append((key, region))
        except BaseException:
            close_all(region for _, region in made)
            raise
        self._hold(made)

    def _hold(self, made: list[tuple[_Key, Region]]) -> None:
        with self._lock:
            for key, region in made:
                self._regions.setdefault(key, []).append(region)

    def _region(self, kind: int, address: int, length: int, device: int) -> Region:
        if kind not in (DRAM_SEG, VRAM_SEG):
            raise nixlNotSupportedError(f"tent does not move memory of the kind {NAMES[kind]}")
        with self._lock:
            self._registered += 1
            name = f"{self._owner}/{self._registered}"
        location = f"cuda:{device}" if kind == VRAM_SEG else "*"
        return self._engine.register((address, length), name=name, location=location)

    def deregister(self, descs: nixlRegDList) -> None:
        """Ends the access of peers to the ranges of a list, all or none; none of them is touched when it returns. The
        descriptors of files are the caller's, and stay open. After an error, as of a peer that is still inside, the
        ranges that are late are still to be deregistered, and no other ones: facts() has them."""
        kind = descs.getType()
        if kind == FILE_SEG:
            self.files.close(descs)
            return
        leaving: list[tuple[_Key, Region]] = []
        with self._lock:
            try:
                for key in _keys(descs):
                    region = self._held(key).pop()
                    leaving.append((key, region))
            except nixlNotFoundError:
                for key, region in leaving:
                    self._regions[key].append(region)
                raise
            for key, _ in leaving:
                if not self._regions.get(key, True):
                    del self._regions[key]
        try:
            if late := close_all(region for _, region in leaving):
                raise translated(late)
        except BaseException:
            self._hold([(key, region) for key, region in leaving[::-1] if not region.closed])
            raise

    def _held(self, key: _Key) -> list[Region]:
        """The regions of a range. The caller holds the lock."""
        held = self._regions.get(key)
        if not held:
            raise nixlNotFoundError(f"{key[2]} bytes at {key[1]:#x} are not registered")
        return held

    def names(self, descs: nixlRegDList) -> list[str]:
        """The names of the regions of a list, as peers know them."""
        with self._lock:
            return [self._held(key)[-1].name for key in _keys(descs)]

    def facts(self, descs: nixlRegDList) -> list[dict[str, str] | None]:
        """For each range a dict if it is there, else None: a file by its path, memory by its registration."""
        if descs.getType() == FILE_SEG:
            return [facts_of(device, text) for device, text in zip(descs.devices, descs.texts, strict=True)]
        return [{} if self._holds(address, length) else None for address, length, _, _ in descs]

    def _holds(self, address: int, length: int) -> bool:
        with self._lock:
            return any(start <= address and address + length <= start + n for _, start, n, _ in self._regions)


def _keys(descs: nixlRegDList) -> list[_Key]:
    """The ranges of a list. Those without bytes are left out: there is nothing to register."""
    kind = descs.getType()
    return [(kind, address, length, device) for address, length, device, _ in descs if length]
