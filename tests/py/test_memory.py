"""Memory that tent is asked for and cannot give, and memory that is registered and is not there: an error at once."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import apart
import pytest

import tent
from tent.testing import pattern

libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
libc.mmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mmap.restype = ctypes.c_size_t
PAGE = mmap.PAGESIZE


def available() -> int:
    """MemAvailable in bytes."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) << 10


def resident(region: tent.Region) -> int:
    """Bytes of the mapping of a region that have pages."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word = line.split()[0]
        if "-" in word:
            start, end = (int(bound, 16) for bound in word.split("-"))
            found = start <= region[:].address < end
        elif found and word == "Rss:":
            return int(line.split()[1]) << 10
    raise AssertionError("the region has no mapping")


@pytest.mark.parametrize("size", [1 << 42, 1 << 50, (1 << 63) - 1])
@pytest.mark.parametrize("prefault", [False, True])
@pytest.mark.parametrize("shm", [True, False])
def test_more_than_there_is_is_refused_with_both_numbers(
    engines: Callable[..., tent.Engine], shm: bool, prefault: bool, size: int
) -> None:
    engine = engines(transports={"shm": {"enable": shm}})
    with pytest.raises(tent.OutOfMemoryError) as refusal:
        engine.allocate(size, prefault=prefault)
    assert isinstance(refusal.value, MemoryError)
    assert isinstance(refusal.value, tent.TentError)
    assert refusal.value.code == "OUT_OF_MEMORY"
    wanted, *others = (int(word) for word in refusal.value.message.split() if word.isdigit())
    assert wanted == size
    assert 0 < others[0] <= available() * 2, "what is left"
    assert refusal.value.hint


def test_sizes_beyond_63_bits_are_no_sizes(engines: Callable[..., tent.Engine]) -> None:
    for size in 1 << 70, 1 << 63:
        with pytest.raises(tent.InvalidArgumentError, match=f"at most {(1 << 63) - 1}"):
            engines().allocate(size)


def test_pages_come_with_their_first_use_unless_asked_for(engines: Callable[..., tent.Engine]) -> None:
    engine, size = engines(), 64 << 20
    with engine.allocate(size) as lazy:
        assert resident(lazy) == 0
        lazy.view[:PAGE] = bytes(PAGE)
        assert 0 < resident(lazy) < size
        lazy.view[0:size:PAGE] = bytes(size // PAGE)
        assert resident(lazy) == size
    with engine.allocate(size, prefault=True) as there:
        assert resident(there) == size


def test_a_peer_that_maps_memory_touches_only_pages_that_are_there(engines: Callable[..., tent.Engine]) -> None:
    owner, size = engines(), 256 << 20
    with owner.allocate(size, name="kv") as kv, owner.allocate(PAGE) as page:
        kv.view[:PAGE] = b"t" * PAGE
        program = """
            import sys, tent
            from pathlib import Path
            resident = lambda: int(Path("/proc/self/statm").read_text().split()[1])
            with tent.Engine() as engine, engine.allocate(4096) as mine, engine.open(sys.argv[1]) as peer:
                before = resident()
                for _ in range(100):
                    engine.read(mine, peer["kv"][:4096]).result(20)
                assert bytes(mine.view) == b"t" * 4096
                print(resident() - before)
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), owner.address],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert int(done.stdout) * PAGE < size // 4
        del page


