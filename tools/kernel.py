"""The kernel of the test guest: User-Mode Linux with Soft-RoCE, an ordinary program of 6 MB, built once.

    kernel.py           prints its path, and builds it when it is missing: four to seven minutes on two processors

The source is Debian's package linux-source-6.12, which apt downloads. The kernel stays in the folder that
TENT_GUEST_CACHE names, else in ~/.cache/tent-guest, where every clone finds it. Its name depends on
kernel.config and kernel.patch of tests/guest and on this recipe, not on the point release of the source: a security
update starts no build in the middle of a test run.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import build_gotent
from running import MissingError, end_group

SOURCE = "linux-source-6.12"
RECIPE = 1  # another number builds another kernel from the same options
CONFIG = build_gotent.ROOT / "tests" / "guest" / "kernel.config"
PATCH = CONFIG.with_suffix(".patch")
CACHE = "TENT_GUEST_CACHE"
FILES = 850  # that are compiled, for the progress
TURN_S = 30.0  # between two lines of progress
ROOM = 2 << 30  # bytes that a build in memory needs
LIMIT_S = 3600  # a machine of two processors needs 300, one with ten neighbours that compile too 2500
# Folders of the source that are unpacked. Of the others only the files that describe the configuration are needed, and
# to unpack all 87,000 files takes longer than to compile.
KEPT = re.compile(
    "(arch/(um|x86)|block|certs|crypto|include|init|io_uring|ipc|kernel|lib|mm|net|scripts|security|usr|virt"
    "|drivers/(base|char|dma-buf|infiniband/(core|sw)|of|pci|pps|ptp|tty|virtio)|tools/(include|lib)"
    "|fs/(autofs|configfs|crypto|debugfs|devpts|exportfs|hostfs|iomap|kernfs|lockd|nls|notify|overlayfs|proc|quota"
    "|ramfs|sysfs|tracefs|unicode|verity))/"
)
LOOSE = ("drivers/net", "drivers/infiniband", "fs", "drivers", "")  # folders of which the files are unpacked
DESCRIBES = re.compile(r"(Kconfig|Kbuild|Makefile)[^/]*$")

Say = Callable[[str], None]


class KernelError(RuntimeError):
    """The step that failed, and the log."""


class LateError(RuntimeError):
    """A build that takes longer than any machine needs."""


def cache() -> Path:
    """The folder of kernels."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tent-guest"
    return Path(os.environ.get(CACHE) or usual)


def options() -> str:
    """The options without their comments."""
    lines = CONFIG.read_text(encoding="utf-8").splitlines()
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("#"))


def path() -> Path:
    """Where the kernel of these options is, or will be."""
    key = hashlib.sha256(f"{RECIPE}\n{PATCH.read_text(encoding='utf-8')}\n{options()}".encode()).hexdigest()[:12]
    return cache() / f"{SOURCE.replace('-source', '')}-{key}"


def wanted(name: str) -> bool:
    """Whether a file of the source is unpacked; its name begins with the folder of the whole."""
    inside = name.partition("/")[2]
    return bool(DESCRIBES.search(inside) or inside.rpartition("/")[0] in LOOSE or KEPT.match(inside))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One build at a time: two clones may want the same kernel."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def workshop(folder: Path) -> Iterator[Path]:
    """A folder to build in, removed afterwards: in memory where there is room, since 20,000 files come and go."""
    shm = Path("/dev/shm")
    roomy = os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > 2 * ROOM
    with tempfile.TemporaryDirectory(prefix="tent-kernel-", dir=shm if roomy else folder) as work:
        yield Path(work)


