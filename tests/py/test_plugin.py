"""The pytest plug-in, in pytest runs of its own: its findings, its reports, and that it costs other people
nothing."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from inner import run

import tent.testing
from tent.testing import Faults

EXAMPLES = re.findall(r"^    (def test_.*?)(?=^    def |^Each rail)", tent.testing.__doc__ or "", flags=re.S | re.M)


@pytest.mark.interpreter
def test_loading_it_imports_neither_the_engine_nor_numpy(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n"
        "def test_what_is_there():\n"
        "    ours = sorted(name for name in sys.modules if name.split('.')[0] in ('tent', 'numpy'))\n"
        "    assert ours == ['tent', 'tent._lazy', 'tent._version', 'tent.testing', 'tent.testing.plugin']\n"
        "    assert not {'asyncio', 'ctypes', 'mmap'} & (set(sys.modules) - set(sys.argv[1:])) - {*BEFORE}\n"
        "BEFORE = set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:hypothesispytest", "-p", "no:cacheprovider", tmp_path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_has_fixtures_and_no_hook() -> None:
    from tent.testing import plugin

    assert [name for name in dir(plugin) if name.startswith("pytest_")] == []
    for name in ("tent_engine", "tent_pair", "tent_cluster", "tent_faults", "tent_oracle"):
        assert f"`{name}" in (tent.testing.__doc__ or "")
        assert hasattr(plugin, name)


def test_the_programs_of_the_documentation_run(pytester: pytest.Pytester) -> None:
    assert len(EXAMPLES) == 3
    run(pytester, "\n\n".join(textwrap.dedent("    " + text) for text in EXAMPLES)).assert_outcomes(passed=3)


def test_a_failure_shows_seed_and_faults(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        def test_fails(tent_engine, tent_faults):
            tent_engine()
            tent_faults.rail(3).delay(0.002)
            assert False
        """,
    )
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert re.search(r"TENT_SEED=\d+", text)
    assert "rail=3 delay=2000us" in text


