"""make check-gpu: tent with the GPUs of this machine, and a page of the results to send in.

    checkgpu.py [--rounds 5] [--megabytes 1024] [--pages 10000] [--layers 80] [--layer-pages 1024] [--nixl MODULE]
                [--no-suite] [--page FILE] [--json FILE]

First the conformance suite, the tests of Python over this driver, and every way of moving memory of a GPU, with a byte
oracle. Then rates beside bare calls of the driver, round by round in turn, and a KV cache of many layers beside torch
and NIXL (gpucache.py). A check that fails ends in the page like one that passes, and in the exit code. A row that
cannot be measured here is on the page, too, with the reason.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import build_gotent
import gpucache
import gputests
import interpreters
from cudadriver import BAND, Driver, DriverError, Memory
from gpuends import ALONE, KERNEL, LIMIT
from gpulayers import PAGE, Shape
from gpupage import Page
from table import today

import tent
from tent.testing import pattern

SIZE = (3 << 20) + 777  # of the checks
STAGED = ALONE | {"transports/nvlink/trust": "none"}  # no other process maps our memory
PINNED = ALONE | {"transports/nvlink/host_register": True}


@dataclass
class Options:
    rounds: int
    size: int
    pages: int


# The other process: it offers memory of its last GPU as "cache", and shows it when it is asked.


def owner(settings: str, size: int, seed: int) -> None:
    first = Driver(0)
    memory = Memory(Driver(first.count() - 1), size, seed)
    chosen = STAGED if settings == "staged" else ALONE
    # Not sys.stdout: with PYTHONUNBUFFERED a signal cuts a line that is longer than the pipe, and Go sends signals.
    with open(sys.stdout.fileno(), "w", closefd=False) as answers, tent.Engine(chosen, name="owner") as engine:
        with engine.register((memory.address, size), name="cache"):
            print(engine.address, file=answers, flush=True)
            for line in sys.stdin:
                if line.strip() == "show":
                    print(memory.content().hex(), file=answers, flush=True)


class Owner:
    """A process that runs owner()."""

    def __init__(self, settings: str, size: int, seed: int) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, __file__, "--owner", settings, str(size), str(seed)]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.expected = bytearray(pattern(seed, 0, size + 2 * BAND))
        self.address = self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the other process has ended"
        return line

    def _content(self) -> bytes:
        assert self._process.stdin is not None
        print("show", file=self._process.stdin, flush=True)
        return bytes.fromhex(self._answer())

    def check(self) -> None:
        content = self._content()
        if content == self.expected:
            return
        wrong = [i for i, (have, want) in enumerate(zip(content, self.expected, strict=True)) if have != want]
        first, last = wrong[0], wrong[-1] + 1
        raise AssertionError(
            f"the bytes of the other process differ: {len(wrong)} from {first - BAND} to {last - BAND}, "
            f"{content[first : first + 16].hex()} instead of {self.expected[first : first + 16].hex()}; "
            f"{'equal' if self._content() == self.expected else 'different'} at a second look"
        )

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def other_process(settings: str, size: int = SIZE, seed: int = 50) -> Iterator[Owner]:
    process = Owner(settings, size, seed)
    try:
        yield process
    finally:
        process.end()


# The checks


def moved(engine: tent.Engine, here: Memory, there: Memory) -> None:
    """Both directions between two memories of this process, every byte."""
    middle = slice(1000, SIZE - 1000)
    with engine.register((here.address, SIZE)) as ours, engine.register((there.address, SIZE), name="cache") as theirs:
        engine.write(ours[middle], theirs[middle]).result(LIMIT)
        there.expect(here.content()[BAND + 1000 : BAND + SIZE - 1000], 1000)
        here.check()
        there.check()
        engine.read(ours[0:1000], theirs[0:1000]).result(LIMIT)
        here.expect(there.content()[BAND : BAND + 1000])
        here.check()
        there.check()


def in_process(first: int, second: int) -> None:
    here, there = Memory(Driver(first), SIZE, 1), Memory(Driver(second), SIZE, 2)
    with tent.Engine(ALONE) as engine:
        moved(engine, here, there)
    here.check()  # nothing lands later
    there.check()
    here.free()
    there.free()


def by_kernel() -> str | None:
    """Pages of three sizes, two of which the kernel takes, from a GPU to the last one."""
    first = Driver(0)
    here, there = Memory(first, SIZE, 13), Memory(Driver(first.count() - 1), SIZE, 14)
    with tent.Engine(KERNEL) as engine:
        with engine.register((here.address, SIZE)) as ours, engine.register((there.address, SIZE)) as theirs:
            said = str(engine.explain(ours, theirs[0:SIZE]))
            if "copied one by one" in said:
                return said
            for size in (4096, 65552, 1000):
                n = SIZE // size
                with engine.pages(ours, size) as near, engine.pages(theirs, size) as far:
                    engine.write_pages(near, range(n), far.as_remote(), range(n - 1, -1, -1)).result(LIMIT)
                content = here.content()
                for i in range(n):
                    at = BAND + i * size
                    there.expect(content[at : at + size], (n - 1 - i) * size)
                here.check()
                there.check()
    here.check()  # nothing lands later
    there.check()
    here.free()
    there.free()
    return None


def with_host(settings: Mapping[str, object]) -> None:
    device = Memory(Driver(0), SIZE, 3)
    data = bytearray(pattern(4, 0, SIZE))
    with tent.Engine(settings) as engine, engine.register((device.address, SIZE)) as far:
        with engine.register(data) as near:
            engine.write(near, far).result(LIMIT)
            device.expect(bytes(data))
            device.check()
            data[:] = bytes(SIZE)
            engine.read(near, far).result(LIMIT)
            assert data == pattern(4, 0, SIZE), "the bytes that were read differ"
    device.check()
    device.free()


def between_processes(settings: str, way: str) -> None:
    driver = Driver(0)
    with other_process(settings) as process, tent.Engine(STAGED if settings == "staged" else ALONE) as engine:
        with engine.open(process.address) as peer:
            there = peer["cache"]
            for ours in (Memory(driver, SIZE, 6), None):
                data = bytearray(pattern(7, 0, SIZE))
                buffer = data if ours is None else (ours.address, SIZE)
                with engine.register(buffer) as region:
                    route = str(engine.explain(region, there[0:SIZE]))
                    assert way in route, f"another way than {way}: {route}"
                    engine.write(region, there[0:SIZE]).result(LIMIT)
                    sent = bytes(data) if ours is None else ours.content()[BAND:-BAND]
                    process.expected[BAND:-BAND] = sent
                    process.check()
                    engine.read(region[0:100_000], there[SIZE - 100_000 : SIZE]).result(LIMIT)
                    if ours is None:
                        assert data == sent[-100_000:] + sent[100_000:], "the bytes that were read differ"
                    else:
                        ours.expect(sent[-100_000:])
                        ours.check()
                if ours is not None:
                    ours.free()
        process.check()


def in_the_order_of_a_stream() -> None:
    """The copy into the source is in a stream, and the transfer behind it takes its bytes."""
    driver = Driver(0)
    source, there = Memory(driver, SIZE, 8), Memory(driver, SIZE, 9)
    fresh = driver.pinned(SIZE)
    import ctypes

    ctypes.memmove(fresh, pattern(10, 0, SIZE), SIZE)
    stream = int(driver.stream.value or 0)
    with tent.Engine(ALONE) as engine, engine.register((source.address, SIZE)) as ours:
        with engine.register((there.address, SIZE)) as theirs:
            driver.enter()
            size = ctypes.c_size_t(SIZE)
            address = ctypes.c_uint64
            driver.call("cuMemcpyAsync", address(source.address), address(fresh), size, driver.stream)
            sent = engine.write(ours, theirs, stream=stream, timeout=LIMIT)
            sent.wait_on(stream)
            driver.enter()
            driver.call("cuStreamSynchronize", driver.stream)
            assert sent.result(LIMIT) == SIZE
    for memory in (source, there):
        memory.expect(pattern(10, 0, SIZE))
        memory.check()
        memory.free()


def for_other_hosts() -> str | None:
    """Memory that other hosts of the NVLink domain can map. It is zeroed and whole; the other host is not here."""
    with tent.Engine(ALONE) as engine:
        apart = [memory["device"]["apart"] for memory in engine.topology()["mems"] if memory.get("device")]
        if all(apart):
            return str(apart[0])
        data = bytearray(pattern(11, 0, SIZE))
        with engine.allocate(SIZE, location=f"cuda:{apart.index('')}") as far, engine.register(data) as near:
            assert far.transports["mnnvl"] == "ready", far.transports
            engine.read(near, far).result(LIMIT)
            assert data == bytes(SIZE), "the memory is not zeroed"
            data[:] = pattern(12, 0, SIZE)
            engine.write(near, far).result(LIMIT)
            data[:] = bytes(SIZE)
            engine.read(near, far).result(LIMIT)
            assert data == pattern(12, 0, SIZE), "the bytes that were read differ"
    return None


def with_torch() -> str | None:
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return "no torch in this environment"
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    from tent.torch import PagedCache

    shape = (2, 64, 16, 128)
    ours = [torch.randn(shape, device="cuda").to(torch.bfloat16) for _ in range(4)]
    theirs = [torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in range(4)]
    src, dst = torch.arange(8), torch.randperm(64)[:8]
    with tent.Engine(ALONE) as near, tent.Engine(ALONE) as far:
        with PagedCache(far, theirs, dim=1, name="kv"), PagedCache(near, ours, dim=1) as cache:
            with near.open(far.address) as peer:
                moving = near.write_pages(
                    cache.grid, src, cache.at(peer, "kv"), dst, stream=torch.cuda.current_stream(), timeout=LIMIT
                )
                moving.wait_on(torch.cuda.current_stream())
                equal = all(torch.equal(t[:, dst.cuda()], o[:, src.cuda()]) for t, o in zip(theirs, ours))
                moving.result(LIMIT)
    assert equal, "the pages differ"
    return None


def suite() -> str | None:
    """The conformance suite over the GPUs; mnnvl where one gives fabric handles, and gds where cuFile takes files."""
    try:
        go = interpreters.go_command()
    except SystemExit as error:
        return str(error)
    command = [go, "test", "-count=1", "-run=OnDevices", "./transports/cuda", "./transports/cuda/gds"]
    env = build_gotent.go_env(go)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return None


# The rates


def gigabytes(size: int, move: Callable[[], object]) -> float:
    began = time.perf_counter()
    move()
    return size / (time.perf_counter() - began) / 1e9


def rates(page: Page, o: Options, name: str, size: int, ours: Callable[[], object], theirs: Callable[[], object],
          least: float) -> None:  # fmt: skip
    """A row of two that take turns, each once before it counts."""
    ours(), theirs()
    pairs = [(gigabytes(size, ours), gigabytes(size, theirs)) for _ in range(o.rounds)]
    page.rates(name, [a for a, _ in pairs], [b for _, b in pairs], least)


def measure_pages(page: Page, o: Options, driver: Driver, here: int, there: int) -> None:
    """Pages between two memories, each to another place, by the copy engines and by the kernel."""
    n = min(o.pages, o.size // PAGE)
    size = n * PAGE
    src, dst = list(range(0, n, 2)) + list(range(1, n, 2)), list(range(n - 1, -1, -1))
    places = [(there + d * PAGE, here + s * PAGE) for s, d in zip(src, dst, strict=True)]
    for way, settings in (("", ALONE), (" by a kernel", KERNEL)):
        with tent.Engine(settings) as engine:
            a, b = engine.register((here, size)), engine.register((there, size))
            with engine.pages(a, PAGE) as ours, engine.pages(b, PAGE) as theirs:
                remote = theirs.as_remote()

                def move() -> None:
                    engine.write_pages(ours, src, remote, dst).result(LIMIT)

                def whole() -> None:
                    engine.write(a, b).result(LIMIT)

                name = f"{n} pages of 64 KiB{way}, beside "
                rates(page, o, name + "one range", size, move, whole, 0.8)
                try:
                    driver.batches(places, PAGE)
                except DriverError as error:
                    page.absent(name + "the driver's batches", str(error))
                else:
                    rates(
                        page, o, name + "the driver's batches", size, move, lambda: driver.batches(places, PAGE), 0.95
                    )


def measure(page: Page, o: Options) -> None:
    driver = Driver(0)
    last = Driver(driver.count() - 1)
    n = o.size
    here, there, host = driver.allocate(n), last.allocate(n), driver.pinned(n)
    with tent.Engine(PINNED) as engine:
        a, b, h = (engine.register((address, n)) for address in (here, there, host))
        bare = driver.copy
        rates(page, o, "host to device", n, lambda: engine.write(h, a).result(LIMIT), lambda: bare(here, host, n), 0.98)
        rates(page, o, "device to host", n, lambda: engine.read(h, a).result(LIMIT), lambda: bare(host, here, n), 0.98)
        what = "between devices" if last.ordinal else "inside one device"
        rates(page, o, what, n, lambda: engine.write(a, b).result(LIMIT), lambda: bare(there, here, n), 0.95)
    measure_pages(page, o, driver, here, there)
    with other_process("direct", n) as process, tent.Engine(PINNED) as engine:
        with engine.register((here, n)) as region, engine.open(process.address) as peer:
            rates(page, o, "to another process, beside a copy in this one", n,
                  lambda: engine.write(region, peer["cache"]).result(LIMIT),
                  lambda: bare(there, here, n), 0.95)  # fmt: skip
    with (
        other_process("staged", n) as process,
        tent.Engine(STAGED | {"transports/nvlink/host_register": True}) as engine,
    ):
        with engine.register((here, n)) as region, engine.open(process.address) as peer, tent.Engine(STAGED) as third:
            with third.register(bytearray(n), name="host"), engine.open(third.address) as host_peer:
                with engine.register((host, n)) as local:
                    rates(page, o, "staged by TCP to another process, beside host to host by TCP", n,
                          lambda: engine.write(region, peer["cache"]).result(LIMIT),
                          lambda: engine.write(local, host_peer["host"]).result(LIMIT), 0.9)  # fmt: skip


def main() -> int:
    if sys.argv[1:2] == ["--owner"]:
        owner(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser(description="Checks and measures tent with the GPUs of this machine.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--pages", type=int, default=10_000)
    parser.add_argument("--layers", type=int, default=80, help="tensors of the KV cache")
    parser.add_argument("--layer-pages", type=int, default=1024, help="pages of each, halved until they fit the GPU")
    parser.add_argument("--nixl", default="", metavar="MODULE", help="one with NIXL's calls, for its wheel's")
    parser.add_argument("--no-suite", dest="suite", action="store_false", help="leave both suites of tests out")
    parser.add_argument("--page", type=Path, help="file for the page of results")
    parser.add_argument("--json", type=Path, help="file for the table, as docs/performance has it")
    args = parser.parse_args()
    try:
        driver = Driver(0)
    except (OSError, AttributeError, DriverError) as error:
        print(f"check-gpu needs a GPU and its driver: {error}", file=sys.stderr)
        return 1
    count = driver.count()
    machine = f"{count} x {driver.name()}, {platform.platform()}, Python {platform.python_version()}"
    print(machine, flush=True)
    page = Page()
    if args.suite:
        page.check("conformance", suite)
        page.check("the tests of Python over this machine's driver", gputests.run)
    page.check("memory of the host and of a GPU", lambda: with_host(ALONE))
    page.check("the same, pinned", lambda: with_host(PINNED))
    page.check("inside one GPU", lambda: in_process(0, 0))
    page.check("pages of one GPU by a kernel", by_kernel)
    two = "" if count > 1 else "one GPU"
    page.check("between two GPUs", (lambda: two) if two else (lambda: in_process(0, count - 1)))
    page.check("a GPU of another process", lambda: between_processes("direct", "nvlink"))
    page.check("the same, staged by both engines", lambda: between_processes("staged", "staged"))
    page.check("memory for other hosts (mnnvl)", for_other_hosts)
    page.check("in the order of a stream", in_the_order_of_a_stream)
    page.check("tensors of torch", with_torch)
    if not page.failed:
        measure(page, Options(args.rounds, args.megabytes << 20, args.pages))
        cache = gpucache.Options(args.rounds, Shape(args.layers, args.layer_pages), args.nixl)
        page.check("a KV cache, every page of it by each contestant", lambda: gpucache.measure(page, cache))
    about = f"{machine}, {args.megabytes} MiB, {args.rounds} rounds"
    table = today("check-gpu", sys.argv[1:], about, page.rows)
    if args.json and page.rows:
        table.write(args.json)
    if args.page:
        args.page.parent.mkdir(parents=True, exist_ok=True)
        args.page.write_text(page.markdown(machine, table))
        print(f"{args.page}: a page of results to send in")
    return int(page.failed)


if __name__ == "__main__":
    sys.exit(main())
