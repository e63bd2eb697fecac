"""Every page of the documentation runs, names existing things, and reads as plain English."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import BY_HAND, DOCS, PAGES, ROOT, blocks, commands, in_code, name, program, prose, sentences

import tent
from tent import command
from tent._settings import Given
from tent._variables import VARIABLES
from tent.compat import options

RUNNABLE = [page for page in PAGES if program(page)]
TESTS = [(page, block) for page in PAGES for block in blocks(page) if block.title.startswith("test_")]
TARGETS = set(re.findall(r"^([a-z0-9-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
# Programs that pages may name.
ELSEWHERE = {
    "docker",
    "kubectl",
    "ip",
    "ss",
    "sysctl",
    "pip",
    "go",
    "curl",
    "gcc",
    "g++",
    "vllm",
    "sglang",
    "dynamo.vllm",
}


@pytest.mark.parametrize("page", RUNNABLE, ids=name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    """All Python blocks of a page, from top to bottom, are one program."""
    text = program(page)
    for module, project in (("torch", "PyTorch"), ("numpy", "NumPy"), ("ray", "Ray")):
        if f"import {module}" in text and importlib.util.find_spec(module) is None:
            pytest.skip(f"{project} is not installed")
    path = tmp_path / f"{page.stem.replace('-', '_')}.py"
    path.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", path], cwd=tmp_path, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0 and "Warning" not in done.stderr, f"lines are those of {name(page)}\n{done.stderr}"


def test_a_title_hides_no_code_from_the_tests() -> None:
    """A block with a title is a test, or a file of the tree, which has tests of its own; one needs a GPU."""
    titles = {block.title for page in PAGES for block in blocks(page) if block.language == "python"}
    assert {t for t in titles if t and not t.startswith("test_") and not (ROOT / t).exists()} == {"on a GPU"}


@pytest.mark.parametrize("page, block", TESTS, ids=lambda value: getattr(value, "title", ""))
def test_the_tests_on_a_page_pass(page: Path, block: object, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(block.text)  # type: ignore[attr-defined]
    left_out = [word for name in ("cacheprovider", "hypothesispytest", "xdist") for word in ("-p", f"no:{name}")]
    pytester.runpytest_inprocess(*left_out).assert_outcomes(passed=1)


@pytest.mark.parametrize("page", [page for page in [*PAGES, ROOT / "CONTRIBUTING.md"] if commands(page)], ids=name)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    text = "\n".join(commands(page))
    for line in commands(page):
        words = shlex.split(line)
        while words and (words[0] in ("sudo", "export") or re.fullmatch(r"[A-Z_]+=.*", words[0])):
            words.pop(0)
        if not words:
            continue
        program, *rest = words
        if program == "make":
            assert TARGETS.issuperset(word for word in rest if "=" not in word), line
        elif program == "tent":
            check_tent(rest, line)
        elif program.startswith("python"):
            check_python(rest, line)
        else:
            made = f"-o {program.removeprefix('./')}" in text
            assert program in ELSEWHERE or made or shutil.which(program), line


def check_tent(words: list[str], line: str) -> None:
    """A command that is there, with arguments that it takes."""
    try:
        command.parser().parse_args(words)
    except SystemExit:
        pytest.fail(line)


def check_python(words: list[str], line: str) -> None:
    if words[0] == "-c":
        compile(words[1], line, "exec")
    elif words[:2] == ["-m", "tent"]:
        check_tent(words[2:], line)
    elif words[0] == "-m":
        assert words[1] in ELSEWHERE or importlib.util.find_spec(words[1]) is not None, line
    else:
        assert (ROOT / words[0]).exists() or (DOCS / "examples" / words[0]).exists(), line


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=name)
def test_names_on_a_page_are_there(page: Path) -> None:
    """Make targets, settings, metrics and paths between backticks."""
    metrics = set(re.findall(r"^\| `(tent_\w+)`", (DOCS / "reference/metrics.md").read_text(), re.M))
    for text in in_code(page):
        if found := re.match(r"make ([a-z][a-z0-9-]*)", text):
            assert found[1] in TARGETS, text
        if found := re.match(r"(?:python -m )?tent ([a-z]+)", text):
            assert found[1] in command.parser().commands, text
        if re.fullmatch(r"(transports/[\w-]+|security|metrics|staging|topology)(/[\w-]+)+", text):
            assert is_setting(text) or (ROOT / text).exists() or text == "transports/inside/trusting", text
        if re.fullmatch(r"tent_\w+_(total|bytes|us|depth|health|state)", text):
            assert text in metrics, text
        if re.fullmatch(r"(gocore|transports|tests|docs|tools|pybind|notebooks)/[\w./-]+\.\w+", text):
            assert (ROOT / text).exists(), text


SETTINGS = {"name", *Given.__annotations__}


def is_setting(text: str) -> bool:
    """A key, or a branch of keys."""
    return text in SETTINGS or any(key.startswith(text + "/") for key in SETTINGS)


def objects(page: Path) -> list[dict[str, Any]]:
    """The objects in JSON on a page: those in quotes, as the arguments and variables of a shell, and whole blocks."""
    texts = [quoted for block in blocks(page) for quoted in re.findall(r"'(\{.*?\})'", block.text, re.S)]
    texts += [block.text for block in blocks(page) if block.language == "json"]
    return [json.loads(text) for text in texts]


def keys_of(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from keys_of(value, f"{prefix}{key}/")
        else:
            yield prefix + key


@pytest.mark.parametrize("page", [page for page in PAGES if objects(page)], ids=name)
def test_settings_on_a_page_are_known(page: Path) -> None:
    """Those of an engine, of TENT_COMPAT, and of a connector of vLLM; an event of the audit file has none."""
    for given in objects(page):
        terms = given.get("kv_connector_extra_config", {}) if "kv_connector" in given else given
        tree = dict(options.Options.of(terms).config or {}) if set(terms) <= set(options.KEYS) else given
        if "event" not in tree:
            assert [key for key in keys_of(tree) if key not in SETTINGS] == []


def test_defaults_on_the_page_of_settings_are_those_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but those in words, which a machine computes, and objects."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    text = (DOCS / "reference" / "settings.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([^`]+)` \| (?:[^|]|\\\|)*(?<!\\) \| `([^`]+)`[^|]* \|", text, re.M))
    with tent.Engine() as engine:
        config = engine.config
    found = {}
    for key, setting in config.items():
        name = re.sub(r"^transports/[\w-]+/", "transports/<name>/", key)
        shown = rows.get(key) or rows.get(name)
        if shown and not shown.startswith("transports/") and setting.origin == "default":
            found[key] = json.loads(shown)
            assert found[key] == setting.value, key
    assert len(found) > 250


def test_troubleshoot_has_each_warning_of_an_event() -> None:
    """As the engine writes them into the log, and by their kinds."""
    source = (ROOT / "gocore" / "engine" / "logs.go").read_text(encoding="utf-8")
    lines = re.findall(r'slog\.Level(?:Warn|Error), (?:fmt\.Sprintf\()?"(\w[^"]+)"', source)
    for kinds in re.findall(
        r"case ((?:event\.\w+(?:, )?)+):\n\s+level, text = slog\.LevelWarn, [^\n]*ev\.Kind", source
    ):
        lines += [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower() for kind in re.findall(r"event\.(\w+)", kinds)]
    assert len(lines) > 15
    known = in_code(DOCS / "operate" / "troubleshoot.md")
    assert [line for line in lines if not any(line.startswith(part) for part in known)] == []


@pytest.mark.parametrize("tool", ["docs_reference.py", "docs_tables.py"])
def test_generated_pages_are_current(tool: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / tool, "--check"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"make docs-reference\n{done.stderr}"


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"^ +- (?:[\w ]+: )?([\w/.-]+\.(?:md|ipynb))$", (ROOT / "mkdocs.yml").read_text(), re.M)
    decisions = [page for page in DOCS.glob("design/decisions/*.md") if page.name != "index.md"]
    pages = [*(set(DOCS.rglob("*.md")) - set(decisions)), *(ROOT / "notebooks").glob("*.ipynb")]
    there = {str(page.relative_to(DOCS if page.suffix == ".md" else ROOT)) for page in pages}
    assert set(listed) == there


def test_no_page_has_the_marks_of_a_conflict() -> None:
    pages = [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]
    marked = [page.name for page in pages if re.search(r"^(<{7}|={7}|>{7})( |$)", page.read_text("utf-8"), re.M)]
    assert not marked


def test_decisions_are_numbered_dated_and_listed() -> None:
    folder = DOCS / "design" / "decisions"
    records = sorted(path for path in folder.glob("*.md") if path.name != "index.md")
    listed = re.findall(
        r"^\| \[\d{4}\]\((.*?)\) \| (\S+) \| (\S+) \| (.*) \|$", (folder / "index.md").read_text(), re.M
    )
    assert [line[0] for line in listed] == [path.name for path in records]
    for number, (path, (_, date, package, title)) in enumerate(zip(records, listed), 1):
        assert path.read_text().startswith(f"# {number:04}: {title}\n\n{date}, {package}\n\n## Decision\n"), path.name


def test_the_changelog_has_the_version_and_known_headings() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.M)
    assert releases[0] == ("Unreleased", "")
    assert all(date for _, date in releases[1:])
    if not re.fullmatch(r"\d+\.\d+\.\d+\.dev0", tent.__version__):
        assert releases[1][0] == tent.__version__, "a release has its own heading, with its date"
    headings = set(re.findall(r"^### (.+)$", text, re.M))
    assert headings <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


# -- prose

LONGEST = 32  # words of a sentence, or of a part that ends in a colon or semicolon
AVOIDED = {"backend": "transport", "plugin": "transport, or plug-in", "session": "link", "node": "host, or NUMA node"}
CLAUSE = re.compile(r"\b(who|whom|whose|whoever|whatever|(?<!\*)what)\b", re.I)  # but for the emphasised one


@pytest.mark.parametrize("page", [*BY_HAND, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=name)
def test_the_prose_of_a_page_is_plain(page: Path) -> None:
    wrong = []
    for sentence in sentences(page):
        if len(sentence.split()) > LONGEST:
            wrong.append(f"{len(sentence.split())} words: {sentence}")
        if CLAUSE.search(sentence):
            wrong.append(f"a clause with who or what: {sentence}")
        wrong += [
            f"{word} (say {better}): {sentence}"
            for word, better in AVOIDED.items()
            if re.search(rf"\b{word}s?\b", sentence, re.I) and "NUMA" not in sentence
        ]
    wrong += [f"a dash for a comma: {text}" for text in prose(page) if "\u2014" in text or " - " in text]
    assert not wrong, "\n".join(wrong)