def test_the_limit_of_address_space_is_named(tmp_path: Path) -> None:
    program = """
        import resource, tent
        with tent.Engine() as engine:
            used = int(open("/proc/self/statm").read().split()[0]) * 4096
            limit = used + (1 << 30)  # threads of Go and of Python that start now need room, too
            resource.setrlimit(resource.RLIMIT_AS, (limit, -1))
            try:
                engine.allocate(2 << 30)
            except MemoryError as e:
                assert isinstance(e, tent.OutOfMemoryError)
                assert str(2 << 30) in str(e) and str(limit) in str(e) and "ulimit -v" in str(e), e
            else:
                raise AssertionError("allocated beyond the limit")
    """
    apart.passes(program)


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup of 300 MiB, where this process may make one: version 2 or 1."""
    for top, limit in (
        (Path("/sys/fs/cgroup"), "memory.max"),
        (Path("/sys/fs/cgroup/unified"), "memory.max"),
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    ):
        place = top / f"tent-test-{os.getpid()}"
        if not (top / "cgroup.procs").exists():
            continue
        try:
            place.mkdir()
        except OSError:
            continue
        try:
            (place / limit).write_text(str(300 << 20))
        except OSError:
            place.rmdir()
            continue
        yield place
        place.rmdir()
        return
    pytest.skip("no cgroup with a limit of memory can be made here")


@pytest.mark.parametrize("prefault", [False, True])
def test_a_cgroup_refuses_and_does_not_kill(cgroup: Path, prefault: bool) -> None:
    """A child in the group asks for more than it holds, in one call and in small ones that nobody touches."""
    program = """
        import sys, tent
        from pathlib import Path
        place, prefault = Path(sys.argv[1]), sys.argv[2] == "True"
        (place / "cgroup.procs").write_text("0")
        with tent.Engine() as engine:
            try:
                engine.allocate(2 << 30, prefault=prefault)
            except tent.OutOfMemoryError as e:
                assert str(2 << 30) in str(e) and str(place) in str(e) and str(300 << 20) in str(e), e
            else:
                raise AssertionError("allocated beyond the limit")
            got = []
            try:
                while len(got) < 100:
                    got.append(engine.allocate(16 << 20, prefault=prefault))
            except tent.OutOfMemoryError as e:
                pass
            assert 4 < len(got) < 20, len(got)
            for region in got:
                region.view[0 : len(region.view) : 4096] = bytes(len(region.view) // 4096)
                region.close()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(cgroup), str(prefault)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])


