"""`tent plan FROM TO`: the route that a transfer takes, those behind it, and why not the others."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import tent

from .. import _text
from . import guest
from .screen import printable

PRIORITIES = {"high": tent.PRIO_HIGH, "medium": tent.PRIO_MEDIUM, "low": tent.PRIO_LOW}
OPERATIONS = {"write": tent.OpCode.WRITE, "read": tent.OpCode.READ}


def run(options: argparse.Namespace) -> int:
    """Says which route a transfer would take from memory here to a peer or a file, and why not the others."""
    with guest.engine(options.config) as engine, engine.open(options.to) as target:
        size = options.size
        with engine.allocate(size, location=options.from_) as local:
            remote, where = operand(target, options.to.partition("/")[2], size)
            plan = engine.explain(
                local[: len(remote)],
                remote,
                op=int(OPERATIONS[options.op]),
                priority=int(PRIORITIES[options.priority]),
                policy=options.policy,
            )
    if options.json:
        print(json.dumps(plan, indent=2))
    else:
        print(f"{options.op.upper()} of {_text.size(len(remote))}, {options.from_} here, {where}\n")
        print("\n".join(printable(line) for line in plan_lines(plan)))
    return 0 if plan["taken"] else 1


def operand(target: tent.Segment, region: str, size: int) -> tuple[tent.segment.RemoteSlice, str]:
    """Bytes of the target to plan for: the file or region that was named, else the first region that is there."""
    if target.path is not None:
        if not len(target):
            raise tent.InvalidArgumentError(
                f"{target.path} is empty", hint="a transfer to it needs bytes that are there"
            )
        return target[: min(size, len(target))], target.path
    if region:
        return target[: min(size, len(target))], f"{target.address}/{region} there"
    for name, offered in sorted(target.regions.items()):
        return offered[: min(size, offered.size)], f"{target.address}/{name} there"
    raise tent.InvalidArgumentError(f"{target.address} offers no region", hint="run `tent serve` there")


def plan_lines(plan: dict[str, Any]) -> Iterator[str]:
    for number, route in enumerate(plan["routes"], 1):
        taken = "  <- taken" if route["transport"] == plan["taken"] else ""
        hops = f", {route['hops']} hops" if route["hops"] > 1 else ""
        yield f"{number}. {route['transport']}{hops}{taken}"
        for key in ("why", "state", "detail", "sharing"):  # the state has the rails
            for line in route.get(key, "").splitlines():
                yield f"     {line}"
    if not plan["routes"]:
        yield "no route"
    for rejected in plan["rejected"]:
        yield f"-  {rejected['transport']}: {rejected['reason']}"
    if plan["policy"]:
        yield f"policy {plan['policy']} decides"
