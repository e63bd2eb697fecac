"""Traffic of each rail, for people: Engine.traffic()."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from . import _html

_SERIES = re.compile(r"(tent_rail_(?:bytes_total|rate_bytes|in_flight_bytes))\{(.*)\}")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class RailTraffic(NamedTuple):
    """One rail: a path of a transport to a peer, from `local`, an interface or a device here, to its `remote`.

    `total` counts the bytes delivered since it first came up, `rate` is its measured rate in bytes a second, and
    `in_flight` the bytes that it has taken and not acknowledged.
    """

    transport: str
    peer: str
    local: str
    remote: str
    total: int
    rate: float
    in_flight: int


class Traffic(tuple[RailTraffic, ...]):
    """The rails of an engine at one moment; as text the table that Mooncake's engine prints.

    Example:
        print(tent.Traffic.of(engine.metrics()))  # as engine.traffic() does
    """

    __slots__ = ()

    @classmethod
    def of(cls, metrics: Mapping[str, float]) -> Traffic:
        """From the numbers of Engine.metrics()."""
        rails: dict[tuple[str, str, str, str], dict[str, float]] = {}
        for name, value in metrics.items():
            if (found := _SERIES.fullmatch(name)) is None:
                continue
            label = dict(LABEL.findall(found[2]))
            if "local" in label:  # else a sum over rails
                key = (label["transport"], label["peer"], label["local"], label["remote"])
                rails.setdefault(key, {})[found[1]] = value
        return cls(
            RailTraffic(
                *key,
                int(of["tent_rail_bytes_total"]),
                of["tent_rail_rate_bytes"],
                int(of["tent_rail_in_flight_bytes"]),
            )
            for key, of in sorted(rails.items())
        )

    def _repr_html_(self) -> str:
        head = ("transport", "peer", "rail", "delivered", "rate", "in flight")
        return _html.table(
            head,
            (
                (
                    rail.transport,
                    rail.peer,
                    f"{rail.local} \u2192 {rail.remote}",
                    _amount(rail.total),
                    f"{_amount(rail.rate)}/s",
                    _amount(rail.in_flight),
                )
                for rail in self
            ),
        )

    def __str__(self) -> str:
        lines = ["=== Device Traffic Statistics ==="]
        for i, rail in enumerate(self):
            lines.append(
                f"Dev {i}: Total={_amount(rail.total)}, EWMA BW={rail.rate * 8 / 1e9:.2f} Gbps, "
                f"Inflight={rail.in_flight} bytes ({rail.transport} {rail.local} -> {rail.remote}, {rail.peer})"
            )
        return "\n".join(lines)


def _amount(n: float) -> str:
    if n < 1000:
        return f"{n:.0f} bytes"
    for unit in ("KB", "MB", "GB"):
        n /= 1000
        if n < 1000:
            return f"{n:.1f} {unit}"
    return f"{n / 1000:.1f} TB"
