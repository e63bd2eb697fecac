"""Things of a process that an engine may have left behind: descriptors, threads, child processes."""

from __future__ import annotations

import os
import threading
import time

SETTLE_SECONDS = 2.0

# Engines open these; a test's own files and pipes are its own business.
_OURS = ("socket:", "anon_inode:", "/memfd:", "/dev/shm/", "/dev/infiniband")


class Holdings:
    """A snapshot of this process."""

    def __init__(self) -> None:
        self.descriptors = _descriptors()
        self.threads = {thread for thread in threading.enumerate() if thread.name.startswith("tent")}
        self.children = _children()

    def leaked_since(self, before: Holdings) -> str:
        """Returns the things that are there now and were not before, "" for none."""
        found = [
            f"descriptor {fd} ({what})" for fd, what in sorted(self.descriptors.items() - before.descriptors.items())
        ]
        found += [f"thread {thread.name}" for thread in self.threads - before.threads]
        found += [f"child process {pid}" for pid in sorted(self.children - before.children)]
        return ", ".join(found)


def leaked_since(before: Holdings) -> str:
    """Returns the things that have been left behind since, "" for none. Those that are just ending get a moment."""
    late = time.monotonic() + SETTLE_SECONDS
    while True:
        leaked = Holdings().leaked_since(before)
        if not leaked or time.monotonic() > late:
            return leaked
        threading.Event().wait(0.01)


def _descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            what = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the listing's own
        if what.startswith(_OURS):
            found[int(name)] = what
    return found


def _children() -> set[int]:
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children", encoding="ascii") as file:
                found.update(map(int, file.read().split()))
        except FileNotFoundError:
            continue  # the thread has ended, or the kernel does not tell
    return found
