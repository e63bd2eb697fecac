"""Two hosts: one offers memory, the other writes into it. Both hold one key file; only the first has an address.

python two_hosts.py serve 10.0.0.5 cluster.key          # on the first host
python two_hosts.py write 10.0.0.5:41233 cluster.key    # on the second, with the address that the first one printed
"""

from __future__ import annotations

import sys

import tent

SIZE = 1 << 20


def serve(own: str, key: str) -> None:
    """Offers a region at an address of this host, and waits for the notification behind its last byte."""
    kv = bytearray(SIZE)
    with tent.Engine(rpc_server_hostname=own, security={"cluster_key": key}, name="receiver") as engine:
        with engine.register(kv, name="kv"):
            print(engine.address, flush=True)
            note = engine.notifications.get(timeout=600)
            assert kv == b"a" * SIZE
            print(f"{note.message}: {SIZE} bytes")


def write(address: str, key: str) -> None:
    """Fills the region at `address`."""
    with tent.Engine(security={"cluster_key": key}) as engine, engine.open(address) as peer:
        local = engine.allocate(SIZE)
        local.view[:] = b"a" * SIZE
        transfer = engine.write(local, peer["kv"], notify=("done", "step 7"), timeout=30)
        transfer.result()
        print(transfer)


if __name__ == "__main__":
    {"serve": serve, "write": write}[sys.argv[1]](*sys.argv[2:])
