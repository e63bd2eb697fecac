"""`tent serve`: a region for peers that measure, check, or try something out."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading

import tent

from . import guest
from .pair import Answerer
from .screen import printable


def run(options: argparse.Namespace) -> int:
    """Offers a region of memory until it is interrupted, and answers `tent doctor --peer`."""
    with (
        contextlib.suppress(KeyboardInterrupt),
        opened(options) as engine,
        engine.allocate(options.size, name=options.region) as region,
        Answerer(engine) as answerer,
    ):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        if options.with_stdin:
            threading.Thread(target=end_with_stdin, name="serve-stdin", daemon=True).start()
        print(f"{engine.address}/{region.name}", flush=True)
        for note in engine.notifications:
            if not answerer.asked(note):
                print(printable(f"{note.peer} {note.name}: {note.message}"), flush=True)
    return 0


def opened(options: argparse.Namespace) -> tent.Engine:
    """The engine: with the ports and the name of the settings, except for the second process of `tent bench`."""
    if options.with_stdin:
        return guest.engine(options.config)
    return tent.Engine(options.config, name=options.name)


def end_with_stdin() -> None:
    """Ends this process when its stdin does: with the process that holds the other end, however that ends."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
