import sys, numpy as np, tent

with tent.Engine() as engine, engine.open(sys.argv[1]) as peer:   # fails at once if nobody is there
    kv = engine.allocate(64 << 20, name="kv", location="cpu:0")   # a Region; np.asarray(kv) is a view of its bytes
    one = engine.write(kv[0:65536], peer["kv"][131072:196608],    # local first, then remote; READ: engine.read(...)
                       priority=tent.PRIO_HIGH, timeout=5.0)      # returns a Transfer at once
    assert one.result() == 65536                                  # waits; raises tent.TransferError on failure
    print(one)          # <Transfer COMPLETED 64.0 KiB shm 41 us>
    src, dst = np.arange(256), np.random.permutation(256)
    pages = engine.write_pages(kv, src, peer["kv"], dst, page_bytes=65536,
                               priority=tent.PRIO_LOW, notify=("done", "step 7"))   # sent after the last byte is there
    for transfer in tent.as_completed([pages], timeout=30):
        transfer.result()