def test_a_fault_that_never_struck_fails_the_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        def test_unused(tent_pair, tent_faults):
            pair = tent_pair(rails=2)
            tent_faults.rail(1).blackhole(after_bytes="8MiB")

        def test_unused_at_the_peer(tent_pair, tent_faults):
            pair = tent_pair()
            tent_faults.peer.nth(1000).drop()
            tent_faults.heal()

        def test_allowed(tent_pair, tent_faults):
            tent_pair(rails=2)
            tent_faults.rail(1).blackhole(unused_ok=True)
            tent_faults.heal()

        def test_used(tent_pair, tent_faults, tent_oracle):
            pair = tent_pair(rails=2)
            src, dst = tent_oracle.regions(pair, 1 << 20)
            tent_faults.delay("1 ms", count=3)  # on whichever rail is there first
            pair.engine.write(src, dst).result(20)
            tent_oracle.check()

        def test_killed(tent_pair, tent_faults):
            pair = tent_pair()
            tent_faults.peer.drop()
            pair.peer.kill()

        def test_failed(tent_pair, tent_faults):
            tent_pair()
            tent_faults.corrupt()
            assert False, "one report is enough"

        def test_failed_by_a_call(tent_pair, tent_faults):
            tent_pair()
            tent_faults.corrupt()
            pytest.fail("one report is enough")

        def test_skipped(tent_pair, tent_faults):
            tent_pair()
            tent_faults.corrupt()
            pytest.skip("nothing was tested, and nothing was to be")

        @pytest.fixture
        def skips(tent_pair, tent_faults):
            tent_pair()
            tent_faults.corrupt()
            pytest.skip("before the test")

        def test_skipped_by_a_fixture(skips):
            pass

        def test_unused_behind_a_failure(tent_pair, tent_faults):
            tent_pair()
            tent_faults.corrupt()

        def test_skipped_late(tent_engine):
            tent_engine().close()
        """,
    )
    result.assert_outcomes(passed=7, errors=3, failed=2, skipped=2)
    text = result.stdout.str()
    assert "never struck, so nothing was tested with it (unused_ok=True allows that): 'rail=1 blackhole" in text
    assert "'nth=1000 drop' (at the peer)" in text


def test_each_injection_has_to_strike(pytester: pytest.Pytester) -> None:
    """The same text again is another fault. An engine that has ended, here or at the peer, may have been struck by the
    faults that it got, and hides no others."""
    result = run(
        pytester,
        """
        import pytest
        import tent.testing

        def moves(pair, oracle):
            src, dst = oracle.regions(pair, 1 << 20)
            pair.engine.write(src, dst).result(20)

        def test_again(tent_pair, tent_faults, tent_oracle):
            pair = tent_pair()
            tent_faults.delay("1ms", count=1)
            moves(pair, tent_oracle)
            tent_faults.heal()
            tent_faults.delay("1ms", count=1)

        def test_again_and_used(tent_pair, tent_faults, tent_oracle):
            first = tent_pair()
            tent_faults.delay("1ms", count=1)
            moves(first, tent_oracle)
            tent_faults.heal()
            second = tent_pair()
            tent_faults.delay("1ms", count=1)
            moves(second, tent_oracle)  # the second injection strikes there, where it is the first one

        def test_a_closed_engine(tent_pair, tent_engine, tent_faults, tent_oracle):
            pair = tent_pair()
            tent_engine()
            tent_faults.delay("1ms", count=1)
            moves(pair, tent_oracle)
            tent_oracle.check()
            pair.close()

        def test_behind_a_closed_engine(tent_pair, tent_engine, tent_faults):
            tent_pair()
            extra = tent_engine()
            tent_faults.reject()
            extra.close()
            tent_faults.heal()
            tent_faults.reject()

        def test_injected_past_the_fixture(tent_engine):
            engines = [tent_engine(), tent_engine()]
            tent.testing.Faults(*engines).lose()
            engines[0].close()

        def test_a_dead_peer(tent_cluster, tent_faults):
            cluster = tent_cluster(2)
            tent_faults.peer.fail_register(count=1)
            with pytest.raises(RuntimeError, match="fail_register"):
                cluster.peers[0].region("kv", 4096, 1)
            cluster.peers[0].kill()

        def test_a_peer_that_began_anew(tent_cluster, tent_faults):
            cluster = tent_cluster(2)
            cluster.faults.peer.fail_register(count=1)
            tent_faults.peer.fail_attach()
            cluster.peers[0].restart()

        def test_behind_a_dead_peer(tent_cluster, tent_faults):
            cluster = tent_cluster(2)
            tent_faults.peer.reject()
            cluster.peers[0].kill()
            tent_faults.peer.reject()
        """,
    )
    result.assert_outcomes(passed=8, errors=3)
    text = result.stdout.str()
    assert "that): 'delay=1000us count=1'" in text
    assert "that): 'reject'\n" in text
    assert "that): 'reject' (at the peer)\n" in text


def test_faults_that_hit_nothing_are_refused(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        import tent

        def test_rails(tent_pair, tent_faults):
            pair = tent_pair(rails=2)
            for faults in (tent_faults, tent_faults.peer, pair.faults, pair.faults.peer):
                with pytest.raises(tent.InvalidArgumentError, match=r"hits nothing: there are rails 0 to 1"):
                    faults.rail(2).blackhole()
            with pytest.raises(tent.InvalidArgumentError, match="numbered from 0"):
                tent_faults.rail(-1)

        def test_no_engine(tent_engine, tent_faults):
            for faults in (tent_faults, tent_faults.peer, tent.testing.Faults()):
                with pytest.raises(tent.InvalidArgumentError, match="'corrupt' hits nothing: there is no open engine"):
                    faults.corrupt()
            tent_engine()
            with pytest.raises(tent.InvalidArgumentError, match="hits nothing"):
                tent_faults.peer.corrupt()  # a peer has Pair alone
            tent_engine().close()
            tent_faults.corrupt(unused_ok=True)  # of the open one

        @pytest.mark.parametrize("rails", [0, -1, 255, True, "2"])
        def test_no_rails(tent_pair, rails):
            with pytest.raises(tent.InvalidArgumentError, match="it must be 1 to 254"):
                tent_pair(rails=rails)

        def test_misspelled(tent_pair):
            with pytest.raises(tent.InvalidArgumentError, match="rail= is unknown; did you mean rails="):
                tent_pair(rail=2)
            with pytest.raises(tent.InvalidArgumentError, match="log_levl"):
                tent_pair(log_levl="info")
        """,
    )
    result.assert_outcomes(passed=8)


