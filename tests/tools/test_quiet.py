"""Budgets of time are judged as on a quiet machine."""

from __future__ import annotations

import subprocess
import sys

import pytest
import quiet

SPIN = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"


@pytest.mark.parametrize(
    ("wall", "others", "expected"),
    [
        (10.0, 0.0, 10.0),  # nobody else was there
        (20.0, 20.0, 10.0),  # a neighbour had half of two processors
        (30.0, 40.0, 10.0),  # load 4 of others' on two processors, and two of ours
        (10.0, 30.0, 0.0),  # counted at different instants: never negative
        (10.0, -1.0, 10.0),
        (0.0, 0.0, 0.0),
    ],
)
def test_time_that_others_took_is_not_charged(wall: float, others: float, expected: float) -> None:
    assert quiet.quiet_seconds(wall, others, processors=2) == pytest.approx(expected)


def test_processor_time_of_descendants_is_ours() -> None:
    before = quiet.own_seconds()
    subprocess.run(["sh", "-c", f"{sys.executable} -c '{SPIN}'; true"], check=True)
    assert quiet.own_seconds() - before >= 0.4


def test_processor_time_of_a_running_child_is_ours_and_its_brothers_is_not() -> None:
    command = [sys.executable, "-c", f"{SPIN}\nimport sys\nprint(flush=True)\nsys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin and child.stdout
        child.stdout.readline()
        assert quiet.own_seconds(child.pid) >= 0.4
        with subprocess.Popen(["sleep", "60"]) as brother:
            assert quiet.own_seconds(brother.pid) < 0.3
            brother.kill()
        child.stdin.close()


def test_the_machine_is_at_least_as_busy_as_we_are() -> None:
    watch = quiet.Stopwatch.start()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    assert quiet.machine_seconds() - watch.machine >= 0.4
    assert 0.0 < watch.quiet() <= watch.wall()
