"""`tent topo`: the memories, accelerators and network interfaces of this machine, and the ways between them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _text
from . import guest
from .screen import Section, plain, show_table

LEGEND = (
    "NV12: twelve NVLinks; PIX: one PCIe bridge; PXB: several; PHB: one host bridge; NODE: one NUMA node; "
    "SYS: between sockets; ?: not known"
)


def run(options: argparse.Namespace) -> int:
    """Shows the devices, memories and network interfaces of this machine, and the ways between them: tables on a
    terminal, JSON elsewhere. An unknown speed is null there."""
    with guest.engine(options.config) as engine:
        topology = engine.topology()
    if options.json or not (options.table or sys.stdout.isatty()):
        print(json.dumps(topology, indent=2))
        return 0
    for part in sections(topology):
        if part.rows:
            show_table(part.title, part.header, part.rows)
            print()
        else:
            print("\n".join(plain(part)))
    return 0


def sections(topology: Mapping[str, Any]) -> list[Section]:
    """The tables of a topology, as Engine.topology returns it."""
    memories, nics = topology["mems"], topology["nics"]
    host = [memory for memory in memories if not memory.get("device")]
    devices = [memory for memory in memories if memory.get("device")]
    listed = [
        Section(
            "memory of the host", ("node", "bytes", "processors", "near interfaces"), [_host(m, nics) for m in host]
        ),
        Section("interfaces", ("name", "node", "speed", "MTU", "up", "bus", "addresses"), [_nic(nic) for nic in nics]),
    ]
    if not devices:
        return [*listed, Section("no accelerator: `tent doctor` says why", (), [])]
    names = ("device", "product", "node", "bus", "NVLink domain")
    listed.append(Section("accelerators", names, [_device(memory) for memory in devices]))
    columns = [memory["name"] for memory in devices]
    buses = [nic["name"] for nic in nics if any(nic["name"] in memory["device"]["nics"] for memory in devices)]
    rows = [
        [
            memory["name"],
            *("X" if name == memory["name"] else memory["device"]["devices"].get(name) or "?" for name in columns),
            *(memory["device"]["nics"].get(name) or "?" for name in buses),
        ]
        for memory in devices
    ]
    listed.append(Section("ways", ("", *columns, *buses), rows))
    unknown = {memory["device"]["unknown"] for memory in devices} - {""}
    apart = {memory["device"]["apart"] for memory in devices} - {""}
    notes = [f"ways between devices by the bus: {reason}" for reason in sorted(unknown)]
    notes += [f"no NVLink to other hosts: {reason}" for reason in sorted(apart)]
    return [*listed, Section("\n".join([LEGEND, *notes]), (), [])]


def _names(indexes: Sequence[int], nics: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(nics[i]["name"] for i in indexes) or "-"


def _host(memory: Mapping[str, Any], nics: Sequence[Mapping[str, Any]]) -> list[str]:
    near = _names(memory["device_list"]["rank0"], nics)
    return [memory["name"], _text.size(memory["bytes"]), str(len(memory["cpus"])), near]


def _nic(nic: Mapping[str, Any]) -> list[str]:
    speed = "?" if nic["speed_mbps"] is None else f"{nic['speed_mbps'] / 1000:g} Gbit/s"
    node = "?" if nic["numa_node"] < 0 else str(nic["numa_node"])
    up = "yes" if nic["up"] else "no"
    return [nic["name"], node, speed, str(nic["mtu"]), up, nic["pci_bus_id"] or "-", ", ".join(nic["addresses"]) or "-"]


def _device(memory: Mapping[str, Any]) -> list[str]:
    device, node = memory["device"], memory["numa_node"]
    fabric = device["fabric"]
    domain = f"{fabric['cluster']}, clique {fabric['clique']}" if fabric else "-"
    return [memory["name"], device["name"], "?" if node < 0 else str(node), device["pci_bus_id"] or "-", domain]
