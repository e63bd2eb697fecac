"""Each keyword of each form of a move reaches the engine: it changes something there that the move without it does not.

A move that nothing is asked of goes over shm, in class HIGH. Every proof below is seen to fail without its keyword.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tent
from tent.terms import terms
from tent.testing import Memory

SIZE, PAGE = 4096, 64
POLICIES = [
    {"name": "checkpoints", "segment_type": "memory", "intent_type": "checkpoint", "transports": ["tcp"]},
    {"name": "usual", "segment_type": "memory", "transports": ["shm", "tcp"]},
    {"name": "by name", "segment_type": "memory", "transports": ["tcp"]},
]


class World:
    """An engine, and another one that offers memory."""

    def __init__(self, engine: tent.Engine, other: tent.Engine, local: tent.Region, remote: tent.RemoteRegion) -> None:
        self.engine, self.other, self.local, self.remote = engine, other, local, remote

    def operands(self, form: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword operands of a form that moves one page, from place 3 here to place 5 there."""
        here, there = 3 * PAGE, 5 * PAGE
        if form.endswith("_pages"):
            return (self.local, [3], self.remote, [5]), {"page_bytes": PAGE}
        if form.endswith("_ranges"):
            return (self.local, [here], self.remote, [there], [PAGE]), {}
        return (self.local[here : here + PAGE], self.remote[there : there + PAGE]), {}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    mine, theirs = Memory(SIZE, 1), Memory(SIZE, 2)
    with (
        tent.Engine(policy=POLICIES) as engine,
        tent.Engine() as other,
        engine.register(mine.view) as local,
        other.register(theirs.view, name="kv"),
        engine.open(other.address) as segment,
    ):
        world, until = World(engine, other, local, segment["kv"]), time.monotonic() + 20
        while not goes_over_tcp(world, "read", of_engine("read")(world), hint="tcp"):  # its rail comes up after shm's
            assert time.monotonic() < until
        yield world
    pages = bytes(mine.view)[3 * PAGE : 4 * PAGE], bytes(theirs.view)[5 * PAGE : 6 * PAGE]
    assert pages[0] == pages[1], "the last move was whole"


MOVES = ("write", "read", "write_ranges", "read_ranges", "write_pages", "read_pages")
Start = Callable[..., tent.Transfer]


def of_engine(form: str) -> Callable[[World], Start]:
    """The call of the engine."""

    def make(world: World) -> Start:
        def start(**given: Any) -> tent.Transfer:
            operands, own = world.operands(form)
            moved: tent.Transfer = getattr(world.engine, form)(*operands, **own, **given)
            return moved

        return start

    return make


def of_batch(form: str, *, common: bool) -> Callable[[World], Start]:
    """The same in a batch: the keywords are the batch's, or those of the one move."""

    def make(world: World) -> Start:
        def start(**given: Any) -> tent.Transfer:
            operands, own = world.operands(form)
            with world.engine.batch(**(given if common else {})) as batch:
                getattr(batch, form)(*operands, **own, **({} if common else given))
                return batch.submit()

        return start

    return make


FORMS = {
    **{form: of_engine(form) for form in MOVES},
    **{f"batch().{form}": of_batch(form, common=True) for form in MOVES},
    **{f"batch.{form}()": of_batch(form, common=False) for form in ("write", "read")},
}


def bytes_of(world: World, form: str, priority: str) -> float:
    """The bytes of a direction that have gone in a class."""
    direction = "read" if "read" in form else "write"
    found = world.engine.metrics()
    labels = [f'transport="{name}",class="{priority}"' for name in ("shm", "tcp")]
    return sum(found[f"tent_{direction}_bytes_total{{{label}}}"] for label in labels)


def goes_low(world: World, form: str, start: Start, **given: Any) -> bool:
    before = bytes_of(world, form, "low")
    assert start(**given).result(timeout=10) == PAGE
    return bytes_of(world, form, "low") == before + PAGE


def is_late(world: World, form: str, start: Start, **given: Any) -> bool:
    transfer = start(**given)
    assert transfer.wait(timeout=10)
    return transfer.state is tent.TransferStatusEnum.TIMEOUT


def goes_over_tcp(world: World, form: str, start: Start, **given: Any) -> bool:
    transfer = start(**given)
    assert transfer.result(timeout=10) == PAGE
    assert transfer.transports in (("tcp",), ("shm",))
    return transfer.transports == ("tcp",)


def notifies(world: World, form: str, start: Start, **given: Any) -> bool:
    assert start(**given).result(timeout=10) == PAGE
    world.engine.notify(world.remote.segment, "end").result(timeout=10)
    names = []
    while not names or names[-1] != "end":
        names.append(world.other.notifications.get(timeout=10).name)
    return names == ["page", "end"]


def bears_the_name(world: World, form: str, start: Start, **given: Any) -> bool:
    transfer = start(**given)
    assert transfer.result(timeout=10) == PAGE
    return transfer.trace == "mine"


def is_refused(error: type[tent.TentError], text: str) -> Callable[..., bool]:
    def proof(world: World, form: str, start: Start, **given: Any) -> bool:
        try:
            start(**given).result(timeout=10)
        except error as caught:
            return text in str(caught)
        return False

    return proof


PROOFS: dict[str, tuple[Any, Callable[..., bool]]] = {
    "priority": (tent.PRIO_LOW, goes_low),
    "timeout": (0.0, is_late),
    "notify": (("page", b"7"), notifies),
    "hint": ("tcp", goes_over_tcp),
    "stream": (object(), is_refused(tent.InvalidArgumentError, "stream")),
    "integrity": ("crc32c", goes_over_tcp),  # shm carries no checksums
    "durability": ("data", is_refused(tent.InvalidArgumentError, "no file is written")),
    "intent": (tent.IntentType.CHECKPOINT, goes_over_tcp),
    "policy": ("by name", goes_over_tcp),
    "require": ("tcp", goes_over_tcp),
    "trace": ("mine", bears_the_name),
}


def keywords_of(form: str) -> list[str]:
    """The terms that a form takes by its signature."""
    if form.startswith("batch()."):
        function: Any = tent.Engine.batch
    elif form.startswith("batch."):
        function = getattr(tent.Batch, form[len("batch.") : -len("()")])
    else:
        function = getattr(tent.Engine, form)
    return [name for name in inspect.signature(terms).parameters if name in inspect.signature(function).parameters]


def test_each_keyword_has_its_proof() -> None:
    assert list(PROOFS) == list(inspect.signature(terms).parameters)


@pytest.mark.parametrize(("form", "keyword"), [(form, keyword) for form in FORMS for keyword in keywords_of(form)])
def test_a_keyword_reaches_the_engine(world: World, form: str, keyword: str) -> None:
    value, proof = PROOFS[keyword]
    start = FORMS[form](world)
    assert proof(world, form, start, **{keyword: value}), f"{form} has lost {keyword}"
    assert not proof(world, form, start), f"{form} does that without {keyword}, too"