def test_heal_and_seed_need_no_engine(pytester: pytest.Pytester) -> None:
    """So a fixture may heal behind any test. A seed is that of the engines that come later."""
    run(
        pytester,
        """
        import pytest
        import tent.testing

        @pytest.fixture(autouse=True)
        def healed(tent_faults):
            yield
            tent_faults.rail(1).op("read").heal()
            tent_faults.peer.heal()
            tent_faults.heal()
            tent.testing.Faults().heal()

        def test_none(tent_faults):
            with pytest.raises(tent.InvalidArgumentError, match="hits nothing"):
                tent_faults.inject("heal; drop")

        def test_closed(tent_pair, tent_faults):
            pair = tent_pair()
            tent_faults.drop()
            tent_faults.peer.drop()
            pair.close()

        def fine(engine):
            found = []
            for i in range(32):
                try:
                    engine.register(bytearray(4096)).close()
                    found.append(True)
                except tent.TentError:
                    found.append(False)
            return found

        @pytest.mark.parametrize("side", ["here", "there"])
        def test_seed(tent_engine, tent_faults, side):
            (tent_faults if side == "here" else tent_faults.peer).seed(5)
            later = tent_engine(**{"transports/shm/enable": False})
            tent_faults.fail_register(rate=0.5)
            first = fine(later)
            assert set(first) == {True, False}
            tent_faults.heal()
            tent_faults.seed(5)
            tent_faults.fail_register(rate=0.5)
            assert fine(later) == first
        """,
    ).assert_outcomes(passed=4)


def test_the_rate_of_the_kit_is_no_fault(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        def test_it(tent_pair, tent_faults, tent_oracle):
            pair = tent_pair()
            src, dst = tent_oracle.regions(pair, 1 << 20)
            pair.engine.write(src, dst).result(20)
            metrics = pair.engine.metrics()
            assert metrics["tent_faults_injected_total"] == 0 and metrics["tent_faults"] == 0
            assert metrics["tent_faults_ambient_total"] > 0
            tent_faults.corrupt(count=1)
            pair.engine.write(src, dst, integrity="crc32c").result(20)
            assert pair.engine.metrics()["tent_faults_injected_total"] == 1
            tent_faults.heal()
            pair.engine.write(src, dst).result(20)
            later = pair.engine.metrics()["tent_faults_ambient_total"]
            assert later > metrics["tent_faults_ambient_total"], "heal() has ended the rate"
            tent_oracle.check()
        """,
    )
    result.assert_outcomes(passed=1)
    assert "faults are injected" not in result.stdout.str() + result.stderr.str()


def test_help_has_every_fault() -> None:
    for name in vars(Faults):
        if not name.startswith("_"):
            assert re.search(rf"`[^`]*\b{name}\b", tent.testing.__doc__ or ""), name


def test_the_seed_can_be_repeated(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENT_SEED", "77")
    run(pytester, "def test_it(tent_seed): assert tent_seed == 77").assert_outcomes(passed=1)


def test_bytes_that_are_wrong_or_late_fail_the_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        from tent.testing import Memory

        def test_corrupted(tent_pair, tent_faults, tent_oracle):
            pair = tent_pair()
            src, dst = tent_oracle.regions(pair, 100_000)
            tent_faults.corrupt(count=1)
            pair.engine.write(src, dst).result(10)
            tent_oracle.check()

        def test_incomplete(tent_pair, tent_oracle):
            pair = tent_pair()
            src, dst = tent_oracle.regions(pair, 100_000, "read")
            pair.engine.read(src[0:99_900], dst[0:99_900]).result(10)
            tent_oracle.check()

        def test_overwritten_source(tent_pair, tent_oracle):
            pair = tent_pair()
            src, dst = tent_oracle.regions(pair, 1000)
            pair.engine.write(src, dst).result(10)
            src.view[7] ^= 1
            pair.engine.write(src, dst).result(10)
            tent_oracle.check()

        def test_late(tent_pair, tent_oracle):
            pair = tent_pair()
            src, dst = tent_oracle.regions(pair, 1000)
            pair.engine.write(src, dst).result(10)
            tent_oracle.check()
            pair.engine.write(src[3:99], dst[3:99]).result(10)

        def test_late_behind_a_dead_peer(tent_pair, tent_oracle):
            pair = tent_pair()
            near, far = tent_oracle.regions(pair, 1000, "read")
            pair.engine.read(near, far).result(10)
            tent_oracle.check()
            pair.peer.kill()
            near.view[5] ^= 1

        def test_guard_bands():
            memory = Memory(1000, 3)
            assert memory.wrong(3) == ""
            memory._all[memory._start - 1] ^= 1
            assert "in front" in memory.wrong(3)
            memory = Memory(1000, 3, alignment=5)
            memory._all[memory._start + 1000] ^= 1
            assert "behind" in memory.wrong(3)
        """,
    )
    result.assert_outcomes(passed=3, failed=3, errors=2)  # "late" is found when the test ends: an error
    text = result.stdout.str()
    assert "byte 50000 of 100000 is" in text
    assert re.search(r"here: byte 999\d\d of 100000 is", text)  # of 100 bytes, one may be right by chance
    assert "in peer-0: byte 7 of 1000 is" in text
    for place in (r"in peer-0: byte \d+", "here: byte 5"):
        assert re.search(rf"{place} of 1000 is .* after the engines were closed", text)


