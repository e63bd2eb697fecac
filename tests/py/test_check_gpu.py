"""make check-gpu, with the emulated driver: working ways and broken ones are told apart, and the page is written."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import termios
from array import array
from pathlib import Path

import pytest
from gpu import driver, management  # noqa: F401

BENCH = Path(__file__).parents[1] / "bench"
QUICK = ("--no-suite", "--rounds=1", "--megabytes=2", "--pages=16", "--layers=3", "--layer-pages=8")
CHECKS = 10  # of ways; where they pass, one of a cache follows
CACHE = "3 layers x 8 pages of 64 KiB"

sys.path[:0] = [str(BENCH), str(BENCH.parents[1] / "tools")]

import checkgpu  # noqa: E402
import gpucache  # noqa: E402
import gpulayers  # noqa: E402
import gputests  # noqa: E402
from gpupage import Page  # noqa: E402


def run(folder: Path, library: str, *words: str, **settings: str) -> tuple[int, str, str]:
    """The exit code, the page and the output."""
    page = folder / "page.md"
    env = os.environ | {"TENT_LIBCUDA": library} | {f"TENT_FAKECUDA_{k}": v for k, v in settings.items()}
    command = [sys.executable, BENCH / "checkgpu.py", *QUICK, *words, "--page", page]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=env)
    return done.returncode, page.read_text() if page.exists() else "", done.stdout + done.stderr


def test_every_way_is_checked_and_measured(
    library: str, nvml: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numpy")  # for the calls of NIXL, which tent has too: a stand-in for the wheel
    monkeypatch.setenv("TENT_LIBNVIDIA_ML", nvml)
    code, page, output = run(tmp_path, library, "--nixl=tent.compat.nixl", IMEX="1")
    assert code == 0, output
    assert page.count("| passed in") + page.count("| not here: ") == CHECKS + 1, page
    assert "| not here: " not in page.replace("not here: no torch", "").replace("not here: torch sees", ""), page
    assert page.count("GB/s") == 18, page
    for rival in (
        "in one process, beside the driver's copies of whole layers",
        "in one process by a kernel, beside the driver's copies of whole layers",
        "to another process by nvlink, beside NIXL",
        "to another process by nvlink by a kernel, beside NIXL",
    ):
        (row,) = (line.split("|") for line in page.splitlines() if line.startswith(f"| {CACHE}, {rival}"))
        assert all(cell.strip() for cell in row[2:5]), page  # both times, and their ratio
    for way in gpucache.TORCH:
        assert f"* {CACHE}, in one process, beside torch's {way}: not run: {gpucache.torch_here()[1]}\n" in page, page


def test_an_answer_is_whole_behind_a_signal(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process is stopped while its answer fills the pipe, and goes on."""
    monkeypatch.setenv("TENT_LIBCUDA", library)
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    with checkgpu.other_process("alone") as other:
        process = other._process
        assert process.stdin is not None and process.stdout is not None
        room = fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ)
        print("show", file=process.stdin, flush=True)
        filled = array("i", [0])
        while filled[0] < room:
            fcntl.ioctl(process.stdout, termios.FIONREAD, filled)
            assert process.poll() is None
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        process.send_signal(signal.SIGCONT)
        assert bytes.fromhex(other._answer()) == other.expected


@pytest.mark.parametrize(
    ("named", "why"),
    [("", "no NIXL in this environment"), ("absent_nixl", "ModuleNotFoundError: No module named 'absent_nixl'")],
)
def test_a_row_beside_a_library_that_is_not_here_says_so(
    library: str, monkeypatch: pytest.MonkeyPatch, named: str, why: str
) -> None:
    """tent's own time is on the page all the same."""

    class Ours(gpucache.Pair):
        def __init__(self, name: str, work: gpucache.Work, ordinals: tuple[int, int]) -> None:
            self.way, self.ends = "nvlink", []
            if not name.startswith("tent"):
                super().__init__(name, work, ordinals)

        def move(self) -> float:
            return 0.25

    monkeypatch.setenv("TENT_LIBCUDA", library)  # of processes that start here
    monkeypatch.setattr(gpucache, "Pair", Ours)
    monkeypatch.setattr(gpucache, "NIXL", ("absent_nixl._api",))
    page = Page()
    work = gpucache.Work.shuffled(gpulayers.Shape(3, 8))
    gpucache.between_processes(page, gpucache.Options(2, work.shape, named), work, (0, 1))
    to = f"{CACHE}, to another process by nvlink"
    assert page.not_run == [(f"{to}, beside NIXL", why), (f"{to} by a kernel, beside NIXL", why)]
    assert [row.name for row in page.rows] == [to, f"{to} by a kernel"]
    for row in page.rows:
        assert (row.ours, row.theirs, row.ratio) == (250_000, None, None)