@pytest.fixture
def pages() -> Iterator[int]:
    """The address of four pages, of which the third is not mapped."""
    address = libc.mmap(0, 4 * PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    assert libc.munmap(address + 2 * PAGE, PAGE) == 0
    yield address
    assert libc.munmap(address, 4 * PAGE) == 0


def test_memory_that_is_not_there_is_refused_at_once(engines: Callable[..., tent.Engine], pages: int) -> None:
    engine = engines()
    for address, size, nothing_at in (
        (12345, 10, 12345),
        (pages, 3 * PAGE, pages + 2 * PAGE),
        (pages + 2 * PAGE, PAGE, pages + 2 * PAGE),
        (pages + PAGE, PAGE + 1, pages + 2 * PAGE),
    ):
        with pytest.raises(tent.InvalidArgumentError, match=f"nothing is at {nothing_at:#x}") as refusal:
            engine.register((address, size), name="x")
        assert "register memory that is there" in refusal.value.hint
    engine.register((pages, 2 * PAGE)).close()
    engine.register((pages + 3 * PAGE, PAGE)).close()


def test_memory_that_cannot_be_written_is_read_only(engines: Callable[..., tent.Engine], pages: int) -> None:
    engine = engines()
    assert libc.mprotect(pages + PAGE, PAGE, mmap.PROT_READ) == 0
    with pytest.raises(tent.PermissionDeniedError, match=f"for reading only at {pages + PAGE:#x}"):
        engine.register((pages, 2 * PAGE), name="x")
    with engine.register((pages, 2 * PAGE), name="x", permission=tent.Permission.GLOBAL_READ_ONLY) as own:
        with engine.open(engine.address) as peer, pytest.raises(tent.PermissionDeniedError, match="read-only"):
            engine.read(own, peer["x"])
    assert libc.mprotect(pages + PAGE, PAGE, 0) == 0
    with pytest.raises(tent.InvalidArgumentError, match=f"not at {pages + PAGE:#x}") as guarded:
        engine.register((pages, 2 * PAGE))
    assert "cuda:0" in guarded.value.hint


def test_numpy_objects_are_pointers_of_python(engines: Callable[..., tent.Engine]) -> None:
    np = pytest.importorskip("numpy")
    dated = [("Day", "M8[s]"), ("of", [("Object", "i4"), ("b", "O")])]
    for array in np.array([1, "two", None], object), np.zeros(3, [("a", "i4"), ("b", "O")]), np.zeros(3, dated):
        with pytest.raises(tent.InvalidArgumentError, match="references to Python objects"):
            engines().register(array)
    engines().register(np.zeros(3, [("Objects", "i4"), ("Other", "f8")])).close()


def test_meta_tensors_have_no_storage(engines: Callable[..., tent.Engine]) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(tent.InvalidArgumentError, match="meta has a shape and no storage"):
        engines().register(torch.zeros(4, 4, device="meta"))


def test_tensors_on_meta_need_no_torch_to_be_refused(
    engines: Callable[..., tent.Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above with the least that is a tensor, where there is no torch."""

    class Tensor:
        shape, device = (4, 4), SimpleNamespace(type="meta", index=None)

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor))
    with pytest.raises(tent.InvalidArgumentError, match="meta has a shape and no storage"):
        engines().register(Tensor())


POOL = Path("/proc/sys/vm/nr_hugepages")


def pool() -> dict[str, int]:
    """HugePages_* of /proc/meminfo in pages, and Hugepagesize in bytes."""
    lines = [line.split() for line in Path("/proc/meminfo").read_text().splitlines() if "uge" in line]
    return {word[0].rstrip(":"): int(word[1]) << (10 if len(word) > 2 else 0) for word in lines}


@pytest.fixture
def huge_page() -> Iterator[int]:
    """The size of a huge page, of which the pool has four that are free."""
    with Path(tempfile.gettempdir(), "tent-tests-huge-pages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests of another interpreter may run beside these
        before = POOL.read_text() if POOL.exists() else ""
        try:
            POOL.write_text(str(int(before) + 4))
        except (OSError, ValueError):
            pass
        try:
            if pool().get("HugePages_Free", 0) < 4:
                pytest.skip("no huge pages: vm.nr_hugepages is 0, and only root may raise it")
            yield pool()["Hugepagesize"]
        finally:
            if before and os.access(POOL, os.W_OK):
                POOL.write_text(before)


def page_size(region: tent.Region) -> int:
    """Of the pages that the kernel has behind a region, in bytes."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word = line.split()
        if "-" in word[0]:
            start, end = (int(bound, 16) for bound in word[0].split("-"))
            found = start <= region[:].address < end
        elif found and word[0] == "KernelPageSize:":
            return int(word[1]) << 10
    raise AssertionError("the region has no mapping")


@pytest.mark.parametrize("shm", [True, False])
def test_huge_pages_come_from_their_pool_move_and_go_back(
    engines: Callable[..., tent.Engine], huge_page: int, shm: bool
) -> None:
    owner, free = engines(transports={"shm": {"enable": shm}}), pool()["HugePages_Free"]
    size = huge_page + 3 * PAGE  # the second page is not filled
    with owner.allocate(size, name="kv", hugepages=True) as kv:
        assert page_size(kv) == huge_page
        assert pool()["HugePages_Free"] == free - 2, "all are taken in the call"
        assert bytes(kv.view) == bytes(size)
        kv.view[:] = pattern(7, 0, size)
        program = """
            import sys, tent
            from tent.testing import pattern
            size = int(sys.argv[2])
            with tent.Engine() as engine, engine.allocate(size) as mine, engine.open(sys.argv[1]) as peer:
                engine.read(mine, peer["kv"]).result(20)
                assert bytes(mine.view) == pattern(7, 0, size)
                mine.view[:PAGE] = pattern(8, 0, PAGE)
                engine.write(mine[:PAGE], peer["kv"][size - 2 * PAGE : size - PAGE]).result(20)
        """.replace("PAGE", str(PAGE))
        arguments = [sys.executable, "-c", textwrap.dedent(program), owner.address, str(size)]
        subprocess.run(arguments, timeout=60, check=True)
        view = bytes(kv.view)
        assert view[size - 2 * PAGE : size - PAGE] == pattern(8, 0, PAGE)
        before, behind = view[: size - 2 * PAGE], view[size - PAGE :]
        assert before == pattern(7, 0, size - 2 * PAGE) and behind == pattern(7, size - PAGE, PAGE)
    del kv  # the last that could give a view
    owner.close()  # it waits until everything is unmapped
    assert pool()["HugePages_Free"] == free


@pytest.mark.parametrize("shm", [True, False])
def test_more_huge_pages_than_there_are_is_refused_with_the_setting(
    engines: Callable[..., tent.Engine], shm: bool
) -> None:
    engine = engines(transports={"shm": {"enable": shm}})
    with pytest.raises(tent.OutOfMemoryError, match=f"{1 << 40} bytes take .* huge pages") as refusal:
        engine.allocate(1 << 40, hugepages=True)
    assert "vm.nr_hugepages" in refusal.value.hint
    with pytest.raises(tent.InvalidArgumentError, match="huge pages are of the host"):
        engine.allocate(1 << 20, location="cuda:0", hugepages=True)
