"""The rows of make check-gpu about a KV cache of many layers: write_pages beside torch's copies, and beside NIXL.

All pages move to other places. Each contestant moves them once before it is timed, and every byte is looked at.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cudadriver import Driver
from gpuends import ALONE, KERNEL, LIMIT, End, EndError
from gpulayers import PAGE, Layers, Shape, moved
from gpupage import Page

import tent

NIXL = ("nixl_cu13._api", "nixl_cu12._api", "nixl._api")  # by the CUDA of their wheels
CACHES = 4.5  # that one GPU has at most: two of tent's processes and two of NIXL's; and room for others
SEED, OTHER = 41, 42
# The ways of tent by their part of a row's name: the library of gpuends.py, and its settings.
WAYS = {"": ("tent", ALONE), " by a kernel": ("tent by a kernel", KERNEL)}
TORCH = ("copy_ of whole layers", "copy_ of each page", "index_select and index_copy_")


@dataclass
class Options:
    rounds: int
    shape: Shape
    nixl: str = ""  # a module with NIXL's calls; "": that of its wheel


@dataclass
class Work:
    """All pages of a cache, each with a place of its own in the other one."""

    shape: Shape
    src: list[int]
    dst: list[int]

    @classmethod
    def shuffled(cls, shape: Shape) -> Work:
        order = random.Random(SEED)
        src, dst = (order.sample(range(shape.pages), shape.pages) for _ in range(2))
        return cls(shape, src, dst)

    @functools.cached_property
    def arrived(self) -> list[str]:
        return moved(self.shape, SEED, self.src, self.dst)

    @functools.cached_property
    def copied(self) -> list[str]:
        """As `arrived`, for copies of whole layers."""
        return moved(self.shape, SEED, range(self.shape.pages), range(self.shape.pages))


def timed(move: Callable[[], object]) -> Callable[[], float]:
    def run() -> float:
        began = time.perf_counter()
        move()
        return time.perf_counter() - began

    return run


def compare(page: Page, rounds: int, name: str, ours: Callable[[], float], theirs: Callable[[], float]) -> None:
    """A row of two that take turns."""
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    page.times(name, [a for a, _ in pairs], [b for _, b in pairs])


def whole(name: str, found: list[str], expected: list[str]) -> None:
    """AssertionError for a contestant that has left wrong bytes."""
    wrong = [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b]
    assert not wrong, f"{name}: layer {wrong[0]} is wrong, one of {len(wrong)}"


def checked(name: str, far: Layers, move: Callable[[], object], expected: list[str]) -> None:
    """One move of a contestant, and a look at every layer."""
    far.fill(OTHER)
    move()
    whole(name, far.digests(), expected)


# In one process, beside torch


class TorchCopies:
    """The ways in which torch copies all pages of one cache into another. Their names are TORCH."""

    def __init__(self, torch: Any, near: list[Any], far: list[Any], work: Work) -> None:
        self.torch, self.pairs, self.work = torch, list(zip(near, far, strict=True)), work
        self.devices = {tensor.device for tensor in (near[0], far[0]) if tensor.is_cuda}
        self.src = torch.tensor(work.src, device=near[0].device)
        self.dst = torch.tensor(work.dst, device=far[0].device)

    def wait(self) -> None:
        for device in self.devices:
            self.torch.cuda.synchronize(device)

    def whole(self) -> None:
        for here, there in self.pairs:
            there.copy_(here, non_blocking=True)
        self.wait()

    def each(self) -> None:
        for here, there in self.pairs:
            for s, d in zip(self.work.src, self.work.dst, strict=True):
                there[d].copy_(here[s], non_blocking=True)
        self.wait()

    def indexed(self) -> None:
        for here, there in self.pairs:
            there.index_copy_(0, self.dst, here.index_select(0, self.src).to(there.device, non_blocking=True))
        self.wait()

    def ways(self) -> dict[str, tuple[Callable[[], None], list[str]]]:
        """By name: the copy, and the digests behind it."""
        arrived = self.work.arrived
        moves = ((self.whole, self.work.copied), (self.each, arrived), (self.indexed, arrived))
        return dict(zip(TORCH, moves, strict=True))


def torch_here() -> tuple[Any, str]:
    """torch, if it sees a GPU, else the reason."""
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None, "no torch in this environment"
    return (torch, "") if torch.cuda.is_available() else (None, "torch sees no GPU")


@dataclass
class Caches:
    """Two caches in this process: tensors of torch, which end with the last name for them, or memory of the driver."""

    near: Layers
    far: Layers
    tensors: tuple[list[Any], list[Any]]

    @classmethod
    def made(cls, torch: Any, shape: Shape, first: Driver, last: Driver) -> Caches:
        def tensors(on: Driver) -> list[Any]:
            size, place = (shape.pages, PAGE), f"cuda:{on.ordinal}"
            return [torch.empty(size, dtype=torch.uint8, device=place) for _ in range(shape.layers)]

        made = (tensors(first), tensors(last)) if torch is not None else ([], [])
        near, far = (
            Layers(on, shape, [tensor.data_ptr() for tensor in listed])
            for on, listed in zip((first, last), made, strict=True)
        )
        return cls(near, far, made)

    def close(self) -> None:
        self.near.free()
        self.far.free()

    @contextmanager
    def grids(self, settings: Mapping[str, object]) -> Iterator[tuple[tent.Engine, tent.Grid, tent.Grid]]:
        """An engine with the pages of both."""
        size = self.near.shape.layer_bytes
        with contextlib.ExitStack() as stack:
            engine = stack.enter_context(tent.Engine(settings))
            ours, theirs = (
                stack.enter_context(engine.pages([engine.register((a, size)) for a in layers.addresses], PAGE))
                for layers in (self.near, self.far)
            )
            yield engine, ours, theirs.as_remote()


def in_one_process(page: Page, o: Options, work: Work, first: Driver, last: Driver) -> None:
    torch, why = torch_here()
    with contextlib.closing(Caches.made(torch, o.shape, first, last)) as caches:
        near, far = caches.near, caches.far

        def layers() -> None:
            first.copy_all(list(zip(far.addresses, near.addresses, strict=True)), o.shape.layer_bytes)

        near.fill(SEED)
        rivals = {"the driver's copies of whole layers": (layers, work.copied)}
        if torch is not None:
            copies = TorchCopies(torch, *caches.tensors, work).ways()
            rivals |= {f"torch's {way}": rival for way, rival in copies.items()}
        for rival, (copy, expected) in rivals.items():
            checked(rival, far, copy, expected)
        for way, (_, settings) in WAYS.items():
            with caches.grids(settings) as (engine, ours, theirs):

                def move() -> None:
                    engine.write_pages(ours, work.src, theirs, work.dst).result(LIMIT)

                name = f"{o.shape}, in one process{way}, beside "
                checked(f"tent{way}", far, move, work.arrived)
                for rival, (copy, _) in rivals.items():
                    compare(page, o.rounds, name + rival, timed(move), timed(copy))
                if torch is None:
                    for rival in TORCH:
                        page.absent(f"{name}torch's {rival}", why)


# Between two processes, beside NIXL


def nixl_here() -> str:
    """The module of NIXL's wheel, "" where none is installed."""
    return next((name for name in NIXL if importlib.util.find_spec(name.split(".")[0])), "")


