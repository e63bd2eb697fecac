"""tent as a transfer backend of SGLang: prefill and decode servers move KV caches over it, without NIXL.

SGLang finds it by the entry point of this package; the line is

    sglang serve MODEL --disaggregation-mode prefill --disaggregation-transfer-backend tent

for a prefill server, and `decode` for a decode server. Options stand in TENT_COMPAT, see tent.compat.options. The
manager is SGLang's own over NIXL with tent's agent inside: rooms, chunks, tensor parallelism, aborts and the bootstrap
server are SGLang's.
"""

from __future__ import annotations

from typing import Any

import sglang  # type: ignore[import-not-found]
from sglang.srt.disaggregation.nixl import conn  # type: ignore[import-not-found]
from sglang.srt.runtime_context import get_device  # type: ignore[import-not-found]

from ..compat import nixl
from . import sglang_stand as stand
from .versions import warn_unless_tested

# A transfer that ended with one of them is a failure of its room, and no fault of SGLang's.
conn._NIXL_TRANSPORT_ERRORS += (nixl.nixlRemoteDisconnectError, nixl.nixlBackendError, nixl.nixlCancelledError)


class TentKVManager(conn.NixlKVManager):  # type: ignore[misc]
    """The transfers of a scheduler's process. Prefill servers WRITE pages to decode servers."""

    def __init__(self, args: Any, disaggregation_mode: Any, server_args: Any, is_mla_backend: bool = False) -> None:
        """For SGLang only."""
        stand.check(server_args)
        if args.engine_rank == 0:  # there is one of each role's ranks
            warn_unless_tested("SGLang", sglang.__version__, stand.INSTEAD)
        with stand.standing(get_device().device):
            super().__init__(args, disaggregation_mode, server_args, is_mla_backend)
