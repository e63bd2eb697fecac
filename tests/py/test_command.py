"""The command: doctor, topo, serve and bench, as users run them."""

from __future__ import annotations

import json
import subprocess
import sys

import tent

TENT = [sys.executable, "-W", "error", "-m", "tent"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TENT, *arguments], capture_output=True, text=True, timeout=60)


def test_doctor_lists_the_transports_and_reasons() -> None:
    done = run("doctor", "--json")
    checks = json.loads(done.stdout)
    assert done.returncode == 0 and checks
    assert all(check["name"] and (check["ok"] or check["reason"]) for check in checks)
    assert len(run("doctor").stdout.splitlines()) >= len(checks)


def test_topo_is_json() -> None:
    done = run("topo")
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)


def test_serve_and_bench() -> None:
    serving = subprocess.Popen([*TENT, "serve", "--size", "1M", "--region", "pool"], stdout=subprocess.PIPE, text=True)
    with serving:
        assert serving.stdout
        target = serving.stdout.readline().strip()
        assert target.endswith("/pool")
        done = run("bench", target, "--size", "64K", "--rounds", "5")
        assert done.returncode == 0, done.stderr
        assert [line.split()[0] for line in done.stdout.splitlines()] == ["WRITE", "READ"]
        serving.terminate()
        assert serving.wait(30) == 0


def test_a_mistake_is_one_line() -> None:
    assert run("--version").stdout == f"tent {tent.__version__}\n"
    assert run("bench", "127.0.0.1:1/x").returncode == 1
    done = run("topo", "--config", '{"no_such_key": 1}')
    assert done.returncode == 1 and done.stderr.startswith("tent: ") and "no_such_key" in done.stderr
    assert run("serve", "--size", "0").returncode == 2
    assert run().returncode == 2
