"""A port that stays its owner's while nobody listens there."""

from __future__ import annotations

import contextlib
import socket


def keep_port() -> socket.socket:
    """Returns a socket that keeps its port until it is closed: the kernel gives it to no socket that asks for any port.

    The socket does not listen. Sockets with SO_REUSEADDR, as those of engines, get the port by its number, on any
    address.
    """
    with contextlib.ExitStack() as undo:
        if socket.has_dualstack_ipv6():
            kept = undo.enter_context(socket.socket(socket.AF_INET6))
            kept.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        else:
            kept = undo.enter_context(socket.socket())
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("", 0))
        undo.pop_all()
        return kept


def port_of(kept: socket.socket) -> int:
    """Returns the port of a socket."""
    return int(kept.getsockname()[1])
