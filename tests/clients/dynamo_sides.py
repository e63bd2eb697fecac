"""Dynamo's own users of NIXL: two processes that move tensors, and compare every element.

The word is `connect`, its operations on descriptors, or `read` or `write`, its senders and receivers of encoders'
outputs. The findings are a JSON object.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

LIMIT = 240  # seconds for each step; the other side imports torch in the first
SIZES = (1 << 8, 1 << 12, 1 << 16, 1 << 20)  # elements of a tensor


def tensors(seed: int, size: int, count: int = 1) -> list[torch.Tensor]:
    """Tensors with elements that are known."""
    return [torch.arange(size, dtype=torch.int32) * (2 * i + 1) + i for i in range(seed, seed + count)]


def equal(given: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    """Whether they came whole."""
    return len(given) == len(wanted) and all(map(torch.equal, given, wanted))


async def within(step: Awaitable[Any]) -> Any:
    """The end of a step, within the limit."""
    return await asyncio.wait_for(step, LIMIT)


async def heard(pipe: Connection) -> Any:
    """The next word of the other side; the loop goes on meanwhile."""
    return await within(asyncio.to_thread(pipe.recv))


async def owner(pipe: Connection) -> None:
    """Offers tensors, for reads and for writes; the last one is not waited for."""
    from dynamo.nixl_connect import Connector, Descriptor  # type: ignore[import-not-found]

    connector = Connector()
    for seed, size in enumerate(SIZES):
        for count in (1, 3):
            with await connector.create_readable(list(map(Descriptor, tensors(seed, size, count)))) as offered:
                pipe.send(offered.metadata().model_dump())
                await within(offered.wait_for_completion())
        place = torch.zeros(size, dtype=torch.int32)
        with await connector.create_writable(Descriptor(place)) as offered:
            pipe.send(offered.metadata().model_dump())
            await within(offered.wait_for_completion())
        pipe.send(equal([place], tensors(seed + 9, size)))
    with await connector.create_readable(Descriptor(*tensors(0, SIZES[-1]))) as offered:
        pipe.send(offered.metadata().model_dump())
        await heard(pipe)


async def visitor(start: Callable[[], Side]) -> dict[str, Any]:
    """Reads and writes the tensors of an owner, loses it, and does the same with its successor."""
    from dynamo.nixl_connect import Connector, Descriptor, RdmaMetadata

    connector = Connector()

    async def read(metadata: dict[str, Any], size: int, count: int) -> list[torch.Tensor]:
        places = [torch.zeros(size, dtype=torch.int32) for _ in range(count)]
        offered = RdmaMetadata.model_validate(metadata)
        with await connector.begin_read(offered, list(map(Descriptor, places))) as operation:
            await within(operation.wait_for_completion())
            status = operation.status.name
        return places if status == "COMPLETE" else []

    async def visit(side: Side) -> list[bool]:
        whole = []
        for seed, size in enumerate(SIZES):
            one, three = [await read(await heard(side.pipe), size, count) for count in (1, 3)]
            whole += [equal(one, tensors(seed, size)), equal(three, tensors(seed, size, 3))]
            offered = RdmaMetadata.model_validate(await heard(side.pipe))
            with await connector.begin_write(Descriptor(*tensors(seed + 9, size)), offered) as operation:
                await within(operation.wait_for_completion())
            whole.append(await heard(side.pipe))
        return whole

    first = start()
    seen: dict[str, Any] = {"whole": await visit(first)}
    left = await heard(first.pipe)
    first.process.kill()
    first.process.join()
    try:
        seen["lost"] = "whole" if await read(left, SIZES[-1], 1) else "not complete"
    except Exception as error:
        seen["lost"] = type(error).__name__
    second = start()
    seen["successor"] = await visit(second)
    await heard(second.pipe)
    seen["end"] = second.end()
    return seen


def outputs(seed: int, size: int) -> list[torch.Tensor]:
    """Four outputs of an encoder."""
    return [each.float().view(16, -1) for each in tensors(seed, size, 4)]


async def sender(pipe: Connection) -> None:
    """Sends outputs, four at once, from their own memory and from a copy."""
    from dynamo.common.multimodal import embedding_transfer as transfer  # type: ignore[import-not-found]

    way = {"read": transfer.NixlReadEmbeddingSender, "write": transfer.NixlWriteEmbeddingSender}[WORD]()
    for seed, size in enumerate(SIZES):
        for staged in (True, False):
            sent = [await way.send_embeddings(each, staged) for each in outputs(seed, size)]
            pipe.send([request.model_dump() for request, _ in sent])
            for _, done in sent:
                await within(done)
    await heard(pipe)


async def receiver(start: Callable[[], Side]) -> dict[str, Any]:
    """Compares the outputs of a sender."""
    from dynamo.common.multimodal import embedding_transfer as transfer

    if WORD == "read":
        way = transfer.NixlReadEmbeddingReceiver(max_items=8)
    else:
        way = transfer.NixlWriteEmbeddingReceiver(buffer_size=64 << 20)
    side, whole = start(), []
    for seed, size in enumerate(SIZES):
        for _ in range(2):
            requests = map(transfer.TransferRequest.model_validate, await heard(side.pipe))
            came = await within(asyncio.gather(*map(way.receive_embeddings, requests)))
            whole.append(equal([given for _, given in came], outputs(seed, size)))
            for number, _ in came:
                way.release_tensor(number)
    return {"whole": whole, "end": side.end()}


class Side:
    """The process of the other side."""

    def __init__(self, role: Callable[[Connection], Awaitable[None]]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, far = spawn.Pipe()
        self.process = spawn.Process(target=played, args=(role, far), daemon=True)
        self.process.start()
        far.close()

    def end(self) -> int | None:
        """Its exit status."""
        self.pipe.send("end")
        self.process.join(LIMIT)
        return self.process.exitcode


def played(role: Callable[[Connection], Any], pipe: Connection) -> None:
    """The other process."""
    asyncio.run(role(pipe))


WORD = sys.argv[1]  # a spawned process has the same words

if __name__ == "__main__":
    ours, theirs = (visitor, owner) if WORD == "connect" else (receiver, sender)
    print(json.dumps(asyncio.run(ours(lambda: Side(theirs)))))