def test_the_counts_of_tests_are_in_the_verdict(library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those that pass, those that fail with their names, and a reason where there are none."""
    file = tmp_path / "test_some.py"
    file.write_text("import pytest\ndef test_one(): pass\n@pytest.mark.skip\ndef test_two(): pass\n")
    monkeypatch.setattr(gputests, "TESTS", tmp_path / "tests/py")
    monkeypatch.setattr(gputests, "FILES", (file,))
    page = Page()
    monkeypatch.delenv("TENT_LIBCUDA", raising=False)
    page.check("tests", gputests.run)
    file.write_text("def test_one(): pass\ndef test_bad(): assert 0\n")
    page.check("bad tests", gputests.run)
    monkeypatch.setenv("TENT_LIBCUDA", library)
    page.check("no tests", gputests.run)
    verdicts = [verdict for _, verdict in page.checks]
    assert verdicts[0].startswith("passed in ") and verdicts[0].endswith(" s: 1 passed, 1 skipped"), verdicts
    assert verdicts[1] == "FAILED: 1 failed, 1 passed: test_some.py::test_bad" and page.failed, verdicts
    assert verdicts[2] == f"not here: TENT_LIBCUDA names another driver, {library}"


def test_a_contestant_with_one_wrong_layer_is_named() -> None:
    with pytest.raises(AssertionError, match="torch: layer 1 is wrong, one of 1"):
        gpucache.whole("torch", ["a", "x", "c"], ["a", "b", "c"])


def test_a_cache_is_halved_until_a_gpu_has_room() -> None:
    whole = gpulayers.Shape(80, 1024)
    assert whole.total_bytes == 5 << 30
    assert whole.fitting(5 << 30) == whole
    assert whole.fitting((5 << 30) - 1).pages == 512
    assert whole.fitting(0).pages == 1


def test_torch_copies_all_pages_in_each_of_its_ways() -> None:
    """On the processor, where there is no GPU; the digests are those that the contestants are held to."""
    torch = pytest.importorskip("torch")
    work = gpucache.Work.shuffled(gpulayers.Shape(3, 8))
    near, far = (
        [torch.zeros((work.shape.pages, gpulayers.PAGE), dtype=torch.uint8) for _ in range(work.shape.layers)]
        for _ in range(2)
    )
    source = gpulayers.content(work.shape, gpucache.SEED)
    for i, tensor in enumerate(near):
        part = source[i * gpulayers.STEP : i * gpulayers.STEP + work.shape.layer_bytes]
        tensor.copy_(torch.frombuffer(part, dtype=torch.uint8).view(tensor.shape))
    for copy, expected in gpucache.TorchCopies(torch, near, far, work).ways().values():
        for tensor in far:
            tensor.zero_()
        copy()
        found = [ctypes.string_at(tensor.data_ptr(), work.shape.layer_bytes) for tensor in far]
        assert [hashlib.sha256(data).hexdigest() for data in found] == expected


@pytest.mark.long
def test_checks_that_fail_are_told(library: str, tmp_path: Path) -> None:
    """The GPU has too little memory, and every check tells it instead of the first one alone."""
    code, page, output = run(tmp_path, library, BYTES=str(3 << 20))
    assert code == 1, output
    assert page.count("| FAILED: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY |") == CHECKS - 4, page
    assert page.count("| FAILED: the other process has ended |") == 2 and "Not measured" in page, page
    assert page.count("| memory for other hosts (mnnvl) | not here: nvml: no NVML: ") == 1, page


def test_without_a_gpu_it_says_what_is_missing(tmp_path: Path) -> None:
    code, page, output = run(tmp_path, str(tmp_path / "libabsent.so"))
    assert (code, page) == (1, "") and "check-gpu needs a GPU and its driver" in output and "libabsent.so" in output
