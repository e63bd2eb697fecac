"""The runner behind `make test`: its counts, its reasons to fail, and its last line."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import check
import pytest
import running
import second_look
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


def junit(*failures: tuple[str, str]) -> str:
    case = '<testcase classname="p/q" name="{}"><failure>{}</failure></testcase>'
    cases = "".join(case.format(name, text) for name, text in failures)
    return f'<testsuites><testcase classname="p/q" name="TestZ"/>{cases}</testsuites>'


@pytest.mark.parametrize(
    ("failures", "worth"),
    [
        ([("TestA", "took 3 s")], True),
        ([("TestA", ""), ("TestA/part", "took 3 s"), ("TestB", "")], True),
        ([("TestA", ""), ("TestB", ""), ("TestC", "")], False),
        ([], False),
        ([("TestA", "WARNING: DATA RACE")], False),
        ([("TestA", "panic: index out of range")], False),
        ([("test_a", "worker 'gw1' crashed while running")], False),
        ([("TestA", "byte 7 of [0, 64) is 0x01, not 0x02")], False),
        ([("test_a", "wrong bytes at offset 7")], False),
        ([("test_a", "guard band touched")], False),
    ],
)
def test_a_second_look_is_for_few_tests_and_never_for_wrong_bytes_races_or_crashes(
    failures: list[tuple[str, str]], worth: bool, tmp_path: Path
) -> None:
    report = tmp_path / "report.xml"
    report.write_text(junit(*failures), encoding="utf-8")
    assert second_look.worth(second_look.failed(report)) == worth


FLAKY = """
import pathlib
import pytest
RUNS = pathlib.Path(__file__).with_suffix(".runs")
def check(): assert len(RUNS.read_text()) not in {%s}
@pytest.fixture
def teardown():
    yield
    if %s: check()
def test_steady(): pass
def test_flaky(teardown):
    RUNS.write_text((RUNS.read_text() if RUNS.exists() else "") + "x")
    check()
"""


@pytest.mark.parametrize("teardown", [False, True])
@pytest.mark.parametrize(("fails_at", "unsteady"), [("1", True), ("1, 3", False), ("1, 2, 3, 4", False), ("9", None)])
def test_a_pytest_that_failed_passes_three_times_by_itself_or_fails_the_run(
    fails_at: str, unsteady: bool | None, teardown: bool, runner: Runner, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n", encoding="utf-8")
    suite = tmp_path / "test_flaky.py"
    suite.write_text(FLAKY % (fails_at, teardown), encoding="utf-8")
    tally = runner.inside(tmp_path).pytest(Path(sys.executable), timeout=60, suite=[str(suite)])
    named = ["test_flaky.py::test_flaky"] if unsteady else []
    faults = 0 if unsteady is None else 1 + teardown  # a report has a test twice if its teardown failed too
    failed = faults if unsteady is False else 0
    assert tally == Tally(passed=2 + max(0, faults - 1) - failed, failed=failed, unsteady=named)
    assert len((tmp_path / "test_flaky.runs").read_text()) == (1 if unsteady is None else 1 + second_look.TIMES)


def test_a_run_with_many_unsteady_tests_fails_and_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    total = check.report({"unit": unsteady_result(second_look.MOST)}, Stopwatch.start())
    assert total.failed == 0
    assert "unsteady: t1 failed once, and passed 3 times by itself" in capsys.readouterr().out
    total = check.report({"unit": unsteady_result(second_look.MOST + 1)}, Stopwatch.start())
    assert total.failed == 1


def unsteady_result(n: int) -> check.Result:
    return check.Result(Tally(passed=9, unsteady=[f"t{i}" for i in range(n)]), wall=1.0, quiet=1.0, budget=40.0)


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.setattr(running, "LOGS", tmp_path)
    return Runner("stage", "go", {"PATH": "/usr/bin:/bin"})


def gone(pid: int, limit: float) -> bool:
    """Whether a process has ended by a moment of the monotonic clock."""
    status = Path(f"/proc/{pid}/stat")
    while time.monotonic() < limit:
        with contextlib.suppress(OSError):
            if status.read_text().rpartition(")")[2].split()[0] != "Z":
                continue
        return True
    return False


def printed_pids(log: str) -> list[int]:
    return [int(found) for found in re.findall(r"^(\d+)$", log, re.M)]


@pytest.mark.parametrize("session", ["", "setsid"])
def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(runner: Runner, session: str) -> None:
    """Also with what has a session of its own, as the servers of a suite, and what those have started."""
    server = "sh -c 'sleep 1000 & echo $!; wait'"
    assert runner.run("sh", "-c", f"{session} {server} & echo $!; wait", timeout=2) == 124
    pids = printed_pids(runner.log.read_text())
    assert len(pids) == 2
    assert all(gone(pid, time.monotonic() + 10) for pid in pids), "one still runs"


STOPPED = """
import sys, threading
from pathlib import Path
sys.path.insert(0, "tools")
import check, running
running.LOGS = Path(sys.argv[1])
check.heed_signals()
def run(name):
    runner = running.Runner(name, "go", {"PATH": "/usr/bin:/bin"})
    runner.run("sh", "-c", "echo $$; setsid sleep 1000 & echo $!; wait", timeout=999)
