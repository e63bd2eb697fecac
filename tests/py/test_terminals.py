"""Output of the command on terminals: narrow ones, and those that cannot move their cursor."""

from __future__ import annotations

import io
import re
import sys

import pytest

from tent.command import screen

pytest.importorskip("rich", reason="the extra `cli` draws on terminals")

from rich.console import Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [200, 80, 60, 40])
def test_a_narrow_terminal_cuts_no_address_off(width: int) -> None:
    """Two peers may differ in their ports alone."""
    console = Console(file=(drawn := io.StringIO()), width=width)
    rows = [["tcp", f"10.20.30.40:5120{i}", "123456"] for i in (1, 2)]
    console.print(screen.draw("", ("transport", "peer that has a name", "transfers/s"), rows))
    column = "".join(re.findall(r"[0-9.:]+", "".join(line[11:-13] for line in drawn.getvalue().splitlines()[1:])))
    assert [f"10.20.30.40:5120{i}" in column for i in (1, 2)] == [True, True], drawn.getvalue()


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A live view of rich would show nothing there."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", shown := Terminal())
    with screen.screen() as show:
        show([screen.Section("rails", ("rail", "state"), [["a -> b", "up"]])])
    assert shown.getvalue() == "rails\nrail    state\na -> b  up\n\n"
