"""The border to Go is typed: the stubs come from tools/stubs.py, and the extension has the functions of its stub."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tent
from tent import _native

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(tent.__file__).parent
C_TYPES = {"str": {"char *"}, "bool": {"bool"}, "int": {"int64_t", "uint64_t"}}


def declared() -> dict[str, ast.FunctionDef]:
    """The functions of the installed stub by name."""
    body = ast.parse((PACKAGE / "_gotent.pyi").read_text()).body
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def test_the_stubs_come_from_the_tool() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "stubs.py", "--check"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.interpreter
def test_the_stubs_are_installed() -> None:
    for stub in ("_gotent.pyi", "__init__.pyi", "testing/__init__.pyi", "py.typed"):
        assert (PACKAGE / stub).exists(), f"{stub} is missing from package-data in pyproject.toml"


def test_a_stub_that_was_changed_is_found(tmp_path: Path) -> None:
    for folder in ("tools", "pybind", "tent", "tent/testing"):
        (tmp_path / folder).mkdir(exist_ok=True)
        for path in [*(ROOT / folder).glob("*.go"), *(ROOT / folder).glob("*.py*")]:
            if path.is_file():
                (tmp_path / folder / path.name).write_text(path.read_text())
    stub = tmp_path / "tent" / "_gotent.pyi"
    stub.write_text(stub.read_text().replace("timeout_ms: int", "timeout_ms: float", 1))
    tool = [sys.executable, str(tmp_path / "tools" / "stubs.py")]
    done = subprocess.run([*tool, "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.startswith("tent/_gotent.pyi is not"), done.stderr
    assert subprocess.run(tool, capture_output=True, timeout=60).returncode == 0
    assert stub.read_text() == (ROOT / "tent" / "_gotent.pyi").read_text()


@pytest.mark.interpreter
def test_the_extension_has_the_functions_of_the_stub() -> None:
    library = _native.load()
    built = {name for name in dir(library) if name.startswith("pybind_")}
    assert built == set(declared()), "build the extension again, or run tools/stubs.py"
    for name, node in declared().items():
        doc = getattr(library, name).__doc__
        found = re.findall(r"^type: \w+: (.+)$", doc, re.M)  # as the extension itself says
        kinds = [argument.annotation for argument in node.args.posonlyargs]
        assert len(found) == len(kinds), f"{name}: {doc}"
        for c_type, kind in zip(found, kinds):
            assert isinstance(kind, ast.Name) and c_type.strip() in C_TYPES[kind.id], f"{name}: {doc}"


@pytest.mark.interpreter
def test_the_type_of_an_engines_library_is_the_extension() -> None:
    body = ast.parse((PACKAGE / "_gotent.pyi").read_text()).body
    (protocol,) = (node for node in body if isinstance(node, ast.ClassDef))
    methods = {node.name: node for node in protocol.body if isinstance(node, ast.FunctionDef)}
    assert set(methods) == set(declared())
    for name, method in methods.items():
        assert ast.get_docstring(method), f"{name} has no comment in pybind"
        of_module = [ast.unparse(argument) for argument in declared()[name].args.posonlyargs]
        of_method = [ast.unparse(argument) for argument in [*method.args.posonlyargs, *method.args.args]]
        assert of_method == ["self", *of_module]
