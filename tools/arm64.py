"""make test-arm64: the wheel and the Go suite for ARM hosts (GH200, GB200), built here and run by qemu-user.

    arm64.py            both
    arm64.py wheel      an aarch64 abi3 wheel is cross-built, audited, and moves bytes under an ARM Python
    arm64.py suite      the Go suite of core, transports and engines

qemu runs ARM instructions and translates system calls; it is no ARM machine: under it, memory keeps x86's order.
ARM's memory model allows more; the docs of the packages that share memory argue about that, and nothing here tests it.

The cross-compiler and qemu are Debian packages (NEEDED); where this runs as root they are installed, else named. An ARM
Python is downloaded from Debian by apt with a configuration of its own, unpacked under build/arm64, installed nowhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile

import build_gotent
import interpreters
import lint
import wheels
from running import ROOT, SKIPPED, MissingError, Runner, Tally

FOLDER = ROOT / "build" / "arm64"
SYSTEM = FOLDER / "root"
NEEDED = {
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    "qemu-aarch64": "qemu-user",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
}
SUITE = "bookworm"  # the Debian of the ARM Python; its glibc is 2.36 and its Python 3.11
PYTHON = "python3.11"
PACKAGES = (f"{PYTHON}-minimal", f"lib{PYTHON}-stdlib", f"lib{PYTHON}-dev")
APT = """
APT::Architecture "arm64";
APT::Architectures {{ "arm64"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Dir::State "{apt}";
Dir::State::status "{apt}/status";
Dir::Cache "{apt}/cache";
Dir::Etc::sourcelist "{apt}/sources.list";
Dir::Etc::sourceparts "-";
"""
# No transport can move bytes under qemu-user (PACKAGES_OF_GO says why), so the proof ends where one would be chosen.
PROOF = """
import platform, tent
assert platform.machine() == "aarch64"
with tent.Engine(**{"transports/tcp/enable": False}) as engine, engine.open("") as own:
    with engine.allocate(1 << 16, name="kv") as region:
        memoryview(region.view)[:4] = b"kept"
        assert own["kv"].size == region.size == 1 << 16
print(tent.__version__, "made an engine and registered 65536 bytes on", platform.machine())
"""
# The packages of the Go suite. Those that are left out need system calls that qemu-user does not know: transports/tcp
# listens with SO_TIMESTAMPNS, transports/file writes by pwritev2 and io_uring, transports/shm and transports/host/vm
# read other processes by process_vm_readv. tests/go runs engines over these. transports/all has transports whose
# libraries are opened by cgo, without which this suite is built.
PACKAGES_OF_GO = (
    "./gocore/...",
    *(f"./transports/{name}" for name in ("faulty", "host/hazard", "kit", "loop", "sim", "transporttest")),
)
# Tests that cannot pass under qemu-user, by the reason. Each must still exist (tests/tools/test_arm64.py).
EXCEPTIONS: dict[str, tuple[str, ...]] = {
    "the kernel cannot exec an ARM program that a test starts from itself": (
        "TestKilledProcessIsReplacedAtItsPort",
        "TestStoppedProcessIsToldFromAStranger",
        "TestMemoryTakenBackFromKilledCopiersStays",
        "TestMemoryTakenBackFromStoppedCopiersStays",
        "TestProcessThatCalledExecHoldsNothing",
        "TestNumberOfAProcessProvesNothing",
        "TestTheSuiteFindsBrokenTransports",
        "TestAGuardHoldsAfterHandlersWereReplaced",
    ),
    "qemu-user has no sock_diag": ("TestTheKernelKnowsTheOwnerOfEachEnd", "TestOnlyConnectionsInUseHaveAnOwner"),
    "qemu-user has pages of the host below those of the program": (
        "TestMemoryThatNobodyTouchedYetIsNotFree",
        "TestPrefaultStopsWhereThereIsNoRoom",
    ),
    "qemu-user ignores madvise(MADV_DONTFORK)": ("TestForkedChildHasNoSlots",),
    "transports/tcp does not open under qemu-user": ("TestSleepersOfSeveralTransportsAreAlwaysWoken",),
    "a fault in a mapped file ends the program instead of reaching Go": ("TestASpoiledFileEndsSharingAndNothingElse",),
}


# Rules of the conformance suite, by the reason.
RULES = {
    "a fault in a mapped file, see above": ("MemoryThatIsGone.*", "MemoryThatGoes.*", "PiecesOfMemoryThatIsGone.*"),
    "qemu-user refuses mremap(2) of no bytes, which maps pages once more": ("RemappedPages.*",),
}


def require_programs() -> None:
    """The cross-compiler and qemu, installed when this is root. Raises MissingError with the command."""
    missing = [packages for program, packages in NEEDED.items() if shutil.which(program) is None]
    if not missing:
        return
    words = " ".join(missing).split()
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *words]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingError(f"install what builds and runs ARM programs: {' '.join(command)}")
    subprocess.run(["apt-get", "update", "--quiet"], check=True)
    subprocess.run(command, check=True)


def make_system() -> None:
    """An ARM Python with its libraries and headers under SYSTEM, made once."""
    if (SYSTEM / "done").exists():
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    apt = FOLDER / "apt"
    for folder in ("lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "apt.conf").write_text(APT.format(apt=apt))
    key = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (apt / "sources.list").write_text(f"deb [signed-by={key}] http://deb.debian.org/debian {SUITE} main\n")
    env = {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}
    archives = apt / "cache" / "archives"
    subprocess.run(["apt-get", "update", "--quiet=2"], env=env, check=True)
    *runtime, headers = PACKAGES  # the headers' package depends on a compiler, which is here already
    subprocess.run(["apt-get", "--quiet=2", "--yes", "--download-only", "install", *runtime], env=env, check=True)
    subprocess.run(["apt-get", "--quiet=2", "download", headers], env=env, check=True, cwd=archives)
    for package in sorted(archives.glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", str(package), str(SYSTEM)], check=True)
    include = SYSTEM / "usr" / "include"
    # Debian's pyconfig.h includes the machine's one from a folder beside; the compiler gets one folder with that one.
    shutil.copy(include / "aarch64-linux-gnu" / PYTHON / "pyconfig.h", include / PYTHON / "pyconfig.h")
    (SYSTEM / "done").touch()


def wheel() -> None:
    """Builds the wheel for aarch64, compares its tag with its symbols, and moves bytes with it."""
    require_programs()
    make_system()
    cross = {build_gotent.CROSS: "aarch64", build_gotent.CROSS_INCLUDE: str(SYSTEM / "usr" / "include" / PYTHON)}
    built = wheels.build(interpreters.tools_python(), FOLDER / "wheel", **cross)
    print(wheels.audit(built), flush=True)
    site = FOLDER / "site"
    shutil.rmtree(site, ignore_errors=True)
    with zipfile.ZipFile(built) as archive:
        archive.extractall(site)
    command = ["qemu-aarch64", "-L", str(SYSTEM), str(SYSTEM / "usr" / "bin" / PYTHON), "-c", PROOF]
    subprocess.run(command, env={"PYTHONPATH": str(site), "PATH": os.defpath}, check=True, timeout=120, cwd="/")


def skip_pattern() -> str:
    """One regular expression for go test -skip."""
    tests = [f"^{name}$" for names in EXCEPTIONS.values() for name in names]
    rules = [f"^TestConformance/^{name}$" for names in RULES.values() for name in names]
    wrapped = [f"^TestConformance/./^{name}$" for names in RULES.values() for name in names]
    return "|".join([*tests, *rules, *wrapped])


def suite() -> Tally:
    """The Go suite, without cgo, so that the programs need no library of the machine."""
    require_programs()
    go = interpreters.go_command()
    env = build_gotent.go_env(go)
    lint.build_programs(go, env)
    runner = Runner("arm64-suite", go, {**env, "GOARCH": "arm64", "CGO_ENABLED": "0"})
    tally = runner.go_test(
        PACKAGES_OF_GO, "-short", "-exec=qemu-aarch64", f"-skip={skip_pattern()}", timeout=560, TENT_SIM_SEEDS="20"
    )
    if tally.failed:
        runner.show()
    return tally


def main() -> int:
    what = sys.argv[1:] or ["wheel", "suite"]
    try:
        if "wheel" in what:
            wheel()
        if "suite" not in what:
            return 0
        tally = suite()
        print(f"the Go suite under qemu: {tally}")
        return 1 if tally.failed else 0
    except MissingError as error:
        print(error)
        return SKIPPED
    except (ValueError, subprocess.SubprocessError) as error:
        print(error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
