"""Engines of the commands that look and measure. They run beside the program that has the same settings, so they leave
it its ports, its place of metrics and its name."""

from __future__ import annotations

import tent

from .._settings import Given


def engine(config: str | None, *, listed_as: str = "", quiet: bool = False) -> tent.Engine:
    """An engine with a program's settings, at free ports. The metadata service lists it as `listed_as`, "" not at all;
    `quiet` logs errors alone.

    A firewall that opens the ports of the settings alone lets no peer back to it.
    """
    given: Given = {
        "local_segment_name": listed_as,
        "rpc_server_port": 0,
        "transports": {"tcp": {"port": 0}},
        "metrics": {"listen": "", "http_port": 0, "http_host": "127.0.0.1"},
    }
    if quiet:
        given["log_level"] = "error"
    return tent.Engine(config, name="", **given)
