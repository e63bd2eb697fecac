import numpy as np, tent

kv = np.zeros((1024, 65536), np.uint8)                # 1024 pages of 64 KiB
with tent.Engine(name="decode-0") as engine:          # listens on loopback, on a free port
    with engine.register(kv, name="kv") as region:    # from now on peers can reach these bytes
        print(engine.address, flush=True)             # "127.0.0.1:41233": all that a peer needs to know
        note = engine.notifications.get(timeout=30)   # tent.Notification(name="done", message="step 7", peer=...)
    # leaving the block: the region is revoked; no peer writes to it any more
