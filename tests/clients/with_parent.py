"""with_parent.py COMMAND...: a command that ends, with its group, when the process that started it has ended.

vLLM's servers have processes of their own, which do not notice that a suite was killed: it never ran its `finally`.
This one leads their group, and has the kernel say when its parent is gone. Its parent's main thread must start it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1


def end_group(*_: object) -> None:
    """Ends the command and all of its group, this process too."""
    os.killpg(0, signal.SIGKILL)


def main() -> int:
    parent = os.getppid()
    signal.signal(signal.SIGTERM, end_group)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        return 1  # it has ended meanwhile
    return subprocess.call(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