class Build:
    """One build; its steps write a log, and a failed one says its name and the log's path."""

    def __init__(self, work: Path, log: Path, say: Say) -> None:
        self.work = work
        self.log = log
        self.say = say
        self.begin = time.monotonic()
        log.write_text("")

    def step(self, name: str, *command: object, **env: str) -> None:
        """Runs a command to its end, and says now and then how far it is."""
        with self.log.open("a", encoding="utf-8") as log:
            print(f"=== {name}: {' '.join(map(str, command))}", file=log, flush=True)
            process = subprocess.Popen(
                list(map(str, command)),
                cwd=self.work,
                env={**os.environ, "LC_ALL": "C", "TMPDIR": str(self.work), **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                while True:
                    try:
                        code = process.wait(TURN_S)
                        break
                    except subprocess.TimeoutExpired:
                        self.progress(name)
            finally:
                end_group(process)  # a compiler that outlives its make would write on
        if code:
            raise self.error(name)

    def progress(self, name: str) -> None:
        spent = time.monotonic() - self.begin
        if spent > LIMIT_S:
            raise LateError(str(self.error(f"{name}, which was not done after {LIMIT_S} s")))
        done = len(re.findall(r"^  (?:CC|AS) ", self.log.read_text(encoding="utf-8", errors="replace"), re.M))
        self.say(f"the guest's kernel: {name}, {spent:.0f} s; {done} of about {FILES} files are compiled")

    def error(self, name: str) -> KernelError:
        end = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
        return KernelError("\n".join([*end, f"the guest's kernel: this step failed: {name}; the log is {self.log}"]))

    def download(self) -> Path:
        """The package of the source, by apt. Raises MissingError."""
        try:
            self.step("download", "apt-get", "-q", "download", SOURCE)
        except KernelError:
            text = f"rdma needs the package {SOURCE}: `apt-get download` failed (was there an `apt-get update`?)"
            raise MissingError(f"{text}; the log is {self.log}") from None
        (package,) = self.work.glob(f"{SOURCE}_*.deb")
        return package

    def unpack(self, package: Path, choose: Callable[[str], bool]) -> None:
        """The files of the source that are chosen, into the folder source."""
        shutil.rmtree(self.work / "source", ignore_errors=True)
        archive = self.work / "source.tar.xz"
        if not archive.exists():
            inner = f"./usr/src/{SOURCE}.tar.xz"
            script = f"dpkg-deb --fsys-tarfile '{package.name}' | tar -xOf - '{inner}' > {archive.name}"
            self.step("unpacking the package", "bash", "-o", "pipefail", "-c", script)
        with subprocess.Popen(["xz", "-dc", archive], stdout=subprocess.PIPE) as xz:
            with tarfile.open(fileobj=xz.stdout, mode="r|") as tar:
                tar.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)  # links within the tree
                tar.extractall(self.work, members=(m for m in tar if m.isdir() or choose(m.name)))
        (unpacked,) = self.work.glob("linux-source-*/")
        unpacked.rename(self.work / "source")
        # A hunk that does not fit is an error: a newer source may need none.
        self.step(f"the changes of {PATCH.name}", "patch", "-d", "source", "-p1", "--fuzz=0", "--forward", "-i", PATCH)

    def compile(self) -> Path:
        """The kernel, stripped."""
        shutil.rmtree(self.work / "build", ignore_errors=True)
        (self.work / "options").write_text(options(), encoding="utf-8")
        make = ("make", "-C", self.work / "source", "ARCH=um", f"O={self.work / 'build'}")
        answers = {"KCONFIG_ALLCONFIG": str(self.work / "options")}
        self.step("make allnoconfig", *make, "-s", "allnoconfig", **answers)
        if "CONFIG_RDMA_RXE=y\n" not in (self.work / "build" / ".config").read_text(encoding="utf-8"):
            raise self.error("make allnoconfig (Soft-RoCE is not in its result)")
        self.step("make linux", *make, "KCFLAGS=-pipe", f"-j{os.cpu_count() or 1}", "linux")
        kernel = self.work / "build" / "linux"
        self.step("strip", "strip", kernel)
        return kernel


def build(say: Say) -> Path:
    """The kernel's path; builds it when it is missing. Raises KernelError, LateError, and MissingError for a machine
    where apt has no source."""
    target = path()
    with locked(cache()):
        if target.exists():
            return target
        say(f"the guest's kernel is built once, in four to seven minutes on two processors: {target}")
        with workshop(cache()) as work:
            job = Build(work, cache() / "build.log", say)
            package = job.download()
            job.unpack(package, wanted)
            try:
                kernel = job.compile()
            except KernelError:
                say("the guest's kernel: it is compiled once more, with all of the source")
                job.unpack(package, lambda name: True)
                kernel = job.compile()
            shutil.copy(work / "build" / ".config", target.with_name(f"{target.name}.config"))
            shutil.copy(kernel, target.with_name(f"{target.name}.new"))
            target.with_name(f"{target.name}.new").rename(target)
        say(f"the guest's kernel is built, in {time.monotonic() - job.begin:.0f} s")
    return target


def main() -> int:
    try:
        print(build(lambda text: print(text, file=sys.stderr, flush=True)))
    except (KernelError, LateError, MissingError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
