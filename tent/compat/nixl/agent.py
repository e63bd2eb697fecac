"""NIXL's agent over tent's Engine."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import sys
import threading
import uuid
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _native
from ..._version import __version__
from ...engine import Engine
from ...errors import TentError
from ...moving import READ, WRITE
from ..options import Options
from . import descriptors, messages
from .descriptors import DRAM_SEG, FILE_SEG, NAMES, VRAM_SEG, nixlRegDList, nixlRemoteDList, nixlXferDList
from .errors import (
    nixlInvalidParamError,
    nixlMismatchError,
    nixlNotFoundError,
    nixlNotSupportedError,
    translated,
)
from .handles import nixl_backend_handle, nixl_prepped_dlist_handle, nixl_xfer_handle, nixlXferTelemetry, usable
from .listener import Listener, ask

if TYPE_CHECKING:
    from ...region import Region
    from ...segment import Segment
    from ...transfer import Transfer

logger = logging.getLogger("tent.compat.nixl")

DEFAULT_COMM_PORT = 8888
NIXL_INIT_AGENT = "NIXL_INIT_AGENT"
CONNECT_LIMIT = 10.0  # seconds in which a peer answers and a rail comes up

# The backends that tent stands for, with the kinds of memory that each has upstream.
NETWORK = ("UCX", "LIBFABRIC", "UCCL", "Mooncake")
STORAGE = ("POSIX", "GDS", "GDS_MT")
_MEMORY = {name: ("DRAM", "VRAM") if name in NETWORK else ("DRAM", "VRAM", "FILE") for name in NETWORK + STORAGE}

_OPERATIONS = {"READ": READ, "WRITE": WRITE}
_FORM = "tent-nixl-1"

Name = str | bytes
Key = tuple[int, int, int, int]  # kind, address, length, device


class nixl_thread_sync_t(Enum):
    """Ways to guard an agent. An agent of tent may be used from any thread in each of them."""

    NIXL_THREAD_SYNC_NONE = 0
    NIXL_THREAD_SYNC_STRICT = 1
    NIXL_THREAD_SYNC_RW = 2
    NIXL_THREAD_SYNC_DEFAULT = NIXL_THREAD_SYNC_NONE


class nixl_agent_config:
    """What an agent is made with. Threads have no meaning here: tent spins in none."""

    def __init__(
        self,
        enable_prog_thread: bool = True,
        enable_listen_thread: bool = False,
        listen_port: int = DEFAULT_COMM_PORT,
        capture_telemetry: bool = False,
        num_threads: int = 0,
        backends: list[str] | None = None,
        sync_mode: nixl_thread_sync_t | None = None,
    ) -> None:
        if sync_mode is not None and not isinstance(sync_mode, nixl_thread_sync_t):
            raise TypeError(f"sync_mode must be a nixl_thread_sync_t, not {type(sync_mode).__name__}")
        self.backends = ["UCX"] if backends is None else list(backends)
        self.enable_pthread = enable_prog_thread
        self.enable_listen = enable_listen_thread
        self.port = listen_port
        self.capture_telemetry = capture_telemetry
        self.num_threads = num_threads
        self.sync_mode = sync_mode


class _Peer:
    """A remote agent: its segment, and the life of the agent that it belongs to."""

    __slots__ = ("life", "segment")

    def __init__(self, segment: Segment, life: str) -> None:
        self.segment = segment
        self.life = life


class nixl_agent:
    """NIXL's agent. Any thread may use it.

    Example:
        import numpy
        from tent.compat.nixl import nixl_agent

        one, two = nixl_agent("one"), nixl_agent("two")
        source, target = numpy.full(4096, 7, numpy.uint8), numpy.zeros(4096, numpy.uint8)
        here = one.register_memory([(source.ctypes.data, 4096, 0, "")], "DRAM")
        there = two.register_memory([(target.ctypes.data, 4096, 0, "")], "DRAM")
        one.add_remote_agent(two.get_agent_metadata())
        handle = one.initialize_xfer("WRITE", here.trim(), there.trim(), "two", b"done")
        one.transfer(handle)
        while one.check_xfer_state(handle) == "PROC":
            pass
        assert target[0] == 7 and two.get_new_notifs() == {"one": [b"done"]}
    """

    def __init__(
        self,
        agent_name: str,
        nixl_conf: nixl_agent_config | None = None,
        instantiate_all: bool = False,
        *,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`options` are the terms of its transfers and the settings of its engine, see tent.compat.options; without
        them TENT_COMPAT counts."""
        self._closed = True
        if not agent_name or "\\0" in agent_name or len(agent_name.encode()) > messages.NAME_MAX:
            raise nixlInvalidParamError(
                f"the agent's name is {agent_name!r}: 1 to {messages.NAME_MAX} bytes are needed"
            )
        conf = nixl_agent_config() if nixl_conf is None else nixl_conf
        self.name = agent_name
        self.options = Options.of(options)
        self.plugin_list = [*NETWORK, *STORAGE]
        self.backends: dict[str, nixl_backend_handle] = {}
        self.notifs: dict[str, list[bytes]] = {}
        self._counts = conf.capture_telemetry
        self._life = uuid.uuid4().hex
        self._lock = threading.RLock()
        self._regions: dict[Key, list[Region]] = {}
        self._files: dict[int, Segment] = {}
        self._registered = 0
        self._peers: dict[str, _Peer] = {}
        self._joiner = messages.Joiner()
        self._notices: list[Transfer] = []
        try:
            self.engine = Engine(self.options.config)
        except TentError as error:
            raise translated(error) from error
        self._closed = False
        for backend in self.plugin_list if instantiate_all and nixl_conf is None else conf.backends:
            if backend in self.plugin_list:
                self.create_backend(backend)
            else:
                logger.warning("tent does not stand for the backend %s: it is left out", backend)
        self._listener = Listener(self, conf.port) if conf.enable_listen else None

    # Backends

    def get_plugin_list(self) -> list[str]:
        """The backends that tent stands for."""
        return list(self.plugin_list)

    def get_plugin_mem_types(self, backend: str) -> list[str]:
        """The kinds of memory that a backend has."""
        return list(_MEMORY[self._plugin(backend)])

    def get_plugin_params(self, backend: str) -> dict[str, str]:
        """The parameters of a backend: none, tent has settings."""
        self._plugin(backend)
        return {}

    def get_backend_mem_types(self, backend: str) -> list[str]:
        """The kinds of memory that a backend has, once it was created."""
        self._created(backend)
        return list(_MEMORY[backend])

    def get_backend_params(self, backend: str) -> dict[str, str]:
        """The parameters of a backend that was created."""
        self._created(backend)
        return {}

    def create_backend(self, backend: str, initParams: Mapping[str, str] | None = None) -> None:
        """Makes a backend's name usable. Its parameters have no meaning here."""
        self._plugin(backend)
        with self._lock:
            self.backends.setdefault(backend, len(self.backends) + 1)

    def _plugin(self, backend: str) -> str:
        if backend not in _MEMORY:
            raise nixlNotFoundError(f"tent stands for no backend {backend!r}: {', '.join(self.plugin_list)}")
        return backend

    def _created(self, backend: str) -> None:
        if backend not in self.backends:
            raise nixlNotFoundError(
                f"the backend {backend!r} was not created: {', '.join(self.backends) or 'none was'}"
            )

    def _chosen(self, backends: Iterable[str], file: bool = False) -> str:
        """The backend's name that a transfer goes by."""
        listed = list(backends)
        for backend in listed:
            self._created(backend)
        names = [name for name in listed or self.backends if (name in STORAGE) == file]
        return names[0] if names else "POSIX" if file else "UCX"

    # Descriptor lists

    def get_xfer_descs(self, descs: Any, mem_type: str | None = None) -> nixlXferDList:
        """A list of ranges: of tuples or an N x 3 array (address, length, device), of a tensor or of tensors."""
        if isinstance(descs, nixlXferDList):
            return descs
        if isinstance(descs, nixlRegDList):
            raise nixlInvalidParamError("a registration list is given where a transfer list is needed: call trim()")
        kind, rows = self._described(descs, mem_type, 3)
        return nixlXferDList(kind, rows)

    def get_remote_descs(self, descs: Any, mem_type: str | None = None) -> nixlRemoteDList:
        """A list of ranges of a remote agent; a fourth item, the agent's name, is left out."""
        if isinstance(descs, nixlRemoteDList):
            return descs
        kind, rows = self._described(descs, mem_type, 4)
        return nixlRemoteDList(kind, rows if isinstance(rows, np.ndarray) else [row[:3] for row in rows])

    def get_reg_descs(self, descs: Any, mem_type: str | None = None) -> nixlRegDList:
        """A list to register: of tuples (address, length, device, text), an N x 3 array, a tensor or tensors."""
        if isinstance(descs, nixlRegDList):
            return descs
        if isinstance(descs, nixlXferDList):
            raise nixlInvalidParamError("a transfer list is given where a registration list is needed")
        kind, rows = self._described(descs, mem_type, 4)
        return nixlRegDList(kind, rows)

    @staticmethod
    def _described(descs: Any, mem_type: str | None, columns: int) -> tuple[int, Any]:
        if descriptors.is_tensor(descs):
            return descriptors.of_tensors([descs])
        if isinstance(descs, np.ndarray):
            if descs.ndim == 1 and len(descs):  # one range
                descs = descs.reshape(1, -1)
        else:
            descs = list(descs)
            if descs and descriptors.is_tensor(descs[0]):
                return descriptors.of_tensors(descs)
            for row in descs:
                if not isinstance(row, tuple) or len(row) not in (3, columns):
                    raise nixlInvalidParamError(f"a descriptor is a tuple of {columns} items, not {row!r}")
        if mem_type is None:
            raise nixlInvalidParamError("the memory type is missing: it is known of tensors alone")
        return descriptors.kind_of(mem_type), descs

    def get_serialized_descs(self, descs: nixlXferDList) -> bytes:
        """A list as bytes. They are no pickle, so those of a stranger do no harm."""
        return descs.serialized()

    def deserialize_descs(self, serialized_descs: bytes) -> nixlXferDList:
        """The list that get_serialized_descs() made, in any process that has tent."""
        return descriptors.deserialized(serialized_descs)

    # Memory

    def register_memory(self, reg_list: Any, mem_type: str | None = None, backends: Iterable[str] = ()) -> nixlRegDList:
        """Registers ranges, all or none, and returns the list that deregister_memory() takes."""
        self._check_open()
        descs = self.get_reg_descs(reg_list, mem_type)
        for backend in backends:
            self._created(backend)
        kind, made = descs.getType(), []
        try:
            for address, length, device, text in descs:
                if kind == FILE_SEG:
                    self._open_file(device, text)
                else:
                    made.append(((kind, address, length, device), self._register(kind, address, length, device)))
        except TentError as error:
            for _, region in made:
                region.close()
            raise translated(error) from error
        with self._lock:
            for key, region in made:
                self._regions.setdefault(key, []).append(region)
        return descs

    def _register(self, kind: int, address: int, length: int, device: int) -> Region:
        if kind == VRAM_SEG:
            raise nixlNotSupportedError(
                f"memory of GPUs (VRAM, {length} bytes on device {device}) is not supported by tent {__version__}: "
                'use memory of the host; with vLLM that is "kv_buffer_device": "cpu"'
            )
        if kind != DRAM_SEG:
            raise nixlNotSupportedError(f"tent does not move memory of the kind {NAMES[kind]}")
        with self._lock:
            self._registered += 1
            name = f"{self.name}/{self._registered}"
        return self.engine.register((address, length), name=name)

    def deregister_memory(self, dereg_list: nixlRegDList, backends: Iterable[str] = ()) -> None:
        """Ends the access of peers to these ranges; none of them is touched when it returns."""
        if self._closed:
            return
        usable(dereg_list, nixlRegDList)
        kind, leaving = dereg_list.getType(), []
        with self._lock:
            for address, length, device, _ in dereg_list:
                if kind == FILE_SEG:
                    continue  # the descriptor is the caller's
                held = self._regions.get((kind, address, length, device))
                if not held:
                    raise nixlNotFoundError(f"{length} bytes at {address:#x} are not registered")
                leaving.append(held.pop())
                if not held:
                    del self._regions[kind, address, length, device]
        for region in leaving:
            region.close()

    def query_memory(self, reg_list: Any, backend: str, mem_type: str | None = None) -> list[dict[str, str] | None]:
        """For each range a dict if it is there, else None: a file by its path, memory by its registration."""
        self._created(backend)
        descs = self.get_reg_descs(reg_list, mem_type)
        found: list[dict[str, str] | None] = []
        for address, length, device, text in descs:
            if descs.getType() == FILE_SEG:
                found.append(_file_facts(device, text))
            else:
                found.append({} if self._holds(address, length) else None)
        return found

    def _holds(self, address: int, length: int) -> bool:
        with self._lock:
            return any(
                a <= address and address + length <= a + n for kind, a, n, _ in self._regions if kind != FILE_SEG
            )

    def _open_file(self, fd: int, text: str) -> Segment:
        with self._lock:
            segment = self._files.get(fd)
        if segment is None:
            try:
                path = os.readlink(f"/proc/self/fd/{fd}")
            except OSError as error:
                raise nixlInvalidParamError(f"the device of a FILE descriptor is an open file: {fd}: {error}") from None
            segment = self.engine.open(f"file://{path}")
            with self._lock:
                self._files[fd] = segment
        return segment

    # Agents

    def get_agent_metadata(self) -> bytes:
        """What another agent needs to know. It stays right when memory is registered later: the peer asks."""
        self._check_open()
        return self._metadata(None)

    def get_partial_agent_metadata(
        self, descs: nixlRegDList, inc_conn_info: bool = False, backends: Iterable[str] = ()
    ) -> bytes:
        """The metadata with these ranges alone. Where a peer reaches the engine is always in it."""
        self._check_open()
        names = []
        with self._lock:
            for address, length, device, _ in descs:
                held = self._regions.get((descs.getType(), address, length, device))
                if not held:
                    raise nixlNotFoundError(f"{length} bytes at {address:#x} are not registered")
                names.append(held[-1].name)
        return self._metadata(names)

    def _metadata(self, names: list[str] | None) -> bytes:
        with _translating():
            blob = self.engine.export(names)
        fields = {"form": _FORM, "name": self.name, "life": self._life, "engine": base64.b64encode(blob).decode()}
        return json.dumps(fields).encode()

    def add_remote_agent(self, metadata: bytes) -> bytes:
        """Makes a remote agent known, connects to it, and returns its name. An agent of the same name that has another
        life takes the place of the one before."""
        self._check_open()
        fields = _parsed(metadata)
        name, life = fields["name"], fields["life"]
        with self._lock:
            known = self._peers.get(name)
            if known is not None and known.life == life and self._lives(known):
                return name.encode()
        with _translating():
            if life == self._life:
                segment = self.engine.open("")
            else:
                segment = self.engine.open(base64.b64decode(fields["engine"]))
                try:
                    segment.connect(CONNECT_LIMIT)
                except BaseException:
                    segment.close()
                    raise
        with self._lock:
            before = self._peers.get(name)
            self._peers[name] = _Peer(segment, life)
        if before is not None:
            before.segment.close()
        return name.encode()

    def make_connection(self, remote_agent: Name, backends: Iterable[str] = ()) -> None:
        """Connects to a remote agent ahead of the first transfer."""
        with _translating():
            self._peer(remote_agent).connect(CONNECT_LIMIT)

    def remove_remote_agent(self, agent: Name) -> None:
        """Forgets a remote agent; transfers to it that are under way end as failed."""
        name = _text(agent)
        with self._lock:
            peer = self._peers.pop(name, None)
        if peer is None:
            raise nixlNotFoundError(f"the agent {name!r} is not known")
        self._joiner.forget(name)
        peer.segment.close()

    def check_remote_metadata(self, agent: Name, descs: nixlXferDList | None = None) -> bool:
        """Whether a remote agent is known and lives, and has these ranges. False asks for a new handshake."""
        with self._lock:
            peer = self._peers.get(_text(agent))
        if peer is None or not self._lives(peer):
            return False
        if descs is None or descs.isEmpty():
            return True
        try:
            peer.segment.addresses(descs.rows).close()
        except TentError:
            return False
        return True

    @staticmethod
    def _lives(peer: _Peer) -> bool:
        try:
            return peer.segment.alive(timeout=1)
        except TentError:
            return False

    def _peer(self, agent: Name) -> Segment:
        name = _text(agent)
        with self._lock:
            peer = self._peers.get(name)
            if peer is not None:
                return peer.segment
        if name == self.name:
            with _translating():
                segment = self.engine.open("")
            with self._lock:
                return self._peers.setdefault(name, _Peer(segment, self._life)).segment
        raise nixlNotFoundError(f"the agent {name!r} is not known: add_remote_agent() takes its metadata")

    # Metadata over a socket

    def send_local_metadata(self, ip_addr: str = "", port: int = DEFAULT_COMM_PORT) -> None:
        """Gives the metadata to the agent that listens there."""
        ask(_host(ip_addr), port, "send", self.get_agent_metadata())

    def send_partial_agent_metadata(
        self,
        descs: nixlRegDList,
        inc_conn_info: bool = False,
        backends: Iterable[str] = (),
        ip_addr: str = "",
        port: int = DEFAULT_COMM_PORT,
        label: str = "",
    ) -> None:
        """Gives partial metadata to the agent that listens there."""
        ask(_host(ip_addr), port, "send", self.get_partial_agent_metadata(descs, inc_conn_info, backends))

    def fetch_remote_metadata(
        self, remote_agent: Name, ip_addr: str = "", port: int = DEFAULT_COMM_PORT, label: str = ""
    ) -> None:
        """Asks the agent that listens there for its metadata, and adds it."""
        answer = ask(_host(ip_addr), port, "fetch", b"")
        found = _parsed(answer)["name"]
        if found != _text(remote_agent):
            raise nixlNotFoundError(f"the agent at {ip_addr}:{port} is {found!r}, not {_text(remote_agent)!r}")
        self.add_remote_agent(answer)

    def invalidate_local_metadata(self, ip_addr: str = "", port: int = DEFAULT_COMM_PORT) -> None:
        """Makes the agent that listens there forget this one."""
        ask(_host(ip_addr), port, "forget", self.get_agent_metadata())

    def forget_agent(self, metadata: bytes) -> None:
        """Forgets the agent of this metadata, if it is that very one."""
        fields = _parsed(metadata)
        with self._lock:
            peer = self._peers.get(fields["name"])
            if peer is None or peer.life != fields["life"]:
                return
        self.remove_remote_agent(fields["name"])

    # Transfers

    def prep_xfer_dlist(
        self, agent_name: Name, xfer_list: Any, mem_type: str | None = None, backends: Iterable[str] = ()
    ) -> nixl_prepped_dlist_handle:
        """Looks ranges up, once, for transfers by index. "" and "NIXL_INIT_AGENT" name the local side, this agent's own
        name the remote side of a transfer within it."""
        self._check_open()
        name = _text(agent_name)
        if isinstance(xfer_list, np.ndarray) and xfer_list.ndim == 2 and xfer_list.shape[1] == 5:
            if mem_type is None:
                raise nixlInvalidParamError("the memory type of a strided list is missing")
            descs = nixlXferDList(mem_type, descriptors.strided(xfer_list))
        else:
            descs = self.get_xfer_descs(xfer_list, mem_type)
        local = name in ("", NIXL_INIT_AGENT)
        backend = self._chosen(backends, descs.getType() == FILE_SEG)
        return nixl_prepped_dlist_handle(
            self._looked_up(None if local else name, descs), None if local else name, backend
        )

    def _looked_up(self, name: str | None, descs: nixlXferDList) -> Any:
        """The engine's list of ranges: our own without a name."""
        if descs.isEmpty():
            raise nixlInvalidParamError("a descriptor list has at least one range")
        with _translating():
            if descs.getType() == FILE_SEG:
                return self._file_of(name, descs).addresses(descs.rows)
            if name is None:
                return self.engine.addresses(descs.rows)
            return self._peer(name).addresses(descs.rows)

    def _file_of(self, name: str | None, descs: nixlXferDList) -> Segment:
        if name != self.name:
            raise nixlNotSupportedError("ranges of a file go on the remote side, under this agent's own name")
        files = {int(fd) for fd in np.unique(descs.rows[:, 2])}
        if len(files) != 1:
            raise nixlNotSupportedError(f"a list of ranges is of one file, not of {len(files)}")
        with self._lock:
            segment = self._files.get(files.pop())
        if segment is None:
            raise nixlNotFoundError("the file was not registered")
        return segment

    def make_prepped_xfer(
        self,
        operation: str,
        local_xfer_side: nixl_prepped_dlist_handle,
        local_indices: Any,
        remote_xfer_side: nixl_prepped_dlist_handle,
        remote_indices: Any,
        notif_msg: bytes | str = b"",
        backends: Iterable[str] = (),
        skip_desc_merge: bool = False,
    ) -> nixl_xfer_handle:
        """A transfer between ranges of two prepared lists, chosen by their indexes."""
        self._check_open()
        usable(local_xfer_side, nixl_prepped_dlist_handle)
        usable(remote_xfer_side, nixl_prepped_dlist_handle)
        if local_xfer_side.agent_name is not None or remote_xfer_side.agent_name is None:
            raise nixlInvalidParamError("the local list comes first, then the list of a remote agent")
        src = _indexes(local_indices, local_xfer_side.n, "local")
        dst = _indexes(remote_indices, remote_xfer_side.n, "remote")
        if len(src) != len(dst):
            raise nixlMismatchError(f"{len(src)} local and {len(dst)} remote indexes")
        for backend in backends:
            self._created(backend)
        op, name = _operation(operation), remote_xfer_side.agent_name

        def post(message: bytes) -> list[Transfer]:
            return self._posted(op, name, local_xfer_side.taken(), src, remote_xfer_side.taken(), dst, message)

        return nixl_xfer_handle(post, name, remote_xfer_side.backend, len(src), notif_msg, self._counts)

    def initialize_xfer(
        self,
        operation: str,
        local_descs: nixlXferDList,
        remote_descs: nixlXferDList,
        remote_agent: Name,
        notif_msg: bytes | str = b"",
        backends: Iterable[str] = (),
    ) -> nixl_xfer_handle:
        """A transfer between two lists, range by range."""
        self._check_open()
        if len(local_descs) != len(remote_descs):
            raise nixlMismatchError(f"{len(local_descs)} local and {len(remote_descs)} remote descriptors")
        if not np.array_equal(local_descs.rows[:, 1], remote_descs.rows[:, 1]):
            raise nixlMismatchError("the lengths of the local and of the remote descriptors differ")
        op, name = _operation(operation), _text(remote_agent)
        here, there = self._looked_up(None, local_descs), self._looked_up(name, remote_descs)
        every = np.arange(len(local_descs))

        def post(message: bytes) -> list[Transfer]:
            return self._posted(op, name, here, every, there, every, message)

        backend = self._chosen(backends, remote_descs.getType() == FILE_SEG)
        return nixl_xfer_handle(post, name, backend, len(every), notif_msg, self._counts)

    def _posted(self, op: int, name: str, here: Any, src: Any, there: Any, dst: Any, message: bytes) -> list[Transfer]:
        """Begins a transfer; of a long message all parts but the last go by themselves."""
        move = self.engine.read_pages if op == READ else self.engine.write_pages
        parts = messages.parts(self.name, message) if message else []
        segment = self._peer(name)
        sent = [self.engine.notify(segment, *part) for part in parts[:-1]]
        last = parts[-1] if parts else None
        sent.append(move(here, src, there, dst, notify=last, **self.options.terms))
        return sent

    def transfer(self, handle: nixl_xfer_handle, notif_msg: bytes | str = b"") -> str:
        """Posts a transfer: "PROC", or "DONE" when it is over already. It never waits for the bytes."""
        usable(handle, nixl_xfer_handle)
        return handle.post(notif_msg)

    def check_xfer_state(self, handle: nixl_xfer_handle) -> str:
        """ "DONE", "PROC" or "ERR"; handle.error then says why."""
        usable(handle, nixl_xfer_handle)
        return handle.state()

    def get_xfer_telemetry(self, handle: nixl_xfer_handle) -> nixlXferTelemetry:
        """What a transfer took."""
        usable(handle, nixl_xfer_handle)
        return handle.telemetry()

    def query_xfer_backend(self, handle: nixl_xfer_handle) -> str:
        """The backend's name that tent stands for in this transfer."""
        usable(handle, nixl_xfer_handle)
        return handle.backend

    def estimate_xfer_cost(self, req_handle: nixl_xfer_handle) -> tuple[int, int, int]:
        """Not supported."""
        raise nixlNotSupportedError("estimate_xfer_cost is not supported; engine.traffic() has the measured rates")

    def release_xfer_handle(self, handle: nixl_xfer_handle) -> None:
        """Ends a transfer; one that is under way is cancelled, and none of its bytes moves when this returns."""
        usable(handle, nixl_xfer_handle)
        handle.release()

    def release_dlist_handle(self, handle: nixl_prepped_dlist_handle) -> None:
        """Forgets a prepared list."""
        usable(handle, nixl_prepped_dlist_handle)
        handle.release()

    def prep_mem_view(self, dlist: Any, *, backends: list[str] | None = None) -> int:
        """Not supported: GPU kernels cannot start transfers of tent."""
        raise nixlNotSupportedError("prep_mem_view is not supported: GPU kernels cannot start transfers of tent")

    def release_mem_view(self, mvh: int) -> None:
        """Not supported."""
        raise nixlNotSupportedError("release_mem_view is not supported")

    # Notifications

    def send_notif(self, remote_agent_name: Name, notif_msg: bytes | str, backend: str | None = None) -> None:
        """Sends a message, of up to 16 MiB, by itself. It raises when the peer is known to be gone; a failure that
        shows later is logged."""
        self._check_open()
        if backend is not None:
            self._created(backend)
        segment = self._peer(remote_agent_name)
        with self._lock:
            failed = [t for t in self._notices if t.done() and t.exception() is not None]
            self._notices = [t for t in self._notices if not t.done()]
        for transfer in failed:
            logger.error("a notification was not delivered: %s", transfer.exception())
        with _translating():
            sent = [
                self.engine.notify(segment, *part) for part in messages.parts(self.name, messages.encoded(notif_msg))
            ]
        with self._lock:
            self._notices += sent

    def get_new_notifs(self, backends: Iterable[str] = ()) -> dict[str, list[bytes]]:
        """The messages that have come since the last call, by the name of their agent."""
        self._check_open()
        with _translating():
            return self._joiner.take(self.engine.notifications.drain())

    def update_notifs(self, backends: Iterable[str] = ()) -> dict[str, list[bytes]]:
        """All messages that were not taken by check_remote_xfer_done() yet."""
        new = self.get_new_notifs(backends)
        with self._lock:
            for name, listed in new.items():
                self.notifs.setdefault(name, []).extend(listed)
            return self.notifs

    def check_remote_xfer_done(
        self,
        remote_agent_name: Name,
        lookup_tag: bytes | str,
        backends: Iterable[str] = (),
        tag_is_prefix: bool = True,
    ) -> bool:
        """Whether a message has come that begins with the tag, or has it anywhere; it is taken then."""
        tag, name = messages.encoded(lookup_tag), _text(remote_agent_name)
        self.update_notifs(backends)
        with self._lock:
            listed = self.notifs.get(name, [])
            for i, message in enumerate(listed):
                if message.startswith(tag) if tag_is_prefix else tag in message:
                    del listed[i]
                    return True
        return False

    # The end

    def close(self) -> None:
        """Cancels what is under way and closes the engine. Upstream's agents do so when they are dropped, and these do
        too. Again: no effect."""
        if self._closed:
            return
        self._closed = True
        if self._listener is not None:
            self._listener.close()
        self.engine.close(timeout=0)

    def _check_open(self) -> None:
        if self._closed:
            raise nixlNotFoundError(f"the agent {self.name!r} is closed")

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"at {self.engine.address}"
        return f"<nixl_agent {self.name!r} over tent, {state}>"

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not _native.forked() and not sys.is_finalizing():
            with contextlib.suppress(Exception):
                self.close()


