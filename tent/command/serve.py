"""`tent serve`: a region for peers that measure, check, or try something out."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys

import tent

from .pair import Answerer
from .screen import printable


def run(options: argparse.Namespace) -> int:
    """Offers a region of memory until it is interrupted, and answers `tent doctor --peer`."""
    with (
        contextlib.suppress(KeyboardInterrupt),
        tent.Engine(options.config, name=options.name) as engine,
        engine.allocate(options.size, name=options.region) as region,
        Answerer(engine) as answerer,
    ):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        print(f"{engine.address}/{region.name}", flush=True)
        for note in engine.notifications:
            if not answerer.asked(note):
                print(printable(f"{note.peer} {note.name}: {note.message}"), flush=True)
    return 0
