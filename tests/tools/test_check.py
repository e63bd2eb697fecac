"""The runner behind `make test`: its counts, its reasons to fail, and its last line."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import check
import pytest
import running
import stages
from quiet import Stopwatch
from running import Runner, Tally

ROOT = Path(__file__).resolve().parents[2]

GO = """<testsuites><testsuite name="p" tests="3">
<testcase name="TestA"/>
<testcase name="TestB"><failure message="Failed">a_test.go:7: no</failure></testcase>
<testcase name="TestC"><skipped message="=== RUN   TestC&#xA;    c_test.go:4: no test bed here&#xA;"/></testcase>
</testsuite></testsuites>"""
PYTEST = """<testsuites><testsuite name="pytest" tests="3">
<testcase name="a"/><testcase name="b"><error message="x"/></testcase>
<testcase name="c"><skipped type="pytest.skip" message="no torch"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("text", "why"), [(GO, "c_test.go:4: no test bed here"), (PYTEST, "no torch")], ids=["go", "pytest"]
)
def test_reports_are_counted(tmp_path: Path, text: str, why: str) -> None:
    report = tmp_path / "report.xml"
    report.write_text(text, encoding="utf-8")
    assert running.read_report(report, 1) == Tally(1, 1, 1, {why: 1})


def test_a_command_that_fails_without_a_failed_test_is_a_failure(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    assert running.read_report(report, 2) == Tally(failed=1)
    report.write_text('<testsuites><testcase name="a"/></testsuites>', encoding="utf-8")
    assert running.read_report(report, 124) == Tally(passed=1, failed=1)
    assert running.read_report(report, 0) == Tally(passed=1)


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.setattr(running, "LOGS", tmp_path)
    return Runner("stage", "go", {"PATH": "/usr/bin:/bin"})


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(runner: Runner) -> None:
    assert runner.run("sh", "-c", "sleep 1000 & echo $!; wait", timeout=0.5) == 124
    child = re.search(r"^(\d+)$", runner.log.read_text(), re.M)
    assert child
    status = Path(f"/proc/{child[1]}/stat")
    deadline = time.monotonic() + 10
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "the child still runs"


def test_a_check_that_cannot_be_made_here_is_skipped_with_its_reason(runner: Runner) -> None:
    assert runner.ok("sh", "-c", "echo first; echo no data here; exit 77", timeout=10) == Tally(
        skipped=1, reasons={"no data here": 1}
    )
    assert runner.ok("true", timeout=10) == Tally(passed=1)
    assert runner.ok("false", timeout=10) == Tally(failed=1)


def result(quiet: float, budget: float) -> check.Result:
    return check.Result(Tally(passed=3), wall=100.0, quiet=quiet, budget=budget)


def test_a_stage_over_its_budget_fails_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    total = check.report({"unit": result(41.0, 40.0), "race": result(39.0, 40.0)}, Stopwatch.start())
    assert (total.passed, total.failed) == (6, 1)
    printed = capsys.readouterr().out
    assert "unit is over its budget" in printed
    assert "race is over its budget" not in printed


def test_wall_time_that_a_neighbour_took_does_not_fail_a_stage() -> None:
    assert check.report({"unit": result(39.0, 40.0)}, Stopwatch.start()).failed == 0


def test_stages_of_make_test_fit_into_its_time() -> None:
    """Both lanes beside each other; each budget has half of its stage's time as room."""
    for lane in (stages.FRONT, stages.BACK):
        budgets = [s.budget for name, s in stages.STAGES.items() if s.lane == lane and name not in stages.LONG]
        assert sum(budgets) / check.ROOM <= check.TOTAL, f"{lane} is longer than the whole may be"
    assert not set(stages.COMING) & set(stages.STAGES), "a stage that has come has its budget in the table"


def test_the_last_line_is_the_count() -> None:
    command = [sys.executable, str(ROOT / "tools" / "check.py"), "--only", "nothing"]
    assert "invalid choice" in subprocess.run(command, capture_output=True, text=True).stderr
    assert re.fullmatch(r"\d+ passed, \d+ failed(, \d+ skipped)?", str(Tally(5, 0, 2)))
    assert re.fullmatch(r"\d+ passed, \d+ failed", str(Tally(5, 1)))


def test_children_can_be_interrupted_although_a_shell_ignored_that() -> None:
    """A shell without job control starts `make test &` with SIGINT ignored, and exec keeps that."""
    script = (
        "import signal, subprocess, sys; sys.path.insert(0, 'tools'); import check; check.heed_interrupts()\n"
        "code = 'import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)'\n"
        "print(subprocess.check_output([sys.executable, '-c', code], text=True), end='')"
    )
    shell = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", script]
    assert subprocess.check_output(shell, text=True, cwd=ROOT) == "True\n"


def test_a_file_that_one_run_of_python_leaves_out_is_in_another() -> None:
    """The runs by marks cover each file: those that others() leaves out have tests of these marks alone."""
    everything = {str(path) for path in (ROOT / "tests" / "py").glob("test_*.py")}
    general = set(stages.others("adapters", "clock"))
    left_out = everything - general
    assert left_out and left_out <= {*stages.marked("adapters"), *stages.marked("clock")}
    for path in left_out:
        assert re.search(r"^pytestmark = pytest\.mark\.(adapters|clock)\b", Path(path).read_text(), re.M), path
    assert general <= everything
