"""The servers of tests/clients end with the suite that started them, however that ends; a stand-in is vLLM."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 60  # seconds, of a machine that others use too

# A server with a process of its own. Both hold the pipe open.
SERVER = """
import os, subprocess, sys, time
pipe = os.open({pipe!r}, os.O_WRONLY)
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], pass_fds=[pipe])
os.write(pipe, b"up")
time.sleep(1000)
"""

SUITE = """
import sys, time
from pathlib import Path
sys.path.insert(0, "tests/clients")
from servers import Server
Server("prefill", Path("model"), Path(sys.argv[1]), environment={"PYTHONPATH": sys.argv[1]}).start()
time.sleep(1000)
"""


@pytest.mark.parametrize("end", [subprocess.Popen.terminate, subprocess.Popen.kill])
def test_a_server_ends_with_its_suite(tmp_path: Path, end: object) -> None:
    pipe, module = tmp_path / "pipe", tmp_path / "vllm" / "entrypoints" / "openai"
    os.mkfifo(pipe)
    module.mkdir(parents=True)
    (module / "api_server.py").write_text(SERVER.format(pipe=str(pipe)))
    suite = subprocess.Popen([sys.executable, "-c", SUITE, str(tmp_path)], cwd=ROOT)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert select.select([reading], [], [], LIMIT)[0] and os.read(reading, 8) == b"up"
        assert callable(end)
        end(suite)
        assert suite.wait(LIMIT) != 0
        assert select.select([reading], [], [], LIMIT)[0] and os.read(reading, 8) == b"", "one of them still runs"
    finally:
        suite.kill()
        suite.wait()
        os.close(reading)