threading.Thread(target=run, args=("beside",)).start()
run("front")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_stopped_leaves_no_test_behind(tmp_path: Path, number: signal.Signals) -> None:
    """Neither of the front lane nor of one beside it, nor a server with a session of its own."""
    limit = time.monotonic() + 60
    with subprocess.Popen([sys.executable, "-c", STOPPED, str(tmp_path)], cwd=running.ROOT) as run:
        started: list[int] = []
        while len(started) < 4:
            started = printed_pids("\n".join(path.read_text() for path in tmp_path.glob("*.log")))
            assert time.monotonic() < limit and run.poll() is None
        run.send_signal(number)
        assert run.wait(60) == 128 + number
    assert all(gone(pid, limit) for pid in started), "a test still runs"


def test_a_log_is_shown_once_where_it_is_shown_to_itself(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage may show a log that is its own: it once wrote 46 GB."""
    monkeypatch.setattr(running, "ROOT", runner.log.parent)
    runner.log.write_text("the end\n")
    with runner.log.open("a") as own:
        monkeypatch.setattr(sys, "stdout", own)
        runner.show()
    assert runner.log.read_text().count("the end") == 2


def test_a_long_stage_says_how_far_it_has_come(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "LOGS", tmp_path)
    monkeypatch.setattr(running, "ROOT", tmp_path)
    monkeypatch.setattr(check, "MINUTE", 0.001)
    told = threading.Event()

    def say(text: str) -> None:
        print(text)
        if "12 of 40" in text:
            told.set()

    monkeypatch.setattr(check, "say", say)

    def writes(runner: Runner, _: stages.Context) -> Tally:
        assert runner.last_line() == ""
        runner.log.write_text("$ pytest\n" + "." * running.LINE + " 12 of 40\n\n")
        assert told.wait(30)
        return Tally(passed=1)

    check.run_stage("slow", stages.Stage(writes, 1), stages.Context(1, {}, "3.11"), "go", {})
    said = capsys.readouterr().out.splitlines()
    assert f"slow runs: {'.' * (running.LINE - 11)} 12 of 40" in said and said[-1].startswith("slow: 1 passed")


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
    """The lanes are beside each other; each budget has half of its stage's time as room."""
    for lane in stages.NICENESS:
        budgets = [s.budget for name, s in stages.STAGES.items() if s.lane == lane and name not in stages.LONG]
        assert sum(budgets) / check.ROOM <= check.TOTAL, f"{lane} is longer than the whole may be"
    assert not set(stages.COMING) & set(stages.STAGES), "a stage that has come has its budget in the table"


def test_lanes_run_beside_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stage of each lane ends when those of the other lanes have begun, and the results keep the table's order."""
    monkeypatch.setattr(running, "LOGS", tmp_path)
    meeting = threading.Barrier(len(stages.NICENESS), timeout=60)

    def meets(runner: Runner, _: stages.Context) -> Tally:
        meeting.wait()
        return Tally(passed=1 + runner.niceness)

    table = {f"in-{lane}": stages.Stage(meets, 60, lane) for lane in stages.NICENESS}
    monkeypatch.setattr(check, "STAGES", table)
    results = check.run_all(list(table), stages.Context(1, {}, "3.11"), "go", {})
    assert [result.tally for result in results.values()] == [Tally(passed=1 + n) for n in stages.NICENESS.values()]


@pytest.mark.parametrize(("everything", "lanes"), [(False, 3), (True, 2)])
def test_short_stages_have_a_lane_of_their_own_where_they_are_short(
    everything: bool, lanes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(running, "LOGS", tmp_path)
    threads = []

    def notes(runner: Runner, _: stages.Context) -> Tally:
        threads.append(threading.current_thread())
        return Tally(passed=1)

    table = {f"in-{lane}": stages.Stage(notes, 60, lane) for lane in stages.NICENESS}
    monkeypatch.setattr(check, "STAGES", table)
    results = check.run_all(list(table), stages.Context(1, {}, "3.11", everything=everything), "go", {})
    assert len(results) == len(threads) == len(table) and len(set(threads)) == lanes


def test_the_last_line_is_the_count() -> None:
    command = [sys.executable, str(ROOT / "tools" / "check.py"), "--only", "nothing"]
    assert "invalid choice" in subprocess.run(command, capture_output=True, text=True).stderr
    assert re.fullmatch(r"\d+ passed, \d+ failed(, \d+ skipped)?", str(Tally(5, 0, 2)))
    assert re.fullmatch(r"\d+ passed, \d+ failed", str(Tally(5, 1)))


def test_children_can_be_interrupted_although_a_shell_ignored_that() -> None:
    """A shell without job control starts `make test &` with SIGINT ignored, and exec keeps that."""
    script = (
        "import signal, subprocess, sys; sys.path.insert(0, 'tools'); import check; check.heed_signals()\n"
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
