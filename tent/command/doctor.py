"""`tent doctor`: this machine, the findings of each transport on it, and a verdict."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import tent

from .. import _native, _text, settings
from . import guest, pair
from .pair import LIMITED, NOT_READY, READY, STATUS

NEEDED = "needed"  # without it no other machine can be reached
ADVISED = "advised"  # without it something is slow, or takes another way
OPTIONAL = "optional"  # hardware that not every machine has

# Of transports; the others are advised.
WEIGHTS = {"tcp": NEEDED} | dict.fromkeys(("nvlink", "mnnvl", "acl", "ascend_direct", "rdma", "gds"), OPTIONAL)

RDMA_FOLDER = "/sys/class/infiniband"
MEMLOCK_ENOUGH = 1 << 30  # an RDMA device pins the regions; less than this holds no KV cache


@dataclass
class Check:
    """One part of the machine. `reason` says why it cannot be used, and is empty when it can; then `found` describes
    it. `matters` names the loss without it, and the cure."""

    name: str
    weight: str
    reason: str = ""
    matters: str = ""
    found: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.reason


def run(options: argparse.Namespace) -> int:
    """Lists the findings of tent on this machine, and the missing parts; with --peer, checks the way to a peer."""
    if options.peer is not None:
        return pair.run(options)
    engine = json.loads(_native.call(_native.load().pybind_Doctor, _native.environment()))
    machine = describe(engine)
    config = settings.layers(options.config, {})[0] or None  # read once: several checks need it, and it may be a pipe
    checks = [*transports(engine), *names(config), *surroundings(engine, machine, config)]
    verdict = judge(checks)
    if options.json:
        listed = [{**asdict(check), "ok": check.ok} for check in checks]
        print(json.dumps({"verdict": verdict, "machine": machine, "checks": listed}, indent=2))
    else:
        print("\n".join([*machine_lines(machine), *check_lines(checks), "", f"verdict: {verdict}{why(checks)}"]))
    return STATUS[verdict]


def describe(engine: dict[str, Any]) -> dict[str, Any]:
    """Versions, and the machine's limits for this process; None where the kernel does not say."""
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    memory = {
        line.split(":")[0]: int(line.split()[1]) << 10 for line in read("/proc/meminfo").splitlines() if "kB" in line
    }
    sizes: list[int | None]
    try:
        shm = os.statvfs("/dev/shm")
        sizes = [shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize]
    except OSError:
        sizes = [None, None]
    quota = read("/sys/fs/cgroup/cpu.max").split()
    return {
        "tent": tent.__version__,
        "wire": engine["wire"],
        "python": platform.python_version(),
        "go": engine["go"],
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "cores_of_machine": os.cpu_count(),
        "cpu_quota": int(quota[0]) / int(quota[1]) if len(quota) == 2 and quota[0] != "max" else None,
        "memory_bytes": memory.get("MemTotal"),
        "memory_available_bytes": memory.get("MemAvailable"),
        "memlock_bytes": None if memlock == resource.RLIM_INFINITY else memlock,
        "shm_bytes": sizes[0],
        "shm_free_bytes": sizes[1],
        "congestion": read("/proc/sys/net/ipv4/tcp_congestion_control"),
        "congestions": read("/proc/sys/net/ipv4/tcp_available_congestion_control").split(),
    }


def machine_lines(machine: dict[str, Any]) -> Iterator[str]:
    def size(key: str) -> str:
        return "unknown" if machine[key] is None else _text.size(machine[key])

    quota = "" if machine["cpu_quota"] is None else f", quota {machine['cpu_quota']:g}"
    memlock = "no limit" if machine["memlock_bytes"] is None else size("memlock_bytes")
    shm = "absent" if machine["shm_bytes"] is None else f"{size('shm_bytes')}, {size('shm_free_bytes')} free"
    choices = ", ".join(machine["congestions"]) or "unknown"
    yield (
        f"tent {machine['tent']} (wire {machine['wire']}), Python {machine['python']}, Go {machine['go']}, "
        f"Linux {machine['kernel']} {machine['architecture']}"
    )
    yield ""
    yield f"cores               {machine['cores']} of {machine['cores_of_machine']}{quota}"
    yield f"memory              {size('memory_bytes')}, {size('memory_available_bytes')} available"
    yield f"locked memory       {memlock}"
    yield f"/dev/shm            {shm}"
    yield f"congestion control  {machine['congestion'] or 'unknown'}; to choose from: {choices}"
    yield ""


