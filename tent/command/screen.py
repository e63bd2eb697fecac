"""Output of the command: drawn by rich (the extra `cli`) where a person looks at a terminal, else plain text."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

Row = Sequence[str]


class Section(NamedTuple):
    """A table with a title; without rows the title stands alone."""

    title: str
    header: Row
    rows: Sequence[Row]


def optional(module: str) -> Any:
    """Returns a module of an extra of tent, None where that is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def printable(text: str) -> str:
    """Text of a peer without control characters, which would steer the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def aligned(header: Row, rows: Sequence[Row]) -> list[str]:
    """Lines with columns of one width; numbers stand at the right."""
    lines = [header, *rows] if any(header) else list(rows)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))] if lines else []
    numeric = [all(_number(row[i]) for row in rows) for i in range(len(widths))]
    return [
        "  ".join(c.rjust(w) if right else c.ljust(w) for c, w, right in zip(line, widths, numeric)).rstrip()
        for line in lines
    ]


def _number(text: str) -> bool:
    """A number, perhaps with a unit, and no address or time of day."""
    return text in ("", "-") or re.fullmatch(r"\d+(\.\d+)?( [\w/]+)?", text) is not None


def draw(title: str, header: Row, rows: Sequence[Row]) -> Any:
    """A table for rich."""
    table = importlib.import_module("rich.table").Table(
        title=title or None, title_justify="left", box=None, pad_edge=False
    )
    for i, name in enumerate(header):
        if all(_number(row[i]) for row in rows):
            table.add_column(name, justify="right")
        else:  # on a narrow terminal it goes on in the next line: peers may differ in their ports alone
            table.add_column(name, overflow="fold")
    escape = importlib.import_module("rich.markup").escape
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table


def show_table(title: str, header: Row, rows: Sequence[Row]) -> None:
    """Prints a table."""
    console = optional("rich.console")
    if console and sys.stdout.isatty():
        console.Console().print(draw(title, header, rows))
    else:
        print("\n".join([*([title] if title else []), *aligned(header, rows)]), flush=True)


@contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[str], None]]:
    """Shows on stderr how far a run of `total` steps is: a bar on a terminal, nothing elsewhere. The value is called
    with the name of each step as it begins."""
    rich = optional("rich.progress")
    if not sys.stderr.isatty():
        yield lambda name: None
        return
    if rich is None:
        done = iter(range(total + 1))
        yield lambda name: print(
            f"\r\x1b[K{what} {next(done, total) + 1}/{total}: {name}", end="", file=sys.stderr, flush=True
        )
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        return
    console = importlib.import_module("rich.console").Console(stderr=True)
    with rich.Progress(console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        begun = [False]

        def step(name: str) -> None:
            bar.update(task, advance=int(begun[0]), description=f"{what} {name}")
            begun[0] = True

        yield step


@contextmanager
def screen() -> Iterator[Callable[[Sequence[Section]], None]]:
    """Shows sections, each call in place of the ones before on a terminal with rich, else below them."""
    live, group = optional("rich.live"), optional("rich.console")
    if live is None or not sys.stdout.isatty() or group.Console().is_dumb_terminal:  # such a one shows no live view
        yield lambda sections: print("\n".join(line for part in sections for line in plain(part)), flush=True)
        return
    text = importlib.import_module("rich.text").Text
    with live.Live(auto_refresh=False, screen=True) as view:

        def show(sections: Sequence[Section]) -> None:
            parts = [draw(part.title, part.header, part.rows) if part.rows else text(part.title) for part in sections]
            view.update(group.Group(*(thing for part in parts for thing in (part, text("")))), refresh=True)

        yield show


def plain(part: Section) -> list[str]:
    """The lines of a section, with an empty one behind them."""
    lines = [part.title] if part.title else []
    return [*lines, *(aligned(part.header, part.rows) if part.rows else ()), ""]
