"""Peers of the test kit in pytest runs of their own: they die, stand still, keep silent, and run functions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import peer_side
import pytest
from inner import run

import tent.testing.peer
from tent.testing import Pair
from tent.testing.peer import PeerProcess


def test_a_peer_that_does_not_answer_ends_with_all_else(pytester: pytest.Pytester) -> None:
    """Its answer never comes, so none is taken for that to the next command, and the test's engines end."""
    result = run(
        pytester,
        """
        import os, signal
        import pytest
        import tent.testing.peer

        pair = None

        def waits(there):
            signal.pause()

        @pytest.mark.parametrize("asked", ["in the test", "at its end"])
        def test_in_vain(monkeypatch, tent_pair, tent_faults, asked):
            global pair
            pair = tent_pair()
            tent_faults.peer.drop()
            monkeypatch.setattr(tent.testing.peer, "ANSWER_SECONDS", 0.1)
            if asked == "at its end":
                pair.peer.stop()
                monkeypatch.setattr(pair.peer, "resume", lambda: None)
                return
            with pytest.raises(RuntimeError, match="gave no answer"):
                pair.peer.run(waits)
            assert not pair.peer.alive
            with pytest.raises(RuntimeError, match="is gone"):
                pair.peer.metrics()

        def test_interrupted(tent_pair, monkeypatch):
            pair = tent_pair()
            interrupted = lambda *_: signal.raise_signal(signal.SIGINT)
            monkeypatch.setattr(tent.testing.peer.select, "select", interrupted)
            with pytest.raises(KeyboardInterrupt):
                pair.peer.run(waits)
            monkeypatch.undo()
            with pytest.raises(RuntimeError, match="is gone"):
                pair.peer.metrics()

        @pytest.fixture(autouse=True)
        def nothing_is_left():
            yield
            assert pair.engine.closed and not pair.peer.alive
        """,
    )
    result.assert_outcomes(passed=3, errors=1)
    assert "gave no answer" in result.stdout.str()


def test_commands_and_answers_of_any_length(tent_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a pipe holds. A peer that stands still does not read the command, and is ended in its time."""
    peer, text = tent_pair().peer, "x" * (1 << 20)
    assert peer.run(peer_side.echo, text=text) == text
    peer.stop()
    monkeypatch.setattr(tent.testing.peer, "ANSWER_SECONDS", 0.1)
    with pytest.raises(RuntimeError, match="gave no answer"):
        peer.run(peer_side.echo, text=text)
    assert not peer.alive


@pytest.mark.parametrize("says", ["printf '{\"ok\"'; read x", "printf '{\"ok\"'"])
def test_an_answer_that_stops_in_its_midst_is_none(monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    """The process waits behind a part of a line, or ends."""
    made: list[PeerProcess] = []

    class Halting(PeerProcess):
        def _start(self) -> subprocess.Popen[bytes]:
            made.append(self)
            return subprocess.Popen(["sh", "-c", says], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    monkeypatch.setattr(tent.testing.peer, "ANSWER_SECONDS", 1.0)
    with pytest.raises(RuntimeError, match="gave no answer"):
        Halting({})
    assert not made[0].alive
    made[0].end()


def test_functions_over_there_may_print(tent_pair: Callable[..., Pair], capfd: pytest.CaptureFixture[str]) -> None:
    pair = tent_pair()
    assert pair.peer.run(peer_side.prints) == [1, 2]
    out, err = capfd.readouterr()
    assert not out and "by Python" in err and "by C" in err


@pytest.mark.parametrize("any_port", [None, 0])
def test_a_peer_of_any_port_restarts_at_its_own(any_port: int | None) -> None:
    peer = PeerProcess({"rpc_server_port": any_port})
    try:
        first = peer.address
        peer.restart()
        assert peer.address == first
    finally:
        peer.end()


def test_a_port_that_is_none_is_the_engines_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="gave no answer"):
        PeerProcess({"rpc_server_port": "any"})
    assert "it takes an integer from 0 to 65535" in capfd.readouterr().err


def test_peers_may_be_killed_stopped_and_restarted(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        """
        import pytest, tent

        def test_it(tent_cluster, tent_oracle):
            cluster = tent_cluster(2, rails=2)
            first, second = cluster.peers
            src, dst = tent_oracle.regions(cluster, 1 << 20, peer=1)
            address = first.address
            first.stop()
            cluster.engine.write(src, dst).result(10)  # the other one does not notice
            first.resume()
            first.restart()
            assert first.address == address and first.alive
            with cluster.engine.open(address) as segment:
                assert segment.alive()
            first.kill()
            assert not first.alive and second.alive and "ended" in repr(first)
            for call in (first.metrics, first.stop):
                with pytest.raises(RuntimeError):
                    call()
            assert second.metrics()["tent_regions"] == 1
            tent_oracle.check()
            assert "2 peers" in repr(cluster)
        """,
    ).assert_outcomes(passed=1)


def test_functions_run_in_the_peer(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        """
        import pytest

        CALLS = []

        def largest(there, name):
            CALLS.append(name)
            return [max(there.memories[name].view), len(CALLS)]

        def broken(there):
            raise KeyError("nothing")

        def packed(there):
            return b"no JSON"

        def test_results_errors_and_the_module_there(tent_pair):
            peer = tent_pair().peer
            peer.region("kv", 5000, seed=3)
            assert peer.run(largest, name="kv") == [255, 1]
            assert peer.run(largest, name="kv") == [255, 2]  # the module stays over there
            assert CALLS == []  # and is not this one
            with pytest.raises(RuntimeError, match="peer-0: KeyError: 'nothing'"):
                peer.run(broken)
            with pytest.raises(RuntimeError, match="peer-0: TypeError: .*JSON"):
                peer.run(packed)  # and it goes on
            with pytest.raises(ValueError, match="top level of a file"):
                peer.run(lambda there: 1)
            assert peer.wrong("kv", 3) == "" and "byte 0 of 5000" in peer.wrong("kv", 4)
            peer.fill("kv", 4)
            assert peer.wrong("kv", 4) == ""
            peer.close_region("kv")
        """,
    ).assert_outcomes(passed=1)


def test_a_program_that_starts_peers_as_it_is_loaded_starts_no_chain_of_them(tmp_path: Path) -> None:
    """The peer loads the file of the function, which would start a peer that loads it, and so on."""
    program = tmp_path / "program.py"
    program.write_text(
        "from tent.testing import PeerProcess\n"
        "def answer(there):\n"
        "    return 42\n"
        "peer = PeerProcess({})\n"
        "try:\n"
        "    print(peer.run(answer))\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
        "finally:\n"
        "    peer.end()\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "under `if __name__ == '__main__':`" in done.stdout
