"""Every program in docs/examples/ runs as it stands, in a folder of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import tent

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "examples"
PROGRAMS = [path for path in sorted(FOLDER.glob("*.py")) if path.stem != "two_hosts"]


def test_there_are_examples() -> None:
    assert PROGRAMS


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    done = subprocess.run(
        [sys.executable, "-W", "error", path], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout and not done.stderr


def test_two_hosts_move_bytes_with_one_address_and_one_key(tmp_path: Path) -> None:
    """As between hosts: no shared memory, and an address on the serving side alone."""
    key = tmp_path / "cluster.key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    env = {**os.environ, "TENT_CONF": '{"transports": {"shm": {"enable": false}}}'}
    command = [sys.executable, "-W", "error", FOLDER / "two_hosts.py"]
    with subprocess.Popen([*command, "serve", "127.0.0.2", key], env=env, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        address = server.stdout.readline().strip()
        try:
            write = [*command, "write", address, key]
            done = subprocess.run(write, env=env, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            assert "COMPLETED" in done.stdout and " tcp " in done.stdout
            assert "step 7: 1048576 bytes" in server.communicate(timeout=60)[0]
            assert server.returncode == 0
        finally:
            server.kill()


@pytest.fixture
def checkpoint() -> ModuleType:
    pytest.importorskip("numpy")
    spec = importlib.util.spec_from_file_location("checkpoint", FOLDER / "checkpoint.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_checkpoint_is_whole_or_refused(
    engines: Callable[..., tent.Engine], checkpoint: ModuleType, tmp_path: Path
) -> None:
    """A file that is cut off, flipped or no checkpoint at all is an error that says so, never wrong arrays."""
    import numpy as np

    engine, path = engines(), tmp_path / "c"
    saved = {"a": np.arange(5000, dtype=np.int16), "b": np.ones((3, 4))}
    checkpoint.save(engine, path, saved)
    whole = path.read_bytes()
    again = checkpoint.restore(engine, path)
    assert all((again[name] == saved[name]).all() for name in saved)
    with pytest.raises(ValueError, match="numbers"):
        checkpoint.save(engine, path, {"object": np.array([{}])})
    assert path.read_bytes() == whole, "the old checkpoint stays until the new one is whole"
    for what in (whole[:10], whole[:100], whole[:4096], whole[: len(whole) - 4096], b"x" * 20000, b""):
        path.write_bytes(what)
        with pytest.raises(ValueError):
            checkpoint.restore(engine, path)
    for at in (0, 8, 4096 + 9999, len(whole) - 4096):
        wrong = bytearray(whole)
        wrong[at] ^= 1
        path.write_bytes(wrong)
        with pytest.raises(ValueError):
            checkpoint.restore(engine, path)
