"""Compares tent over RDMA with a plain C program: in the test guest, or with --check on the devices of this machine.

    bench_rdma.py [ARGUMENTS]                    in the guest; arguments are those of tests/bench/rdma
    bench_rdma.py --check [--pairs NEAR:FAR,...] the suite and the comparison on real devices, and a page of the results

Without --pairs each device is its own peer, which needs one port and no cable.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import build_gotent
import guest
import interpreters
import kernel
from running import MissingError

ROOT = build_gotent.ROOT
PROGRAM = ROOT / "build" / "bench" / "rdma"
PAGE = ROOT / "build" / "check-rdma.md"
DEVICES = Path("/sys/class/infiniband")
GUEST_S = 3500.0


def build() -> dict[str, str]:
    """Builds the benchmark, and returns the environment of Go."""
    go = interpreters.go_command()
    env = build_gotent.go_env(go)
    subprocess.run([go, "build", "-o", PROGRAM, "./tests/bench/rdma"], cwd=ROOT, env=env, check=True)
    return env


def in_guest(arguments: list[str]) -> int:
    """Runs the comparison over four rails of Soft-RoCE. Rows of -json FILE replace those of their names in the file."""
    try:
        guest.prepare(lambda text: print(text, flush=True))
    except (MissingError, kernel.KernelError, kernel.LateError) as error:
        print(error, file=sys.stderr)
        return 1
    build()
    arguments, table = list(arguments), None
    if "-json" in arguments:
        at = arguments.index("-json") + 1
        table, arguments[at] = Path(arguments[at]), guest.BROUGHT
    with tempfile.TemporaryDirectory() as folder:
        brought = Path(folder) / "table.json"
        status = guest.run([str(PROGRAM), *arguments], rails=4, limit=GUEST_S, brought=brought)
        if table and brought.exists():
            join(table, json.loads(brought.read_text(encoding="utf-8")))
    return status


def join(table: Path, fresh: dict[str, Any]) -> None:
    """Puts the rows of a run into a table, in which the parts of other runs stay."""
    rows = {}
    if table.exists():
        rows = {row["name"]: row for row in json.loads(table.read_text(encoding="utf-8"))["rows"]}
    rows |= {row["name"]: row for row in fresh["rows"]}
    whole = fresh | {"command": f'make bench-rdma ARGS="-json {table}"', "rows": list(rows.values())}
    table.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def missing(devices: list[str]) -> list[str]:
    """The reasons for which real devices cannot be checked here."""
    found = []
    if not devices:
        found.append(f"an RDMA device: {DEVICES} is empty (`make test-rdma` needs none)")
    for command, package in (("gcc", "gcc libc6-dev"), ("ibv_devinfo", "ibverbs-utils")):
        if shutil.which(command) is None:
            found.append(f"{command}: apt-get install {package}")
    if not Path("/usr/include/infiniband/verbs.h").exists():
        found.append("the headers for the C program: apt-get install libibverbs-dev")
    return found


def output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip()


def on_devices(pairs: str, arguments: list[str]) -> int:
    """Runs the suite and the comparison on the devices of this machine, and writes the page."""
    devices = sorted(path.name for path in DEVICES.glob("*"))
    if lacking := missing(devices):
        print("check-rdma needs\n" + "\n".join(f"* {each}" for each in lacking), file=sys.stderr)
        return 1
    env, go = build(), interpreters.go_command()
    guest.FOLDER.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["gcc", "-O2", "-Wall", "-o", guest.FOLDER / "crdma", guest.VERBS[0], "-libverbs"], cwd=ROOT, check=True
    )
    suite = subprocess.run(
        [go, "test", "-count=1", "-v", "-run=OnDevices", "./transports/rdma"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
    )
    pairs = pairs or ",".join(f"{name}:{name}" for name in devices)
    table = subprocess.run([PROGRAM, "-pairs", pairs, *arguments], cwd=ROOT, capture_output=True, text=True)
    verdicts = "\n".join(line for line in suite.stdout.splitlines() if line.lstrip().startswith(("---", "ok", "FAIL")))
    sections = {
        "Machine": f"{platform.platform()}\n{time.strftime('%Y-%m-%d')}",
        "Devices": output("ibv_devinfo"),
        "Suite": verdicts or suite.stderr,
        f"Comparison over {pairs}": table.stdout + table.stderr,
    }
    parts = [f"## {title}\n\n```text\n{text}\n```\n" for title, text in sections.items()]
    PAGE.write_text("\n".join(["# tent over RDMA\n", *parts]), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: a page of results to send in")
    return suite.returncode or table.returncode


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] != ["--check"]:
        return in_guest(arguments)
    pairs = ""
    if arguments[1:2] == ["--pairs"]:
        pairs, arguments = arguments[2], arguments[2:]
    return on_devices(pairs, arguments[1:])


if __name__ == "__main__":
    sys.exit(main())
