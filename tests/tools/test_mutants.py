"""The runner behind `make mutants`: its list, its changes, and its reasons to fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import build_gotent
import interpreters
import mutants
import pytest
from mutants import Bench, Fate, Killer, Mutant, Report, Stale

ENTRY = """A list for tests.

## the sum is one less
add.go
by ./sums TestSum
-	return a + b
+	return a + b - 1

## two places
add.go
by ./sums TestSum|TestMore
by tests/py/test_sums.py sums
-one
+1
@@
 two
-three
+3
"""


@pytest.fixture
def listed(tmp_path: Path) -> list[Mutant]:
    path = tmp_path / "sums.txt"
    path.write_text(ENTRY, encoding="utf-8")
    return list(mutants.read_list(path))


def test_entries_are_read(listed: list[Mutant]) -> None:
    first, second = listed
    assert (str(first), first.file) == ("sums: the sum is one less", "add.go")
    assert first.killers == (Killer("./sums", "TestSum"),)
    assert first.places == (("\treturn a + b\n", "\treturn a + b - 1\n"),)
    assert [killer.is_python for killer in second.killers] == [False, True]
    assert second.places == (("one\n", "1\n"), ("two\nthree\n", "two\n3\n"))


def test_a_change_applies_exactly_once(listed: list[Mutant]) -> None:
    second = listed[1]
    assert second.apply("zero\none\ntwo\nthree\n") == "zero\n1\ntwo\n3\n"
    for text in ("zero\n", "one\none\ntwo\nthree\n"):
        with pytest.raises(Stale, match="times"):
            second.apply(text)


@pytest.mark.parametrize(
    "entry",
    ["## title\nadd.go\n-a\n+b\n", "## title\nby ./sums TestSum\n-a\n+b\n", "## title\nadd.go\nby ./sums T\n-a\n+a\n"],
    ids=["no killer", "no file", "no change"],
)
def test_a_wrong_entry_is_told(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text(entry, encoding="utf-8")
    with pytest.raises(Stale, match="title"):
        list(mutants.read_list(path))


def test_the_kept_lists_are_well_formed() -> None:
    kept = mutants.kept()
    assert len(kept) > 100
    assert len({str(mutant) for mutant in kept}) == len(kept), "two have one title"


def test_every_kept_change_applies_to_the_tree_and_its_tests_are_there() -> None:
    stale = []
    for mutant in mutants.kept():
        try:
            mutants.check(mutant)
        except (Stale, OSError) as error:
            stale.append(f"{mutant}: {error}")
    assert not stale, "\n".join(stale)


@pytest.mark.parametrize(
    ("fates", "ok"),
    [
        ({Fate.KILLED: 19, Fate.SURVIVED: 1}, True),
        ({Fate.KILLED: 18, Fate.SURVIVED: 1}, False),
        ({Fate.KILLED: 50, Fate.STALE: 1}, False),
        ({}, False),
    ],
)
def test_too_many_survivors_and_stale_entries_fail(fates: dict[Fate, int], ok: bool) -> None:
    report = Report()
    for fate, n in fates.items():
        for i in range(n):
            report.fates[Mutant("g", f"{fate} {i}", "f", (), ())] = fate, ""
    assert report.ok() is ok


def go_module(folder: Path) -> None:
    """A module with a package sums, and two tests of which one looks at the sum."""
    (folder / "sums").mkdir()
    (folder / "go.mod").write_text("module example.org/x\n\ngo 1.24\n", encoding="utf-8")
    (folder / "sums" / "add.go").write_text(
        "package sums\n\nfunc Sum(a, b int) int {\n\treturn a + b\n}\n", encoding="utf-8"
    )
    (folder / "sums" / "add_test.go").write_text(
        'package sums\n\nimport "testing"\n\n'
        "func TestSum(t *testing.T) {\n\tif Sum(1, 2) != 3 {\n\t\tt.Fatal(Sum(1, 2))\n\t}\n}\n\n"
        "func TestNothing(t *testing.T) { Sum(1, 2) }\n",
        encoding="utf-8",
    )


@pytest.mark.parametrize(
    ("test", "new", "fate"),
    [
        ("TestSum", "\treturn a - b\n", Fate.KILLED),
        ("TestNothing", "\treturn a - b\n", Fate.SURVIVED),
        ("TestSum", "\treturn c\n", Fate.STALE),  # it does not build
        ("TestAbsent", "\treturn a - b\n", Fate.STALE),
    ],
    ids=["killed", "survives", "does not build", "no such test"],
)
def test_go_sees_a_change_and_the_tree_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test: str, new: str, fate: Fate
) -> None:
    tree, scratch = tmp_path / "tree", tmp_path / "scratch"
    tree.mkdir()
    scratch.mkdir()
    go_module(tree)
    monkeypatch.setattr(mutants, "ROOT", tree)
    go = interpreters.go_command()
    bench = Bench(go, build_gotent.go_env(go), scratch, None)
    before = (tree / "sums" / "add.go").read_text(encoding="utf-8")
    change = Mutant("g", "title", "sums/add.go", (Killer("./sums", test),), (("\treturn a + b\n", new),))
    found, output = bench.judge(0, change)
    assert found is fate, output
    assert (tree / "sums" / "add.go").read_text(encoding="utf-8") == before


def test_the_program_says_which_entries_are_there() -> None:
    program = Path(mutants.__file__)
    done = subprocess.run(
        [sys.executable, str(program), "--check", "--only", "no such word"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "0 mutants apply\n"), done.stderr
