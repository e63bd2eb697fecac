"""Every notebook runs from top to bottom in a fresh kernel of this interpreter, and is kept without its outputs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
CELL_SECONDS = 240

# Jupyter's own packages warn of their changes to come.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_without_outputs(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    left = [cell["id"] for cell in cells if cell.get("outputs") or cell.get("execution_count") is not None]
    assert not left, "clear all outputs before saving"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="comes with tent[notebook]")
    nbclient = pytest.importorskip("nbclient", reason="comes with tent[notebook]")
    pytest.importorskip("ipykernel", reason="comes with tent[notebook]")
    pytest.importorskip("matplotlib", reason="comes with tent[notebook]")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell("import sys; print(sys.executable)"))
    client = nbclient.NotebookClient(
        notebook, timeout=CELL_SECONDS, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    )
    client.execute()  # raises with the cell and its traceback
    assert notebook.cells[-1].outputs[0].text.strip() == sys.executable, "another Python ran it"