def transports(engine: dict[str, Any]) -> Iterator[Check]:
    """The findings of each transport of this build, or the reason why it cannot work here."""
    for found in engine["transports"]:
        yield Check(
            f"transport {found['name']}",
            WEIGHTS.get(found["name"], ADVISED),
            found["reason"],
            "a way to move bytes is missing; transfers take the others, as far as these can",
            found["found"],
        )
        for part in found["parts"]:
            yield Check(part["name"], ADVISED, part["reason"], part["matters"], part["found"])


def registration(config: str | None) -> Check:
    """Registers a page for a moment: a transport that cannot use memory here says why."""
    check = Check("registered memory", ADVISED, matters="regions live on the other transports, which may be slower")
    try:
        with guest.engine(config) as engine, engine.allocate(4096) as page:
            states = page.transports
    except tent.TentError as error:
        check.reason = str(error)
        return check
    check.found = [f"transport {name} uses it" for name, state in states.items() if state == "ready"]
    check.reason = "; ".join(f"{name}: {state}" for name, state in states.items() if state != "ready")
    return check


def names(config: str | None) -> Iterator[Check]:
    """Publishes a name for a moment in the metadata service of the settings, and finds it; nothing without one."""
    name = f"tent-doctor-{os.getpid()}-{os.urandom(4).hex()}"
    check = Check("metadata service", NEEDED, matters="engines neither start there nor find each other by name")
    try:
        with guest.engine(config, listed_as=name) as engine:
            kind, servers = (engine.config[f"metadata_{key}"].value for key in ("type", "servers"))
            if kind == "p2p":
                return
            engine.open(name).close()
            check.found = [f"{kind} at {servers} lists names"]
    except tent.MetadataError as error:
        check.reason = str(error)
    yield check


def surroundings(engine: dict[str, Any], machine: dict[str, Any], config: str | None) -> Iterator[Check]:
    """The rest of the machine, as far as it changes how fast or how safe transfers are."""
    cores = Check("processor cores", ADVISED, found=[f"{machine['cores']} for this process"])
    if machine["cores"] < 2:
        cores.reason = "there is one for this process"
        cores.matters = "a waiter looks for its own completions only beside a second core; transfers have longer tails"
    yield cores

    congestion = Check("congestion control", ADVISED, found=["tcp takes cubic or reno on one host"])
    if not {"cubic", "reno"} & set(machine["congestions"]):
        congestion.reason = (
            f"neither cubic nor reno can be chosen, only {' '.join(machine['congestions']) or 'unknown'}"
        )
        congestion.matters = "bbr paces even on loopback, which halves the rate there; load the module tcp_cubic"
    yield congestion

    yield registration(config)

    yield Check(
        "shared memory",
        ADVISED,
        engine["shared"],
        "processes of a host share time slots and the load of NICs in it (shared_quota_shm_path)",
        ["processes of this host can share /dev/shm"],
    )

    devices = sorted(os.listdir(RDMA_FOLDER)) if os.path.isdir(RDMA_FOLDER) else []
    yield Check(
        "RDMA devices",
        OPTIONAL,
        "" if devices else f"{RDMA_FOLDER} is empty or absent",
        "RDMA saves the processor",
        devices,
    )
    if devices and machine["memlock_bytes"] is not None and machine["memlock_bytes"] < MEMLOCK_ENOUGH:
        reason = f"the limit is {_text.size(machine['memlock_bytes'])}"
        yield Check("locked memory", ADVISED, reason, "RDMA pins regions; raise it: ulimit -l unlimited")

    for found in engine["platforms"]:
        reason, matters = found["reason"], "memory of its devices is not recognised, nor allocated"
        yield Check(f"devices of {found['name']}", OPTIONAL, reason, matters, found["found"])


def judge(checks: list[Check]) -> str:
    """The verdict: a needed part is missing, an advised one, or none of these."""
    missing = {check.weight for check in checks if not check.ok}
    return NOT_READY if NEEDED in missing else LIMITED if ADVISED in missing else READY


def why(checks: list[Check]) -> str:
    names = [check.name for check in checks if not check.ok and check.weight != OPTIONAL]
    return f" (without {', '.join(names)})" if names else ""


def check_lines(checks: list[Check]) -> Iterator[str]:
    width = max(len(check.name) for check in checks) + 2
    for check in checks:
        mark = "ok" if check.ok else "-" if check.weight == OPTIONAL else "no"
        lines = check.found if check.ok else [check.reason, check.matters]
        yield f"{mark:3} {check.name:{width}}{lines[0] if lines else ''}".rstrip()
        for line in lines[1:]:
            yield f"{'':3} {'':{width}}{line}"


def read(path: str) -> str:
    """The text of a small file without the space around it, "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
