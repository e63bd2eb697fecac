"""The installed package keeps its promises: one file for all Pythons, and refusals in one sentence."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sysconfig
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

import tent

ROOT = Path(__file__).resolve().parents[2]
EXTENSION = Path(tent.__file__).with_name("_gotent.abi3.so")


@pytest.fixture
def builder() -> ModuleType:
    """tools/build_gotent.py, which setup.py runs."""
    spec = importlib.util.spec_from_file_location("build_gotent", ROOT / "tools" / "build_gotent.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tool(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    return subprocess.run([*command, str(EXTENSION)], check=True, capture_output=True, text=True).stdout


@pytest.mark.interpreter
def test_version_is_the_same_everywhere() -> None:
    assert metadata.version("tent") == tent.__version__


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


def test_an_old_go_is_not_taken(builder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "go"
    old.write_text("#!/bin/sh\necho go1.21.13\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setenv("TENT_GO", str(old))
    assert builder.go_version(str(old)) == (1, 21)
    assert builder.find_go() is None


def test_changed_output_of_gopy_stops_the_build(builder: ModuleType) -> None:
    with pytest.raises(SystemExit, match="gopy or pybindgen changed"):
        builder.patch_c("typedef PyAsyncMethods *cmpfunc;")
