"""The command: `tent doctor`, `tent topo`, `tent serve`, `tent bench` (also `python -m tent`)."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time

import tent

from . import _native, _text


def doctor(options: argparse.Namespace) -> int:
    """Prints the findings of each transport on this machine: parts that are missing, and why they matter."""
    checks = json.loads(_native.call(_native.load().pybind_Doctor))["checks"]
    if options.json:
        print(json.dumps(checks, indent=2))
    else:
        for check in checks:
            print(f"{'ok  ' if check['ok'] else 'no  '} {check['name']}: {check['reason']}")
            if not check["ok"] and check.get("matters"):
                print(f"       {check['matters']}")
    return 0


def topo(options: argparse.Namespace) -> int:
    """Prints the devices and memories of this machine, as JSON."""
    with tent.Engine(options.config) as engine:
        print(json.dumps(engine.topology(), indent=2))
    return 0


def serve(options: argparse.Namespace) -> int:
    """Offers a region of memory until it is interrupted."""
    with tent.Engine(options.config, name=options.name) as engine:
        region = engine.allocate(options.size, name=options.region)
        print(f"{engine.address}/{region.name}", flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            for note in engine.notifications:
                print(f"{note.peer} {note.name}: {note.message}", flush=True)
        except KeyboardInterrupt:
            pass
    return 0


def bench(options: argparse.Namespace) -> int:
    """Measures WRITE and READ to a peer that runs `tent serve`."""
    with tent.Engine(options.config) as engine, engine.open(options.target) as peer:
        local = engine.allocate(options.size)
        remote = peer[: options.size]
        for name, move in (("WRITE", engine.write), ("READ", engine.read)):
            move(local, remote).result()  # links and pages are warm from here on
            took = []
            for _ in range(options.rounds):
                began = time.perf_counter_ns()
                move(local, remote).result()
                took.append(time.perf_counter_ns() - began)
            took.sort()
            p50, p99 = took[len(took) // 2], took[min(len(took) - 1, len(took) * 99 // 100)]
            rate = options.size / p50
            print(
                f"{name:5} {_text.size(options.size)}: {rate:.2f} GB/s, "
                f"p50 {_text.duration(p50)}, p99 {_text.duration(p99)}"
            )
    return 0


def size(text: str) -> int:
    """Bytes from "4096", "64K", "1M" or "2G"."""
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1:].upper())
    n = int(text[:-1]) << unit if unit else int(text)
    if n < 1:
        raise ValueError(text)
    return n


def main(arguments: list[str] | None = None) -> int:
    """The entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="tent", description="Moves bytes between memories of processes and machines.")
    parser.add_argument("--version", action="version", version=f"tent {tent.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    def add(function: object, *flags: tuple[str, dict[str, object]]) -> None:
        command = commands.add_parser(function.__name__, help=function.__doc__)  # type: ignore[attr-defined]
        command.set_defaults(function=function)
        for flag, keywords in flags:
            command.add_argument(flag, **keywords)  # type: ignore[arg-type]

    config: tuple[str, dict[str, object]] = ("--config", {"help": "settings: a path or JSON text"})
    add(doctor, ("--json", {"action": "store_true", "help": "print JSON"}))
    add(topo, config)
    add(
        serve,
        config,
        ("--name", {"help": "the engine's name"}),
        ("--region", {"default": "memory", "help": "the region's name"}),
        ("--size", {"type": size, "default": 64 << 20, "help": "its bytes, for example 64M"}),
    )
    add(
        bench,
        config,
        ("target", {"help": "host:port/region of a peer"}),
        ("--size", {"type": size, "default": 1 << 20, "help": "bytes a transfer"}),
        ("--rounds", {"type": int, "default": 100}),
    )
    options = parser.parse_args(arguments)
    try:
        return int(options.function(options))
    except tent.TentError as error:
        print(f"tent: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
