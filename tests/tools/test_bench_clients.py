"""The rows of make bench-clients, the order of its ways, and the account of a way that fails."""

from __future__ import annotations

import io
import sys
import urllib.error
from email.message import Message
from pathlib import Path

import pytest
from interpreters import ROOT

sys.path.insert(0, str(ROOT / "tests" / "bench"))

import clientrows
import clients
import servers
import transfers
from ways import WAYS, Way


def rows() -> list[clientrows.Row]:
    return list(clientrows.rows(lambda way: WAYS[way].counts))


def of(way: str, figure: str, word: str) -> clientrows.Row:
    (row,) = (row for row in rows() if row.way == way and row.figure == figure and word in row.name)
    return row


def test_every_figure_of_a_way_over_tent_has_a_row() -> None:
    names = [row.name for row in rows()]
    assert len(names) == len(set(names)) == 2 * 4 + 2 + 2 * 4 + 3
    assert all(row.way in clientrows.RIVALS for row in rows())


def test_a_row_compares_round_by_round_and_leaves_out_rounds_that_failed() -> None:
    row = of("tent", clientrows.MOVED, "median")
    figures = {("tent", "transfer"): [[2.0, 4.0, 9.0], [], [8.0]], ("nixl", "transfer"): [[8.0], [1.0], [8.0]]}
    entry = row.entry(figures)
    assert entry is not None
    assert (entry.ours, entry.theirs, entry.ratio, entry.target, entry.reached) == (6.0, 8.0, 0.75, "≤ 1", "yes")
    assert row.entry({("tent", "transfer"): [[1.0]]}) is None


def test_a_post_has_a_limit_of_its_own() -> None:
    for ours, reached in ((999.0, "yes"), (1001.0, "no")):
        entry = of("tent", clientrows.CHOSEN, "median").entry({("tent", "wall"): [[ours]], ("nixl", "wall"): [[1.0]]})
        assert entry is not None and (entry.target, entry.reached) == ("≤ 1.00 ms", reached)


def test_a_wait_for_a_processor_is_not_laid_to_a_post() -> None:
    """A post as it was measured beside a run of all tests: 311 ms, in 310.5 of which its thread had no processor."""
    (post,) = transfers.parsed('{"post": [311051500, 578260, 310471918], "descriptors": 16384}\n').posts
    figures = {("tent", "wall"): [[post.wall * 1e6]], ("tent", "held"): [[post.held * 1e6]]}
    figures |= {("nixl", "wall"): [[5e4]], ("nixl", "held"): [[5e4]]}
    wall, held = (of("tent", figure, "longest").entry(figures) for figure in (clientrows.CHOSEN, clientrows.HELD))
    assert wall is not None and (wall.ours, wall.reached) == (311000.0, "no")
    assert held is not None and (held.ours, held.reached) == (580.0, "yes")


def test_each_round_begins_with_another_way() -> None:
    names = ["a", "b", "c"]
    assert [clients.turned(names, n)[0] for n in range(4)] == ["a", "b", "c", "a"]
    assert all(sorted(clients.turned(names, n)) == names for n in range(4))
    assert sorted(clients.ORDER) == sorted(WAYS)


def test_nothing_begins_after_the_limit(tmp_path: Path) -> None:
    bench = clients.Bench(list(clients.ORDER), [clients.Load("vllm", 8, 2)], True, tmp_path, until=0.0)
    bench.round(0)
    assert not bench.figures and not bench.failures


def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a round: measured parts are not measured again."""
    served: list[tuple[str, int]] = []
    moved = [transfers.Transfer(1e-3, 8, 1, None)]

    def serve(name: str, load: clients.Load, model: Path, logs: Path) -> tuple[list[transfers.Transfer], list[object]]:
        served.append((name, int(logs.name[0])))
        if len(served) == 3:
            bench.until = 0.0
        return moved, []

    monkeypatch.setattr(clients, "serve", serve)
    monkeypatch.setattr(Way, "missing", lambda self: "")
    ways, loads, kept = ["tent", "nixl"], [clients.Load("vllm", 8, 1)], tmp_path / "kept.json"
    for _ in range(2):
        bench = clients.Bench(ways, loads, False, tmp_path, kept=kept)
        for number in range(2):
            bench.round(number)
    assert served == [("tent", 0), ("nixl", 0), ("nixl", 1), ("tent", 1)]
    assert bench.figures[("tent", "transfer")] == [[1e3], [1e3]] == bench.figures[("nixl", "transfer")]


def test_the_load_with_many_descriptors_has_as_many_as_its_rows_say() -> None:
    load = clients.many(3)
    assert load.layers * load.tokens // load.block == clientrows.DESCRIPTORS and load.tokens % load.block == 0


class Broken(servers.Server):
    """A server that starts, and refuses requests."""

    def start(self) -> servers.Server:
        self.log = self.logs / f"{self.name}-1.log"
        self.log.write_text("the log of a server")
        return self

    def ready(self, limit: float = 0) -> servers.Server:
        return self


def test_a_way_that_fails_is_named_with_the_answer_and_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others of the round go on."""
    bench = clients.Bench(list(clients.ORDER), [clients.Load("vllm", 8, 2)], False, tmp_path)
    monkeypatch.setattr(clients, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(Way, "server", lambda self, name, role, model, logs: Broken(name, model, logs))
    monkeypatch.setattr(Way, "missing", lambda self: "" if self.connector == "TentConnector" else "not here")
    monkeypatch.setattr(clients, "meet", lambda *given: None)
    monkeypatch.setattr(servers.Server, "metric", lambda self, name: 0.0)

    def refuse(*given: object) -> None:
        answer = io.BytesIO(b'{"error": "the engine is dead"}')
        raise urllib.error.HTTPError("http://x", 500, "Internal Server Error", Message(), answer)

    monkeypatch.setattr(clients, "ask", refuse)
    bench.round(0)
    (failure,) = bench.failures
    logs = tmp_path / "logs" / "0-vllm-tent"
    assert failure.startswith("tent, vllm, request 1: HTTPError: HTTP Error 500") and "the engine is dead" in failure
    assert failure.endswith(f"logs in {logs}") and len(list(logs.glob("*.log"))) == 2
    assert f"FAILED {failure}" in capsys.readouterr().err
    assert bench.figures[("tent", "transfer")] == [[]] == bench.figures[("tent", "post")]
