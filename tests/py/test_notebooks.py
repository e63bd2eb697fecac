"""Every notebook runs from top to bottom in a fresh kernel of this interpreter, and is kept without its outputs."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
CELL_SECONDS = 240
# Tests run the same scenes as programs: those of the README, and those of docs/examples.
SCENES = ("failover", "qos", "kvcache_files")

# Jupyter's own packages warn of their changes to come.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_without_outputs(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    left = [cell["id"] for cell in cells if cell.get("outputs") or cell.get("execution_count") is not None]
    assert not left, "clear all outputs before saving"


def cells_of(path: Path) -> list[ast.Module]:
    """The code cells of a notebook, parsed; `await` at the top is allowed there."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [compile(text, path.name, "exec", flags) for text in texts]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_engines_of_a_notebook_end_with_their_block(path: Path) -> None:
    """A cell that runs twice leaves no engine behind."""
    for cell in cells_of(path):
        nodes = list(ast.walk(cell))
        entered = {id(item.context_expr) for node in nodes if isinstance(node, ast.With) for item in node.items}
        for node in nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("tent.Engine", "Pair", "Cluster"):
                assert id(node) in entered, ast.unparse(node)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_leans_on_public_modules_only(path: Path) -> None:
    for cell in cells_of(path):
        for node in ast.walk(cell):
            if isinstance(node, ast.ImportFrom):
                assert node.module == "tent.testing" or not str(node.module).startswith("tent"), node.module
            if isinstance(node, ast.Attribute):
                assert ast.unparse(node) != "sys.path"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.long] if path.stem in SCENES else []) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_notebook_runs(path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="comes with tent-engine[notebook]")
    nbclient = pytest.importorskip("nbclient", reason="comes with tent-engine[notebook]")
    pytest.importorskip("ipykernel", reason="comes with tent-engine[notebook]")
    pytest.importorskip("matplotlib", reason="comes with tent-engine[notebook]")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell("import sys; print(sys.executable)"))
    client = nbclient.NotebookClient(
        notebook, timeout=CELL_SECONDS, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    )
    client.execute()  # raises with the cell and its traceback
    assert notebook.cells[-1].outputs[0].text.strip() == sys.executable, "another Python ran it"
