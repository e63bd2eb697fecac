"""The test guest's tools: everything that needs no kernel and no root."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import check
import guest
import kernel
import pytest
import running
from running import MissingError, Tally
from stages import STAGES, Context

ROOT = Path(__file__).resolve().parents[2]
# A kernel that is a script: it finds its folder on its command line as the real one does.
FAKE = f"""#!{sys.executable}
import json, os, subprocess, sys, time
ctl = next(word[4:] for word in sys.argv if word.startswith("ctl="))
print("the kernel speaks", flush=True)
"""
OBEYS = """
with open(f"{ctl}/output", "wb") as output:
    order = json.load(open(f"{ctl}/order.json"))
    code = subprocess.run(order["Command"], stdout=output).returncode
open(f"{ctl}/status", "w").write(str(code))
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a kernel, to be written by the test, and an init that is there."""
    path = tmp_path / "kernel"
    init = tmp_path / "init"
    init.touch()
    monkeypatch.setattr(kernel, "path", lambda: path)
    monkeypatch.setattr(guest, "INIT", init)
    return path


def install(path: Path, does: str) -> None:
    path.write_text(FAKE + does, encoding="utf-8")
    path.chmod(0o755)


def test_output_and_status_of_the_command_come_back(fake: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    install(fake, OBEYS)
    assert guest.run(["sh", "-c", "echo from inside; exit 7"], rails=2, limit=300) == 7
    printed = capfdbinary.readouterr()
    assert printed.out == b"from inside\n"
    assert b"the kernel speaks" not in printed.err


def test_the_guest_keeps_to_one_processor(fake: Path) -> None:
    install(fake, "open(f'{ctl}/status', 'w').write(str(len(os.sched_getaffinity(0))))")
    assert guest.run(["true"], rails=2, limit=300) == 1


def test_a_late_command_and_a_dead_guest_show_the_console(fake: Path, capfd: pytest.CaptureFixture[str]) -> None:
    install(fake, "time.sleep(1000)")
    assert guest.run(["true"], rails=2, limit=0.3) == guest.TIMED_OUT
    assert "the guest's console" in capfd.readouterr().err
    install(fake, "sys.exit(3)")
    assert guest.run(["true"], rails=2, limit=300) == guest.DIED
    assert "the kernel speaks" in capfd.readouterr().err


def test_a_guest_that_is_not_prepared_says_how(fake: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert guest.run(["true"], rails=2, limit=1) == guest.DIED
    assert "--prepare" in capfd.readouterr().err


def test_the_guest_ends_with_the_program_that_started_it(tmp_path: Path) -> None:
    path = tmp_path / "kernel"
    install(path, "open(f'{ctl}/../pid', 'w').write(str(os.getpid())); time.sleep(1000)")
    (tmp_path / "init").touch()
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r}); import guest, kernel; from pathlib import Path\n"
        f"guest.INIT = Path({str(tmp_path / 'init')!r}); kernel.path = lambda: Path({str(path)!r})\n"
        f"guest.memory_folder = lambda: {str(tmp_path)!r}\n"
        "guest.run(['true'], rails=1, limit=1000)"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        pid = tmp_path / "pid"
        wait_until(lambda: pid.exists() and bool(pid.read_text().strip()))
        process.kill()
    status = Path(f"/proc/{pid.read_text().strip()}/stat")
    wait_until(lambda: not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z")


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline


def test_the_command_gets_the_environment_that_is_meant_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENT_SIM_SEEDS", "3")
    monkeypatch.setenv("SECRET", "4")
    guest.Guest(tmp_path, ["a", "b c"], rails=4)
    order = json.loads((tmp_path / "order.json").read_text(encoding="utf-8"))
    assert order["Command"] == ["a", "b c"] and order["Rails"] == 4 and order["Folder"] == os.getcwd()
    names = {entry.partition("=")[0] for entry in order["Environment"]}
    assert {"TENT_SIM_SEEDS", "PATH"} <= names
    assert "SECRET" not in names


def test_the_kernel_has_another_name_with_other_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernel.CACHE, str(tmp_path))
    assert kernel.path().parent == tmp_path
    names = {kernel.path().name}
    for text in (kernel.CONFIG.read_text(encoding="utf-8") + "CONFIG_RDMA_SIW=y\n", "# a comment\n", ""):
        other = tmp_path / "config"
        other.write_text(text, encoding="utf-8")
        monkeypatch.setattr(kernel, "CONFIG", other)
        names.add(kernel.path().name)
    assert len(names) == 3, "comments change nothing"


def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> str:
    """A file of one line behind a change of it from SIZE(2696) to SIZE(12288)."""
    folder = tmp_path / "linux-source-6.12" / "arch"
    folder.mkdir(parents=True)
    (folder / "a.c").write_text(f"{line}\n", encoding="utf-8")
    subprocess.run(["tar", "-C", tmp_path, "-cJf", tmp_path / "source.tar.xz", "linux-source-6.12"], check=True)
    change = "--- a/arch/a.c\n+++ b/arch/a.c\n@@ -1 +1 @@\n-SIZE(2696);\n+SIZE(12288);\n"
    monkeypatch.setattr(kernel, "PATCH", tmp_path / "kernel.patch")
    kernel.PATCH.write_text(f"A reason.\n\n{change}", encoding="utf-8")
    kernel.Build(tmp_path, tmp_path / "log", print).unpack(tmp_path / "unused", lambda name: True)
    return (tmp_path / "source" / "arch" / "a.c").read_text(encoding="utf-8")


def test_the_source_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unpacked(tmp_path, monkeypatch, "SIZE(2696);") == "SIZE(12288);\n"


@pytest.mark.parametrize("line", ["SIZE(12288);", "SIZE(4096);"])
def test_a_source_that_the_change_does_not_fit_ends_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    with pytest.raises(kernel.KernelError, match=r"this step failed: the changes of kernel\.patch"):
        unpacked(tmp_path, monkeypatch, line)


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("linux-source-6.12/Makefile", True),
        ("linux-source-6.12/drivers/gpu/drm/Kconfig.debug", True),
        ("linux-source-6.12/drivers/gpu/drm/drm_drv.c", False),
        ("linux-source-6.12/drivers/infiniband/sw/rxe/rxe.c", True),
        ("linux-source-6.12/drivers/net/veth.c", True),
        ("linux-source-6.12/drivers/net/ethernet/intel/e1000/e1000_main.c", False),
        ("linux-source-6.12/fs/namei.c", True),
        ("linux-source-6.12/fs/hostfs/hostfs_kern.c", True),
        ("linux-source-6.12/fs/xfs/xfs_super.c", False),
        ("linux-source-6.12/arch/arm64/kernel/setup.c", False),
        ("linux-source-6.12/arch/um/kernel/um_arch.c", True),
    ],
)
def test_the_part_of_the_source_that_is_unpacked(name: str, taken: bool) -> None:
    assert kernel.wanted(name) is taken


def test_a_step_that_fails_is_named_with_its_log(tmp_path: Path) -> None:
    said: list[str] = []
    job = kernel.Build(tmp_path, tmp_path / "build.log", said.append)
    with pytest.raises(kernel.KernelError, match=r"make linux.*build\.log"):
        job.step("make linux", "sh", "-c", "echo no rule; exit 2")
    assert "no rule" in (tmp_path / "build.log").read_text()


def test_a_build_that_never_ends_is_ended_with_its_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "LIMIT_S", 0)
    monkeypatch.setattr(kernel, "TURN_S", 0.2)
    job = kernel.Build(tmp_path, tmp_path / "build.log", lambda text: None)
    with pytest.raises(kernel.LateError, match="make linux"):
        job.step("make linux", "sh", "-c", "sleep 1000 & echo $! > pid; wait")
    status = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    wait_until(lambda: not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z")


def test_a_source_that_apt_does_not_have_is_something_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "SOURCE", "no-such-package-of-a-kernel")
    with pytest.raises(MissingError, match="rdma needs the package"):
        kernel.Build(tmp_path, tmp_path / "build.log", print).download()


def test_packages_are_named_where_only_root_may_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest, "LIBRARY", {"/no/such/file": "some-package"})
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(MissingError, match=r"rdma needs packages: apt-get install .*some-package"):
        guest.install(tmp_path / "log")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MissingError, match="rdma needs a Debian"):
        guest.install(tmp_path / "log")


@pytest.mark.parametrize(("require", "failed"), [("", 0), ("rdma", 1), ("cuda, rdma", 1), ("cuda", 0)])
def test_a_stage_that_this_machine_cannot_run_is_in_the_last_line(
    require: str, failed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(check.REQUIRE, require)
    tally = Tally(passed=5)
    tally.add(check.not_run("rdma", MissingError("rdma needs a Debian")))
    assert str(tally) == f"5 passed, {failed} failed; not run: rdma needs a Debian"


def test_a_kernel_that_does_not_build_fails_its_stage_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(say: kernel.Say) -> None:
        raise kernel.KernelError("this step failed: make linux")

    monkeypatch.setattr(guest, "prepare", prepare)
    monkeypatch.setattr(running, "LOGS", tmp_path)
    monkeypatch.setattr(running, "ROOT", tmp_path)
    monkeypatch.delenv(check.REQUIRE, raising=False)
    ctx = Context(1, {}, "3")
    check.prepare_guest(ctx)
    result = check.run_stage("rdma", STAGES["rdma"], ctx, "go", {"PATH": "/bin"})
    assert (result.tally.failed, result.tally.not_run) == (1, [])


def test_ci_requires_the_stage_and_calls_the_one_command() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert 'export REQUIRE="rdma cuda"' in lines
    assert lines[-1] == "exec make test"
    assert re.search(r"^    make test ", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)


def test_go_runs_a_test_in_the_guest_by_its_words() -> None:
    words = shlex.split(guest.launcher(rails=4, limit=90))
    assert words[0] == sys.executable and words[1].endswith("tools/guest.py") and words[-1] == "--"
