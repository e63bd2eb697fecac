"""A test guest: Linux as a program, with rails of Soft-RoCE, in which one command runs to its end.

    guest.py [--rails 4] [--limit 600] -- COMMAND [ARGUMENT ...]
    go test -exec "python3 $PWD/tools/guest.py --rails 4 --" ./tests/rdma      each package in a guest of its own
    guest.py --prepare                      installs and builds everything that it needs, which takes minutes once

The command sees the host's files and may write any of them: the guest keeps that to itself and forgets it. Its output
and its exit status are given back; 124 says that the limit of time was over, 125 that the guest died. Of the
environment it gets PATH, HOME, LANG and the variables of tent and Go; TENT_GUEST is the number of rails.

The guest has one processor, and no /dev, network or process of the host. It needs no root and no KVM.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import build_gotent
import interpreters
import kernel
from running import MissingError

ROOT = build_gotent.ROOT
FOLDER = ROOT / "build" / "guest"
INIT = FOLDER / "init"
VERBS = (ROOT / "tests" / "bench" / "crdma.c", ROOT / "tests" / "roce" / "flow" / "flow.c")
PROGRAMS = ("./tests/guest/init", "./tests/roce/railctl")
TIMED_OUT, DIED = 124, 125
COLD = 420  # seconds that packages and kernel may take where there is neither
KEPT = ("PATH", "HOME", "LANG")
KEPT_PREFIXES = ("TENT_", "GO")
MEMORY_ROOM = 1 << 30  # bytes; a small /dev/shm, as containers have, would end the guest by SIGBUS
APT = threading.Lock()  # its own lock makes the second one fail
# The packages of Debian, by a file of each.
LIBRARY = {
    "/usr/include/infiniband/verbs.h": "libibverbs-dev",
    "/etc/libibverbs.d/rxe.driver": "ibverbs-providers",
    "/usr/bin/gcc": "gcc libc6-dev",
}
BUILDING = {
    "/usr/bin/make": "make",
    "/usr/bin/flex": "flex",
    "/usr/bin/bison": "bison",
    "/usr/bin/bc": "bc",
    "/usr/bin/patch": "patch",
    "/usr/bin/xz": "xz-utils",
    "/usr/bin/strip": "binutils",
}


def install(log: Path) -> None:
    """Installs the guest's packages, and those of the kernel's build where that is to come."""
    if os.uname().machine != "x86_64":
        raise MissingError("rdma needs an x86-64 host: the kernel of its guest is built for no other")
    building = not kernel.path().exists()
    install_packages("rdma", {**LIBRARY, **BUILDING} if building else LIBRARY, log, update=building)


def install_packages(stage: str, needed: dict[str, str], log: Path, *, update: bool = False) -> None:
    """Installs the packages whose files this machine lacks, where this is root on a Debian. Raises MissingError, with
    the command or the log."""
    packages = " ".join(names for file, names in needed.items() if not Path(file).exists()).split()
    if not packages and not update:
        return
    if shutil.which("apt-get") is None:
        raise MissingError(f"{stage} needs a Debian, for the packages: {' '.join(packages or needed.values())}")
    if os.geteuid() == 0:
        with APT:
            apt(log, stage, "update")
            if packages:
                apt(log, stage, "install", "--yes", "--no-install-recommends", *packages)
    elif packages:
        raise MissingError(f"{stage} needs packages: apt-get install --no-install-recommends {' '.join(packages)}")


def apt(log: Path, stage: str, *words: str) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with log.open("ab") as output:
        done = subprocess.run(["apt-get", *words], env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    if done.returncode:
        raise MissingError(f"{stage} needs `apt-get {' '.join(words)}` to succeed: the log is {log}")


def prepare(say: kernel.Say) -> None:
    """Installs the packages, builds the kernel where it is missing, and the guest's own programs. Raises MissingError
    for a machine that cannot have the guest, KernelError or LateError for a build that failed."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    install(FOLDER / "apt.log")
    kernel.build(say)
    go = interpreters.go_command()
    env = {**build_gotent.go_env(go), "CGO_ENABLED": "0"}
    subprocess.run([go, "build", "-o", f"{FOLDER}{os.sep}", *PROGRAMS], cwd=ROOT, env=env, check=True)
    for source in VERBS:
        compiler = ("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", FOLDER / source.stem, source, "-libverbs")
        subprocess.run(compiler, cwd=ROOT, check=True)


def launcher(rails: int, limit: float) -> str:
    """The words for `go test -exec`."""
    return shlex.join([sys.executable, str(Path(__file__).resolve()), f"--rails={rails}", f"--limit={limit:.0f}", "--"])


def environment() -> list[str]:
    """The variables that the command gets."""
    return [f"{k}={v}" for k, v in os.environ.items() if k in KEPT or k.startswith(KEPT_PREFIXES)]