def test_leaks_fail_the_test(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import tent.testing.leaks\ntent.testing.leaks.SETTLE_SECONDS = 0.2\n")  # all of it stays
    result = run(
        pytester,
        """
        import pytest, socket, subprocess, sys, tent

        kept = []

        def test_a_socket(tent_pair):
            tent_pair()
            kept.append(socket.socket())

        def test_an_engine(tent_engine):
            tent_engine()
            kept.append(tent.Engine())

        def test_a_process(tent_engine):
            kept.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))

        class TestAllowed:
            @pytest.fixture
            def tent_leak_check(self):
                return False

            def test_a_socket(self, tent_engine):
                kept.append(socket.socket())

        def test_the_end():
            kept[0].close(); kept[1].close(); kept[3].close()
            kept[2].communicate()
        """,
    )
    result.assert_outcomes(passed=5, errors=3)
    text = result.stdout.str()
    assert "left behind: descriptor" in text and "socket:" in text
    assert "thread tent" in text
    assert "child process" in text


@pytest.mark.slow
def test_under_xdist(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    run(
        pytester,
        """
        import pytest

        @pytest.mark.parametrize("i", range(2))
        def test_it(tent_pair, tent_oracle, i):
            pair = tent_pair(rails=2)
            src, dst = tent_oracle.regions(pair, 1 << 20)
            pair.engine.write(src, dst).result(10)
            tent_oracle.check()
        """,
        "-n2",
    ).assert_outcomes(passed=2)


def test_memory_knows_its_expected_bytes() -> None:
    memory = tent.testing.Memory(10_000, seed=3, alignment=5)
    memory.check()
    memory.view[7] ^= 1
    assert memory.unexpected().startswith("byte 7 of 10000 is")
    memory.expect(7, bytes(memory.view[7:8]))
    memory.check()
    memory.expect(9000, b"x" * 1000)
    with pytest.raises(AssertionError, match=r"byte 9000 of 10000 .* \(seed 3\)"):
        memory.check()
    memory.fill(4)
    memory.check()
    assert bytes(memory.view[10:20]) == tent.testing.pattern(4, 10, 10)
