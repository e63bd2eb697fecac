"""The README stays short and runs as it stands; the demos that it names verify every byte."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import DOCS, README, blocks

from tent.demos import failover


def test_readme_is_short() -> None:
    text = README.read_text(encoding="utf-8")
    assert text.count("\n") <= 150
    assert len(text.encode()) <= 12 << 10


def test_figures_of_the_readme_are_those_of_the_performance_page() -> None:
    text = README.read_text(encoding="utf-8")
    page = (DOCS / "performance" / "index.md").read_text(encoding="utf-8")
    results = text[text.index("## Results") : text.index("## Limits")]
    figures = re.findall(r"\d[\d.]* (?:GB/s|µs|ns|ms)", results)
    assert len(figures) >= 10
    assert [figure for figure in figures if figure not in page] == []


def test_readme_has_a_program() -> None:
    assert [block for block in blocks(README) if block.language == "python"]


@pytest.mark.slow
def test_demo_verifies_every_byte() -> None:
    command = [sys.executable, "-m", "tent.demos.kvcache", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "192 MiB verified by the receiver, every byte right" in done.stdout


@pytest.mark.slow
def test_failover_demo_shows_no_error_and_verifies_every_byte(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tent.demos.failover"], capture_output=True, text=True, timeout=110, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "256 MiB verified by the receiver, every byte right" in done.stdout
    assert "no error" in done.stdout
    assert len(re.findall(r"^  127\.0\.0\.\d  [0-9x]+$", done.stdout, flags=re.M)) == 4, done.stdout


def test_the_chart_of_the_failover_demo_marks_looks_at_cut_rails_that_are_silent() -> None:
    look = failover.RATE / 10  # bytes between two looks
    story = failover.Story(cuts=[(1, 0.35, 0.75)])
    for i in range(10):
        late = min(i, 4) + max(0, i - 7)  # the cut rail still delivers at one look, and again after three
        story.times.append(i / 10)
        story.delivered.append([i * look, late * look, i * look, 0])
    rows = [line.split()[1] for line in failover.chart(story).splitlines()]
    assert rows[0] == rows[2] == "0" + "9" * 9
    assert re.fullmatch("09999xxx[23]5", rows[1]), "rates are over four looks, of which one and two had bytes"
    assert rows[3] == "0" * 10, "a rail that nobody cut is slow, and not marked"


@pytest.mark.slow
def test_qos_demo_verifies_every_byte_and_shows_the_worth_of_classes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tent.demos.qos", "--seconds", "0.4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60 small requests and both floods verified by their receivers, every byte right" in done.stdout
    p50 = [float(ms) for ms in re.findall(r"p50 +([0-9.]+) ms", done.stdout)]
    assert len(p50) == 6 and p50[1] < p50[2], done.stdout  # some 60 times on a quiet machine


@pytest.mark.parametrize("words", ["kvcache --rounds 0", "qos --seconds 0"])
def test_a_demo_of_nothing_is_a_wrong_argument(words: str) -> None:
    name, *rest = words.split()
    command = [sys.executable, "-m", f"tent.demos.{name}", *rest]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "'0' is no" in done.stderr