def memory_folder() -> str:
    """Where the guest's memory lies, as a file without blocks."""
    shm = "/dev/shm"
    roomy = os.access(shm, os.W_OK) and shutil.disk_usage(shm).free >= MEMORY_ROOM
    return shm if roomy else tempfile.gettempdir()


def one_processor() -> list[str]:
    """The words that keep a command on one processor of this machine, any of those that it may use.

    The guest's kernel and the program inside are two processes of the host, and each system call is a switch to the
    other and back. That takes 5 µs on one processor and 40 µs across two, because the idle one is woken each time.
    """
    return ["taskset", "--cpu-list", str(random.choice(sorted(os.sched_getaffinity(0))))]


class Guest:
    """One run of a command. Its folder is the guest's /ctl (tests/guest/init)."""

    def __init__(self, folder: Path, command: Sequence[str], rails: int) -> None:
        self.folder = folder
        self.output = folder / "output"
        self.output.touch()
        order = {"Command": list(command), "Folder": os.getcwd(), "Environment": environment(), "Rails": rails}
        (folder / "order.json").write_text(json.dumps(order), encoding="utf-8")
        (folder / "init").symlink_to(INIT)  # words of the kernel's command line have no spaces

    def arguments(self, memory: str) -> list[str]:
        """The kernel's command line. Its console is our standard output, which goes to a file."""
        root = ("root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro")
        console = ("quiet", "loglevel=5", "con=null", "con0=null,fd:1")
        management = (f"uml_dir={self.folder}/", "umid=guest")
        return [f"mem={memory}", *root, f"init={self.folder}/init", f"ctl={self.folder}", *management, *console]

    def run(self, limit: float, memory: str) -> int:
        """Boots, copies the output as it comes, and returns the status of the command."""
        deadline = time.monotonic() + limit
        env = {**os.environ, "TMPDIR": str(self.folder.parent)}
        with (self.folder / "console").open("wb") as console, self.output.open("rb") as output:
            process = subprocess.Popen(
                # However this process ends, the kernel of the host ends the guest then.
                [*one_processor(), "setpriv", "--pdeathsig", "KILL", kernel.path(), *self.arguments(memory)],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )
            try:
                ended = False
                while not ended and time.monotonic() < deadline:
                    ended = wait(process, 0.02)
                    shutil.copyfileobj(output, sys.stdout.buffer)
                    sys.stdout.buffer.flush()
            finally:
                process.kill()
                process.wait()
        status = self.folder / "status"  # the kernel's own exit status is not the command's
        return int(status.read_text()) if status.exists() else DIED if ended else TIMED_OUT

    def console(self) -> str:
        return (self.folder / "console").read_text(encoding="utf-8", errors="replace")


def wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


BROUGHT = "/ctl/brought"  # a file that a command leaves for run


def run(
    command: Sequence[str],
    rails: int,
    limit: float,
    memory: str = "2G",
    console: bool = False,
    brought: Path | None = None,
) -> int:
    """Runs a command in a guest of its own and returns its status. The guest forgets files, but for BROUGHT."""
    if lacking := [str(file) for file in (kernel.path(), INIT) if not file.exists()]:
        print(f"guest: there is no {' and no '.join(lacking)}: run `tools/guest.py --prepare` first", file=sys.stderr)
        return DIED
    with tempfile.TemporaryDirectory(prefix="tent-guest-", dir=memory_folder()) as folder:
        guest = Guest(Path(folder), command, rails)
        status = guest.run(limit, memory)
        if brought and (left := guest.folder / Path(BROUGHT).name).exists():
            shutil.copy(left, brought)
        if status == TIMED_OUT:
            print(f"guest: the command did not end within {limit:.0f} s", file=sys.stderr)
        if console or status in (TIMED_OUT, DIED):
            print(f"--- the guest's console\n{guest.console()}---", file=sys.stderr)
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs a command in a guest that has rails of Soft-RoCE.")
    parser.add_argument("--prepare", action="store_true", help="install and build what the guest needs")
    parser.add_argument("--rails", type=int, default=2, help="each with a device at both ends (2)")
    parser.add_argument("--limit", type=float, default=600, help="seconds until the guest is ended (600)")
    parser.add_argument("--memory", default="2G", help="of the guest (2G)")
    parser.add_argument("--console", action="store_true", help="print the kernel's messages as well")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="runs in this folder")
    args = parser.parse_args()
    if args.prepare:
        try:
            prepare(lambda text: print(text, flush=True))
        except (MissingError, kernel.KernelError, kernel.LateError) as error:
            print(error, file=sys.stderr)
            return 1
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    for number in (signal.SIGTERM, signal.SIGQUIT):  # go test asks a program that is late so
        signal.signal(number, lambda *_: sys.exit(TIMED_OUT))
    return run(command, args.rails, args.limit, args.memory, args.console) if command or not args.prepare else 0


if __name__ == "__main__":
    sys.exit(main())
