"""tent as a transfer channel of LMCache's server: caches are shared over it, without NIXL.

LMCache has a table of channels by name, and imports no foreign module before it makes its channel. So its command runs
inside this module, which registers the channel "tent" first:

    python -m tent.integrations.lmcache server --p2p-transfer-engine tent --p2p-advertise-url HOST:PORT ...

The channel is LMCache's own over NIXL with tent's agent inside. Handshakes, pages and statuses are LMCache's. Options
stand in TENT_COMPAT, see tent.compat.options.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from types import ModuleType
from typing import Any

from .versions import unfit, warn_unless_tested

CHANNEL = "tent"
INSTEAD = 'take the channel "nixl" under `tent run --as nixl` instead'

_PLACE = "lmcache.v1.distributed.transfer_channel"
_LOADER, _MAKER = "_load_nixl", "create_nixl_transfer_channel_context"


def register() -> None:
    """Makes the channel "tent" known to LMCache in this process. Again: no effect."""
    try:
        installed = metadata.version("lmcache")
    except metadata.PackageNotFoundError:
        raise RuntimeError(f"LMCache is not installed in {sys.executable}") from None
    try:
        enlist = importlib.import_module(f"{_PLACE}.factory").register_transfer_channel_factory
        channel = importlib.import_module(f"{_PLACE}.impl.nixl_impl")
        for name in (_LOADER, _MAKER):
            getattr(channel, name)
    except (ImportError, AttributeError) as error:
        raise unfit("LMCache", installed, error, INSTEAD) from error
    warn_unless_tested("LMCache", installed, INSTEAD)
    with contextlib.suppress(ValueError):  # it is registered already
        enlist(CHANNEL, partial(_context, channel))


def _context(channel: ModuleType, **given: Any) -> Any:
    """LMCache's channel over NIXL, made with tent's agent. LMCache makes one channel a process, so nobody else loads
    NIXL meanwhile. The names of NIXL's backends have no meaning here."""
    from ..compat.nixl import nixl_agent, nixl_agent_config

    genuine = getattr(channel, _LOADER)
    setattr(channel, _LOADER, lambda: (nixl_agent, nixl_agent_config))
    try:
        return getattr(channel, _MAKER)(**{**given, "backends": None})
    finally:
        setattr(channel, _LOADER, genuine)


def main(words: Sequence[str]) -> None:
    """Runs LMCache's command with the channel registered."""
    register()
    importlib.import_module("lmcache.cli.main").main(words)


if __name__ == "__main__":
    main(sys.argv[1:])