@contextlib.contextmanager
def _translating() -> Any:
    """Raises NIXL's error for one of tent's."""
    try:
        yield
    except TentError as error:
        raise translated(error) from error


def _text(name: Name) -> str:
    if isinstance(name, bytes):
        return name.decode("utf-8", "surrogateescape")
    if not isinstance(name, str):
        raise TypeError(f"an agent's name is str or bytes, not {type(name).__name__}")
    return name


def _operation(text: str) -> int:
    try:
        return _OPERATIONS[text]
    except (KeyError, TypeError):
        raise nixlInvalidParamError(f'the operation is {text!r}: it must be "READ" or "WRITE"') from None


def _indexes(given: Any, n: int, side: str) -> Any:
    """Indexes as an array of the handle's own."""
    table = np.array(given, dtype=np.int64, copy=True)
    if table.ndim != 1 or not len(table):
        raise nixlInvalidParamError(f"the {side} indexes are a list of at least one integer")
    if int(table.min()) < 0 or int(table.max()) >= n:
        wrong = int(table.min()) if int(table.min()) < 0 else int(table.max())
        raise nixlInvalidParamError(f"the {side} index {wrong} is not in the list, which has 0 to {n - 1}")
    return table


def _parsed(metadata: bytes | str) -> dict[str, str]:
    try:
        fields = json.loads(metadata)
        if fields["form"] != _FORM or not all(isinstance(fields[k], str) for k in ("name", "life", "engine")):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise nixlInvalidParamError(
            "the metadata is not that of an agent of tent: the other side runs the real NIXL, or another version"
        ) from None
    return dict(fields)


def _host(ip_addr: str) -> str:
    if not ip_addr:
        raise nixlNotSupportedError(
            "metadata servers are not supported: give ip_addr, or carry get_agent_metadata() over"
        )
    return ip_addr


def _file_facts(fd: int, text: str) -> dict[str, str] | None:
    """Size and times of a file, by its path or its descriptor; None if it is not there."""
    path = text.partition(":")[2] if ":" in text else text
    try:
        facts = os.stat(path or fd)
    except (OSError, ValueError):
        return None
    return {"size": str(facts.st_size), "mode": oct(facts.st_mode), "mtime": str(int(facts.st_mtime))}


__all__ = [
    "DEFAULT_COMM_PORT",
    "NIXL_INIT_AGENT",
    "nixl_agent",
    "nixl_agent_config",
    "nixl_thread_sync_t",
]
