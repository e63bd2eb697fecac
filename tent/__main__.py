"""`python -m tent` is the command `tent`; see tent.command."""

from __future__ import annotations

import signal
import sys


def main(arguments: list[str] | None = None) -> int:
    """The entry point of both; returns the exit status, also of a Ctrl-C while modules are being loaded."""
    try:
        from tent import command

        return command.main(arguments)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
