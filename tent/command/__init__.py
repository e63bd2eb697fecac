"""The command `tent`, also `python -m tent`: doctor, topo, plan, serve, bench, top, run, compat."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import tent

from .. import compat, quantities
from . import bench, doctor, plan, serve, stacks, top, topo

Flag = tuple[str, dict[str, Any]]
Add = Callable[..., None]  # of a command: its word, its function, its flags

CONFIG: Flag = ("--config", {"help": "settings: a path or JSON text"})


def size(text: str) -> int:
    """Bytes, at least 1: "4096", "64MiB", "8MB", "2G"."""
    try:
        return quantities.bytes_of(text, "it", least=1)
    except tent.InvalidArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def several(of: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """A type of argparse: values with commas between them."""

    def values(text: str) -> list[Any]:
        return [of(word.strip()) for word in text.split(",")]

    return values


def one_of(known: Any) -> Callable[[str], str]:
    """A type of argparse: one of these words."""

    def word(text: str) -> str:
        if text.lower() not in known:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(known)}")
        return text.lower()

    return word


def count(text: str) -> int:
    """A number from 1 to 4096."""
    if not text.isdecimal() or not 1 <= int(text) <= 4096:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 4096")
    return int(text)


def seconds(text: str) -> float:
    """Seconds, above 0: "5", "0.5", "200ms"."""
    try:
        n = float(text)
    except ValueError:
        try:
            n = quantities.seconds_of(text, "it")
        except tent.InvalidArgumentError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    if not 0 < n < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no time above 0")
    return n


def place(text: str) -> str:
    """Where somebody listens: "127.0.0.1:9100", "[::1]:9100"."""
    host, _, port = text.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return text


def name(text: str) -> str:
    """A name, which is never empty."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty, and no name")
    return text


