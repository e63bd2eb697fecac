"""A NIXL agent over tent in a process of its own: `nixl_side.py NAME BYTES`. It speaks JSON lines: its metadata and where
its memory is, then the notifications that it is asked for."""

from __future__ import annotations

import ctypes
import json
import mmap
import sys

from tent.compat.nixl import nixl_agent, nixl_agent_config


def main() -> None:
    name, size = sys.argv[1], int(sys.argv[2])
    memory = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    memory[:] = bytes(i * 7 % 251 for i in range(size))
    agent = nixl_agent(name, nixl_agent_config())
    agent.register_memory([(address, size, 0, "")], "DRAM")
    print(json.dumps({"metadata": agent.get_agent_metadata().decode(), "address": address}), flush=True)
    for line in sys.stdin:
        if line.strip() == "bytes":
            print(json.dumps(memory[:].hex()), flush=True)
        else:
            found = {who: [m.decode() for m in listed] for who, listed in agent.get_new_notifs().items()}
            print(json.dumps(found), flush=True)


main()
