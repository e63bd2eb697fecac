"""A user's program for the type checker: the types of results are known."""

from __future__ import annotations

from pathlib import Path

import tent


def move(target: str) -> int:
    with tent.Engine(name="typed", rpc_server_port=0) as engine, engine.open(target) as peer:
        region: tent.Region = engine.register(bytearray(1 << 16), name="kv")
        kv: tent.RemoteRegion = peer["kv"]
        transfer: tent.Transfer = engine.write(region[0:10], kv[0:10], priority=tent.PRIO_LOW, notify=("a", b"b"))
        done, pending = tent.wait([transfer], timeout=1.0, return_when=tent.FIRST_COMPLETED)
        moved: int = sum(one.result() for one in tent.as_completed(done | pending))
        error: tent.TransferError | None = transfer.exception()
        if error is not None and error.state is tent.TransferStatusEnum.FAILED:
            print(error.failed_tasks[0], error.peer.upper())
        note: tent.Notification = engine.notifications.get(timeout=1)
        with engine.batch(hint=tent.TransportType.TCP) as batch:
            batch.read(memoryview(region.view), peer.memory(0x1000, 1 << 16))
            moved += batch.submit().result()
        return moved + len(note.data) + region.view.nbytes


def save(engine: tent.Engine, region: tent.Region, path: Path) -> int:
    with engine.open(path, create=True, size=region.size, durability="data") as file, engine.batch(durability="data") as batch:
        batch.write(region, file[0 : file.size])
        name: str | None = file.path
        return batch.submit().result() + len(name or "") + engine.write(region, file, durability=None).result()


async def wait(transfer: tent.Transfer, engine: tent.Engine) -> int:
    async for note in engine.notifications:
        print(note.name, note.message)
    return await transfer


def integers(config: dict[str, object]) -> tent.TransferStatus:
    engine = tent.TransferEngine(config)
    batch = engine.allocate_transfer_batch(2)
    engine.submit_transfer(batch, [tent.Request(opcode=tent.OpCode.READ, length=1)])
    engine.submit_transfer(batch, tent.RequestArray(1), count=1)
    return engine.get_transfer_status(batch, 0)
