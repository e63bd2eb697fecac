"""The notebook of vLLM, where vLLM is: its cells run as one program, and its picture has something in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "vllm.ipynb"


@pytest.mark.timeout(900)
def test_the_notebook_draws_when_kv_caches_moved(tmp_path: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    program = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    picture = tmp_path / "moved.png"
    program = program.replace("plt.show()", f"plt.savefig({str(picture)!r})")
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=840, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "3 requests, " in done.stdout and "MiB of KV cache moved" in done.stdout
    assert picture.stat().st_size > 5000
