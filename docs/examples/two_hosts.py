"""Two hosts: one offers memory, the other writes into it. Both name the addresses that carry their bytes.

python two_hosts.py serve 10.0.0.5                      # on the first host
python two_hosts.py write 10.0.0.6 10.0.0.5:41233       # on the second, with the address that the first one printed
"""

from __future__ import annotations

import sys

import tent

SIZE = 1 << 20


def serve(own: str) -> None:
    """Offers a region at an address of this host, and waits for the notification behind its last byte."""
    settings = {"rpc_server_hostname": own, "transports": {"tcp": {"addresses": [own]}}}
    kv = bytearray(SIZE)
    with tent.Engine(settings, name="receiver") as engine, engine.register(kv, name="kv"):
        print(engine.address, flush=True)
        note = engine.notifications.get(timeout=600)
        assert kv == b"a" * SIZE
        print(f"{note.message}: {SIZE} bytes from {note.peer}")


def write(own: str, address: str) -> None:
    """Fills the region at `address`. `own` is the address of this host by which its bytes leave."""
    with tent.Engine({"transports": {"tcp": {"addresses": [own]}}}) as engine, engine.open(address) as peer:
        local = engine.allocate(SIZE)
        local.view[:] = b"a" * SIZE
        transfer = engine.write(local, peer["kv"], notify=("done", "step 7"), timeout=30)
        transfer.result()
        print(transfer)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        write(sys.argv[2], sys.argv[3])
