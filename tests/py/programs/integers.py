import tent

engine = tent.TransferEngine()                      # or TransferEngine("transfer-engine.json"), or a dict
segment_id = engine.open_segment("127.0.0.1:41233/kv")    # a region as a segment: offsets count from 0
addr = engine.allocate_local_memory(size, location="cpu:0")
batch_id = engine.allocate_transfer_batch(16)
req = tent.Request(opcode=tent.OpCode.READ, source=addr, target_id=segment_id, target_offset=0, length=size)
assert req.priority == tent.PRIO_HIGH
req.priority = tent.PRIO_MEDIUM
engine.submit_transfer(batch_id, [req])             # several calls a batch, up to its capacity
status = engine.get_transfer_status(batch_id, 0)    # TransferStatus(state=..., bytes=...); never INITIAL after submit
while status.state == tent.TransferStatusEnum.PENDING:
    status = engine.get_transfer_status(batch_id, 0)
engine.free_transfer_batch(batch_id)
