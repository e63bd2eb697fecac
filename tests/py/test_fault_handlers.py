"""A handler of memory faults that a library installs behind tent's works as it does in a program without tent.

A library of C is loaded by two programs, of which one has an engine, and both do the same.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# Three handlers: one jumps out of itself, one notes the signals that are blocked, one returns to the fault.
LIBRARY = r"""
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static sigjmp_buf back;
static int saves, count;
static unsigned long long blocked;

static unsigned long long mask(void) {
    sigset_t set;
    unsigned long long all = 0;
    pthread_sigmask(SIG_SETMASK, 0, &set);
    for (int s = 1; s < 64; s++)
        if (sigismember(&set, s) == 1) all |= 1ull << s;
    return all;
}

static void jump(int s, siginfo_t *info, void *context) {
    blocked = mask();
    siglongjmp(back, 1);
}

static void note(int s, siginfo_t *info, void *context) {
    static const char text[] = "noted\n";
    if (count++ < 5 && write(1, text, sizeof text - 1) < 0) _exit(3);
}

static void install(void (*handler)(int, siginfo_t *, void *), int flags, int also) {
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_sigaction = handler;
    a.sa_flags = SA_SIGINFO | flags;
    if (also) sigaddset(&a.sa_mask, also);
    sigaction(SIGSEGV, &a, 0);
    sigaction(SIGBUS, &a, 0);
}

void jumps(int flags, int also, int restores) { saves = restores; install(jump, flags, also); }
void notes(int flags) { install(note, flags, 0); }
int readable(long at) {
    if (sigsetjmp(back, saves)) return 0;
    (void)*(volatile char *)at;
    return 1;
}
unsigned long long inside(void) { return blocked; }
unsigned long long outside(void) { return mask(); }
"""

PROGRAM = """
    import ctypes, signal, sys
    library = ctypes.CDLL(sys.argv[1])
    library.readable.argtypes = [ctypes.c_long]
    library.inside.restype = library.outside.restype = ctypes.c_ulonglong
    NODEFER, RESETHAND = 0x40000000, -0x80000000
    looked = lambda: None
    if sys.argv[2] == "with tent":
        import tent
        engine = tent.Engine()
        # each registration looks at the handlers
        looked = lambda: engine.register(bytearray(10)).close()
"""

JUMPS = """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
    for flags, restores in (NODEFER, 0), (NODEFER, 1), (0, 1):
        for also in 0, signal.SIGUSR2:
            library.jumps(flags, also, restores)
            looked()
            for _ in range(3):
                print(library.readable(8), bin(library.inside()), bin(library.outside()))
"""

RESETS = """
    library.notes(RESETHAND)
    looked()
    library.readable(8)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("handlers") / "handlers.so"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", made]
    subprocess.run(command, input=LIBRARY, text=True, check=True, timeout=60)
    return made


def run(program: str, library: Path, how: str) -> tuple[int, str]:
    source = textwrap.dedent(PROGRAM) + textwrap.dedent(program)
    command = [sys.executable, "-c", source, library, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout


def test_a_handler_that_jumps_out_of_a_fault_does_so_again(library: Path) -> None:
    """With the signals blocked that its flags and its mask say, inside and behind it."""
    alone = run(JUMPS, library, "alone")
    assert alone[0] == 0 and len(alone[1].splitlines()) == 18, alone
    assert run(JUMPS, library, "with tent") == alone


def test_a_handler_for_one_fault_gets_one(library: Path) -> None:
    alone = run(RESETS, library, "alone")
    assert alone == (-signal.SIGSEGV, "noted\n")
    assert run(RESETS, library, "with tent") == alone
