"""The rows of make bench-restore."""

from __future__ import annotations

import sys
from pathlib import Path

from interpreters import ROOT

sys.path.insert(0, str(ROOT / "tests" / "bench"))

import restore
import stored
from contestant import Measured


def took(seconds: float) -> Measured:
    return Measured((int(seconds * 1e9),), 1_000_000_000, 0.1)


def test_tent_is_beside_the_way_that_is_faster_by_its_median() -> None:
    rounds = [
        {("tent", "cold"): took(1), ("nixl", "cold"): took(3), ("nixl-direct", "cold"): took(1.1)},
        {("tent", "cold"): took(1), ("nixl", "cold"): took(1.3), ("nixl-direct", "cold"): took(2)},
        {("tent", "cold"): took(2), ("nixl", "cold"): took(4), ("nixl-direct", "cold"): took(3)},
    ]
    row = restore.row(rounds, "cold", "x", ("nixl", "nixl-direct"), 1.2)
    assert row is not None
    assert (row.ratio, row.theirs, row.reached, row.interval) == (1.5, 0.5, "yes", (1.1, 2.0))


def test_a_rival_that_is_not_there_has_no_row() -> None:
    names = [row.name for row in restore.entries([{("tent", "cold"): took(1), ("nixl", "cold"): took(2)}])]
    assert names == ["cold, beside NIXL's POSIX plug-in"]


def test_a_cold_restore_at_the_rate_of_the_disk_can_gain_no_more() -> None:
    for seconds, verdict in ((1.01, "yes"), (0.9, "no")):
        tent, nixl = {("tent", state): took(1) for state in ("cold", "cached")}, took(1.05)
        rivals = {("nixl", "cold"): nixl, ("nixl", "cached"): nixl, ("disk", "cold"): took(seconds)}
        cold, cached, disk = restore.entries([{**tent, **rivals}])
        assert (cold.reached, disk.reached) == (verdict, verdict)
        assert cached.reached == "no", "no disk is read"


def test_every_contestant_reads_what_was_stored(tmp_path: Path) -> None:
    pages = 2 * stored.CHUNK_PAGES
    stored.store(tmp_path, pages, chunks=True)
    whole = restore.files_of("tent", tmp_path, pages)
    chunks = restore.files_of("lmcache-direct", tmp_path, pages)
    assert [path.read_bytes() for path in whole] == [b"".join(path.read_bytes() for path in chunks)]
    first, last = whole[0].read_bytes()[: stored.PAGE], whole[0].read_bytes()[-stored.PAGE :]
    assert first != last
    assert sum(a == b for a, b in zip(first, last)) < len(first) // 50, "pages differ nearly everywhere"


def test_rounds_survive_their_file(tmp_path: Path) -> None:
    rounds: list[restore.Round] = [
        {("tent", "cold"): took(1), ("disk", "cold"): took(2)},
        {("nixl", "cached"): took(3)},
    ]
    restore.keep(tmp_path / "kept", rounds)
    assert restore.kept(tmp_path / "kept") == rounds
    assert restore.kept(tmp_path / "none") == []
