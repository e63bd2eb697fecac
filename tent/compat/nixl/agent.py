"""NIXL's agent over tent's Engine: upstream's calls over the parts of this package.

Memory has the local ranges, Remotes the other agents, Moves the transfers, Mailbox the notifications.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _native
from ...engine import Engine
from ...errors import TentError
from ..options import Options
from . import backends as plugins
from . import descriptors, messages, moves
from .config import DEFAULT_COMM_PORT, NIXL_INIT_AGENT, nixl_agent_config
from .descriptors import FILE_SEG, nixlRegDList, nixlRemoteDList, nixlXferDList
from .errors import nixlInvalidParamError, nixlNotFoundError, nixlNotSupportedError, translating
from .handles import nixl_prepped_dlist_handle, nixl_xfer_handle, nixlXferTelemetry, usable
from .listener import Listener, ask
from .mailbox import Mailbox
from .memory import Memory
from .remotes import Name, Remotes, parsed, text

if TYPE_CHECKING:
    from ...transfer import Transfer

logger = logging.getLogger("tent.compat.nixl")


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
        conf = nixl_agent_config() if nixl_conf is None else nixl_conf
        self.name = messages.checked_name(agent_name)
        self.options = Options.of(options)
        self.plugin_list = list(plugins.PLUGINS)
        self.backends = plugins.Backends()
        self._counts = conf.capture_telemetry
        with translating():
            self.engine = Engine(self.options.config)
        self._closed = False
        self._listener: Listener | None = None
        try:
            self._memory = Memory(self.engine, self.name, self.backends)
            self._remotes = Remotes(self.engine, self.name)
            self._mailbox = Mailbox(self.engine, self.name)
            self._moves = moves.Moves(self.engine, self.name, self._memory, self._remotes, self._mailbox, self.options)
            for backend in self.plugin_list if instantiate_all and nixl_conf is None else conf.backends:
                if backend in self.plugin_list:
                    self.create_backend(backend)
                else:
                    logger.warning("tent does not stand for the backend %s: it is left out", backend)
            if conf.enable_listen:
                self._listener = Listener(self, conf.port)
        except BaseException:
            self.close()
            raise

    @property
    def notifs(self) -> dict[str, list[bytes]]:
        """The messages that update_notifs() has kept, by the name of their agent. The program may take some out."""
        return self._mailbox.kept

    @notifs.setter
    def notifs(self, kept: dict[str, list[bytes]]) -> None:
        self._mailbox.kept = kept

    # Backends

    def get_plugin_list(self) -> list[str]:
        """The backends that tent stands for."""
        return list(self.plugin_list)

    def get_plugin_mem_types(self, backend: str) -> list[str]:
        """The kinds of memory that a backend has; none of a name that tent does not stand for."""
        return plugins.memory_of(backend)

    def get_plugin_params(self, backend: str) -> dict[str, str]:
        """The parameters of a backend: none, tent has settings."""
        return {}

    def get_backend_mem_types(self, backend: str) -> list[str]:
        """The kinds of memory that a backend has, once it was created; none before."""
        return self.backends.memory_of(backend)

    def get_backend_params(self, backend: str) -> dict[str, str]:
        """The parameters that a backend was created with; none of one that was not. tent itself has settings."""
        return self.backends.params_of(backend)

    def create_backend(self, backend: str, initParams: Mapping[str, str] | None = None) -> None:
        """Makes a backend's name usable. Its parameters are kept, and have no meaning here."""
        self.backends.create(backend, initParams)

    # Descriptor lists

    def get_xfer_descs(self, descs: Any, mem_type: str | None = None) -> nixlXferDList:
        """A list of ranges: of tuples or an N x 3 array (address, length, device), of a tensor or of tensors."""
        if isinstance(descs, nixlXferDList):
            return descs
        if isinstance(descs, nixlRegDList):
            raise nixlInvalidParamError("a registration list is given where a transfer list is needed: call trim()")
        kind, rows = descriptors.described(descs, mem_type, 3)
        return nixlXferDList(kind, rows)

    def get_remote_descs(self, descs: Any, mem_type: str | None = None) -> nixlRemoteDList:
        """A list of ranges of a remote agent: of tuples (address, length, device, agent), or an N x 3 array."""
        if isinstance(descs, nixlRemoteDList):
            return descs
        kind, rows = descriptors.described(descs, mem_type, 4)
        return nixlRemoteDList(kind, rows)

    def get_reg_descs(self, descs: Any, mem_type: str | None = None) -> nixlRegDList:
        """A list to register: of tuples (address, length, device, text), an N x 3 array, a tensor or tensors."""
        if isinstance(descs, nixlRegDList):
            return descs
        if isinstance(descs, nixlXferDList):
            raise nixlInvalidParamError("a transfer list is given where a registration list is needed")
        kind, rows = descriptors.described(descs, mem_type, 4)
        return nixlRegDList(kind, rows)

    def get_serialized_descs(self, descs: nixlXferDList | nixlRegDList) -> bytes:
        """A list as bytes. They are no pickle, so those of a stranger do no harm."""
        return descs.serialized()

    def deserialize_descs(self, serialized_descs: bytes) -> nixlXferDList | nixlRegDList:
        """The list that get_serialized_descs() made, in any process that has tent."""
        return descriptors.deserialized(serialized_descs)

    # Memory

    def register_memory(self, reg_list: Any, mem_type: str | None = None, backends: Iterable[str] = ()) -> nixlRegDList:
        """Registers ranges, all or none, and returns the list that deregister_memory() takes."""
        self._check_open()
        descs = self.get_reg_descs(reg_list, mem_type)
        self.backends.check(*backends)
        self._memory.register(descs)
        return descs

    def deregister_memory(self, dereg_list: nixlRegDList, backends: Iterable[str] = ()) -> None:
        """Ends the access of peers to these ranges; none of them is touched when it returns. None is ended where one is
        not registered. After another error, as of a peer that is still inside, the ranges that are late stay registered
        and are to be deregistered again, without the other ones: query_memory() has them. A list of files that
        register_memory() returned means those files, any other one the files that its descriptors name by now."""
        if not self._closed:
            usable(dereg_list, nixlRegDList)
            self._memory.deregister(dereg_list)

    def query_memory(self, reg_list: Any, backend: str, mem_type: str | None = None) -> list[dict[str, str] | None]:
        """For each range a dict if it is there, else None: a file by its path, memory by its registration."""
        self.backends.check(backend)
        return self._memory.facts(self.get_reg_descs(reg_list, mem_type))

    # Agents

    def get_agent_metadata(self) -> bytes:
        """The facts that another agent needs. They stay right when memory is registered later: the peer asks."""
        self._check_open()
        return self._remotes.metadata(None)

    def get_partial_agent_metadata(
        self, descs: nixlRegDList, inc_conn_info: bool = False, backends: Iterable[str] = ()
    ) -> bytes:
        """The metadata with these ranges alone. The address of the engine is always in it."""
        self._check_open()
        return self._remotes.metadata(self._memory.names(descs))

    def add_remote_agent(self, metadata: bytes) -> bytes:
        """Makes a remote agent known, connects to it, and returns its name. An agent of the same name that has another
        life takes the place of the one before, unless it is silent and that one lives."""
        self._check_open()
        return self._remotes.add(metadata).encode()

    def make_connection(self, remote_agent: Name, backends: Iterable[str] = ()) -> None:
        """Connects to a remote agent ahead of the first transfer."""
        self._remotes.connect(text(remote_agent))

    def remove_remote_agent(self, agent: Name) -> None:
        """Forgets a remote agent, if it is known; transfers to it that are under way end as failed."""
        name = text(agent)
        self._remotes.remove(name)
        self._mailbox.forget(name)

    def check_remote_metadata(self, agent: Name, descs: nixlXferDList | None = None) -> bool:
        """Whether a remote agent is known and lives, and has these ranges now. False asks for a new handshake."""
        segment = self._remotes.live(text(agent))
        if segment is None or descs is None or descs.isEmpty():
            return segment is not None
        try:
            segment.refresh()  # it may have deregistered some that it had
            moves.Ranges(segment.addresses, descs.rows).close()
        except TentError:
            return False
        return True

    # Metadata over a socket

    def send_local_metadata(self, ip_addr: str = "", port: int = DEFAULT_COMM_PORT) -> None:
        """Gives the metadata to the agent that listens there."""
        ask(ip_addr, port, "send", self.get_agent_metadata())

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
        ask(ip_addr, port, "send", self.get_partial_agent_metadata(descs, inc_conn_info, backends))

    def fetch_remote_metadata(
        self, remote_agent: Name, ip_addr: str = "", port: int = DEFAULT_COMM_PORT, label: str = ""
    ) -> None:
        """Asks the agent that listens there for its metadata, and adds it. check_remote_metadata() says whether it is
        there: nobody may listen yet."""
        answer = ask(ip_addr, port, "fetch", b"")
        if answer is None:
            return
        found = parsed(answer)["name"]
        if found != text(remote_agent):
            raise nixlNotFoundError(f"the agent at {ip_addr}:{port} is {found!r}, not {text(remote_agent)!r}")
        self.add_remote_agent(answer)

    def invalidate_local_metadata(self, ip_addr: str = "", port: int = DEFAULT_COMM_PORT) -> None:
        """Makes the agent that listens there forget this one. With security on this is refused by nixlBackendError: a
        socket does not prove that this agent asks. Let its program call remove_remote_agent()."""
        ask(ip_addr, port, "forget", self.get_agent_metadata())

    def takes_away(self, metadata: bytes, forgets: bool) -> str | None:
        """The name of an agent that lives, and that this metadata would forget or replace; else None."""
        return self._remotes.displaced(metadata, forgets)

    def forget_agent(self, metadata: bytes) -> None:
        """Forgets the agent of this metadata, if it is that very one."""
        name = self._remotes.has(metadata)
        if name is not None:
            self.remove_remote_agent(name)

    # Transfers

    def prep_xfer_dlist(
        self, agent_name: Name, xfer_list: Any, mem_type: str | None = None, backends: Iterable[str] = ()
    ) -> nixl_prepped_dlist_handle:
        """Looks ranges up, once, for transfers by index. "" and "NIXL_INIT_AGENT" name the local side, this agent's own
        name the remote side of a transfer within it."""
        self._check_open()
        if descriptors.is_strided(xfer_list):
            if mem_type is None:
                raise nixlInvalidParamError("the memory type of a strided list is missing")
            descs = nixlXferDList(mem_type, descriptors.strided(xfer_list))
        else:
            descs = self.get_xfer_descs(xfer_list, mem_type)
        named = text(agent_name)
        name = None if named in ("", NIXL_INIT_AGENT) else named
        backend = self.backends.chosen(backends, descs.getType() == FILE_SEG)
        return nixl_prepped_dlist_handle(self._moves.look_up(name, descs), name, backend)

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
        src = moves.indexes(local_indices, local_xfer_side.n, "local")
        dst = moves.indexes(remote_indices, remote_xfer_side.n, "remote")
        if len(src) != len(dst):
            raise nixlInvalidParamError(f"{len(src)} local and {len(dst)} remote indexes")
        self.backends.check(*backends)
        op, name = moves.operation(operation), remote_xfer_side.agent_name
        here, there = local_xfer_side.taken(), remote_xfer_side.taken()  # as upstream, it outlives its lists

        def post(message: bytes) -> list[Transfer]:
            return self._moves.post(op, name, here, src, there, dst, message)

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
            raise nixlInvalidParamError(f"{len(local_descs)} local and {len(remote_descs)} remote descriptors")
        if not np.array_equal(local_descs.rows[:, 1], remote_descs.rows[:, 1]):
            raise nixlInvalidParamError("the lengths of the local and of the remote descriptors differ")
        op, name = moves.operation(operation), text(remote_agent)
        here, there = self._moves.look_up(None, local_descs), self._moves.look_up(name, remote_descs)
        every = np.arange(len(local_descs))

        def post(message: bytes) -> list[Transfer]:
            return self._moves.post(op, name, here, every, there, every, message)

        backend = self.backends.chosen(backends, remote_descs.getType() == FILE_SEG)
        return nixl_xfer_handle(post, name, backend, len(every), notif_msg, self._counts)

    def transfer(self, handle: nixl_xfer_handle, notif_msg: bytes | str = b"") -> str:
        """Posts a transfer: "PROC", or "DONE" when it is over already. It never waits for the bytes."""
        usable(handle, nixl_xfer_handle)
        return handle.post(notif_msg)

    def check_xfer_state(self, handle: nixl_xfer_handle) -> str:
        """ "DONE", "PROC" or "ERR"; handle.error then says why."""
        usable(handle, nixl_xfer_handle)
        return handle.state()

    def get_xfer_telemetry(self, handle: nixl_xfer_handle) -> nixlXferTelemetry:
        """Times and size of a transfer that has ended."""
        usable(handle, nixl_xfer_handle)
        return handle.telemetry()

    def query_xfer_backend(self, handle: nixl_xfer_handle) -> str:
        """The backend's name that tent stands for in this transfer."""
        usable(handle, nixl_xfer_handle)
        return handle.backend

    def estimate_xfer_cost(self, req_handle: nixl_xfer_handle) -> tuple[int, int, str]:
        """Microseconds, their error and the way of the estimate. As over UCX nothing is estimated; engine.traffic() has
        the measured rates."""
        usable(req_handle, nixl_xfer_handle)
        return 0, 0, "UNKNOWN"

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
            self.backends.check(backend)
        self._mailbox.send(self._remotes.segment(text(remote_agent_name)), notif_msg)

    def get_new_notifs(self, backends: Iterable[str] = ()) -> dict[str, list[bytes]]:
        """The messages that have come since the last call, by the name of their agent."""
        self._check_open()
        return self._mailbox.take()

    def update_notifs(self, backends: Iterable[str] = ()) -> dict[str, list[bytes]]:
        """All messages that were not taken by check_remote_xfer_done() yet."""
        self._check_open()
        return self._mailbox.keep()

    def check_remote_xfer_done(
        self,
        remote_agent_name: Name,
        lookup_tag: bytes | str,
        backends: Iterable[str] = (),
        tag_is_prefix: bool = True,
    ) -> bool:
        """Whether a message has come that begins with the tag, or has it anywhere; it is taken then."""
        self._check_open()
        return self._mailbox.find(text(remote_agent_name), messages.encoded(lookup_tag), tag_is_prefix)

    # The end

    def close(self) -> None:
        """Cancels transfers that are under way and closes the engine. As upstream, an agent that is dropped closes
        too. Again: no effect."""
        if self._closed:
            return
        _native.check_process()  # the listener's socket is the parent's too
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

    @_native.finalizer
    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            with contextlib.suppress(Exception):
                self.close()