class Parser(argparse.ArgumentParser):
    """The parser of the command, with the names of its commands in the order of the help."""

    commands: tuple[str, ...] = ()

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Ends the program behind a help, a version or a mistake. An OSError where the help cannot be written."""
        sys.stdout.flush()
        super().exit(status, message)


def parser() -> Parser:
    """The commands and their flags."""
    head = Parser(prog="tent", description="Moves bytes between memories of processes and machines.")
    head.add_argument("--version", action="version", version=f"tent {tent.__version__}")
    commands = head.add_subparsers(required=True, metavar="command", parser_class=Parser)

    def add(word: str, function: Callable[[argparse.Namespace], int], *flags: Flag) -> None:
        text = (function.__doc__ or "").split("\n\n")[0]
        command = commands.add_parser(word, help=text, description=text)
        command.set_defaults(function=function)
        for flag, keywords in flags:
            option = command.add_argument(flag, **keywords)
            if option.default and isinstance(option.default, str):  # argparse reads it like a text of the user
                option.help = f"{option.help} (default: {option.default})"

    for part in (_look, _measure, _stand):
        part(add)
    head.commands = tuple(commands.choices)
    return head


def _look(add: Add) -> None:
    """The commands that look at this machine and its ways."""
    add(
        "doctor",
        doctor.run,
        CONFIG,
        ("--peer", {"metavar": "HOST:PORT", "help": "check the way to this peer, and the way back"}),
        ("--json", {"action": "store_true", "help": "print JSON"}),
    )
    add(
        "topo",
        topo.run,
        CONFIG,
        ("--table", {"action": "store_true", "help": "print tables, also where no terminal is"}),
        ("--json", {"action": "store_true", "help": "print JSON, also on a terminal"}),
    )
    add(
        "plan",
        plan.run,
        CONFIG,
        ("from_", {"metavar": "FROM", "help": "memory here, for example cpu:0"}),
        ("to", {"type": name, "metavar": "TO", "help": "host:port, host:port/region or file:///path"}),
        ("--op", {"type": one_of(plan.OPERATIONS), "default": "write", "help": "write or read"}),
        ("--size", {"type": size, "default": "1M", "help": "bytes of the transfer"}),
        ("--priority", {"type": one_of(plan.PRIORITIES), "default": "high", "help": "high, medium or low"}),
        ("--policy", {"default": "", "help": "the name of a policy of the settings"}),
        ("--json", {"action": "store_true", "help": "print JSON"}),
    )


def _measure(add: Add) -> None:
    """The commands that move bytes, and the view of those that others move."""
    add(
        "serve",
        serve.run,
        CONFIG,
        ("--name", {"help": "the engine's name"}),
        ("--region", {"type": name, "default": "memory", "help": "the region's name"}),
        ("--size", {"type": size, "default": "64M", "help": "its bytes"}),
        ("--with-stdin", {"action": "store_true", "help": argparse.SUPPRESS}),  # for `tent bench`
    )
    add(
        "bench",
        bench.run,
        CONFIG,
        (
            "target",
            {
                "nargs": "?",
                "type": name,
                "metavar": "HOST:PORT/REGION",
                "help": "of `tent serve`; its bytes are overwritten",
            },
        ),
        ("--op", {"type": several(one_of(plan.OPERATIONS)), "default": "write,read", "help": "write, read"}),
        ("--size", {"type": several(size), "default": "4K,64K,1M,16M", "help": "bytes of a range"}),
        ("--batch", {"type": several(count), "default": "1", "help": "ranges of a transfer, as in 1,16"}),
        ("--threads", {"type": several(count), "default": "1", "help": "threads, each with one transfer, as in 1,2"}),
        ("--transport", {"type": several(name), "default": [], "help": "as in shm,tcp; all that can, unless given"}),
        ("--priority", {"type": several(one_of(plan.PRIORITIES)), "default": "high", "help": "high, medium, low"}),
        ("--seconds", {"type": seconds, "default": "0.5", "help": "seconds of each row, or as in 200ms"}),
        ("--json", {"metavar": "FILE", "help": "write the rows as JSON; - prints it in place of the table"}),
        ("--plot", {"metavar": "FILE", "help": "draw rate and latency over size (needs matplotlib)"}),
    )
    add(
        "top",
        top.run,
        (
            "address",
            {
                "nargs": "+",
                "type": place,
                "metavar": "HOST:PORT",
                "help": "where an engine serves metrics (metrics/listen)",
            },
        ),
        ("--interval", {"type": seconds, "default": "0.5", "help": "seconds between two looks, or as in 200ms"}),
        ("--looks", {"type": count, "help": "end after this number of looks; never, unless given"}),
    )


def _stand(add: Add) -> None:
    """The commands that put tent in the place of other modules."""
    stands = one_of(compat.NAMES)
    add(
        "run",
        stacks.run,
        CONFIG,
        (
            "--as",
            {
                "dest": "names",
                "type": several(stands),
                "default": ",".join(compat.NAMES),
                "help": "the modules that tent stands for",
            },
        ),
        ("--security-key", {"metavar": "FILE", "help": "the cluster key of the engines, for hosts beyond this one"}),
        ("command", {"nargs": argparse.REMAINDER, "metavar": "-- COMMAND", "help": "the program and its arguments"}),
    )
    add("compat", stacks.show, ("names", {"nargs": "*", "type": stands, "help": "nixl, mooncake; both unless given"}))


def main(arguments: list[str] | None = None) -> int:
    """The entry point; returns the exit status."""
    for name in ("stdout", "stderr"):  # None where the shell has closed it, which print() takes for the other one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path or a peer may have letters that a terminal's encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        options = parser().parse_args(arguments)
        status = int(options.function(options))
        sys.stdout.flush()
    except (tent.TentError, TimeoutError) as error:
        print(f"tent: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # `| head` has read enough
        forget_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        forget_output()
        print(f"tent: {'' if error.filename else 'the output cannot be written: '}{error}", file=sys.stderr)
        return 1
    return status


def forget_output() -> None:
    """Points stdout to nowhere, so that Python's last flush does not fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