class Pair:
    """Two processes with a cache each."""

    def __init__(self, library: str, work: Work, ordinals: tuple[int, int]) -> None:
        self.ends: list[End] = []
        try:
            for ordinal in ordinals:
                self.ends.append(End(library, work.shape, ordinal))
            near, far = self.ends
            self.way = near.ask("connect", far.card, work.src, work.dst)
            near.ask("fill", SEED)
            far.ask("fill", OTHER)
            near.ask("move")
            whole(library, far.ask("digests"), work.arrived)
        except BaseException:
            self.close()
            raise

    def move(self) -> float:
        return float(self.ends[0].ask("move"))

    def close(self) -> None:
        for end in self.ends:
            end.close()


def between_processes(page: Page, o: Options, work: Work, ordinals: tuple[int, int]) -> None:
    module = o.nixl or nixl_here()
    with contextlib.ExitStack() as stack:
        theirs, why = None, "no NIXL in this environment"
        if module:
            try:
                theirs = stack.enter_context(contextlib.closing(Pair(module, work, ordinals)))
            except EndError as error:
                why = str(error)
        for way, (library, _) in WAYS.items():
            with contextlib.closing(Pair(library, work, ordinals)) as ours:
                name = f"{o.shape}, to another process by {ours.way}{way}"
                if theirs is not None:
                    compare(page, o.rounds, f"{name}, beside NIXL by {theirs.way}", ours.move, theirs.move)
                    continue
                page.absent(f"{name}, beside NIXL", why)
                page.times(name, [ours.move() for _ in range(o.rounds)], None)


def measure(page: Page, o: Options) -> None:
    """All rows of the cache, in a shape that the GPUs have room for."""
    first = Driver(0)
    last = Driver(first.count() - 1)
    o.shape = o.shape.fitting(int(min(first.room(), last.room()) / CACHES))
    work = Work.shuffled(o.shape)
    in_one_process(page, o, work, first, last)
    if (torch := torch_here()[0]) is not None:
        torch.cuda.empty_cache()  # other processes need the room
    between_processes(page, o, work, (first.ordinal, last.ordinal))
