"""Engine.open() of files: files that it makes, grows, takes and refuses, and its messages then."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tent


def test_create_makes_grows_and_never_truncates(engine: tent.Engine, folder: Path) -> None:
    path = folder / "f"
    with engine.open(path.as_uri(), create=True, size=5000) as file:
        assert (file.size, len(file), file.path, file.readonly) == (5000, 5000, str(path), False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b"x" * 5000)
    for size, then in ((100, 5000), (None, 5000), (9000, 9000)):
        with engine.open(path, create=True, size=size) as file:
            assert file.size == then
    assert path.read_bytes() == b"x" * 5000 + bytes(4000)
    with engine.open(path) as file:
        assert file.size == 9000
    with engine.open(path, create=True, size=10, truncate=True) as file:
        assert file.size == 10
    assert path.read_bytes() == bytes(10)


def test_open_names_the_mistake(engine: tent.Engine, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345678")
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name, error in {
            "absent": FileNotFoundError,
            "absent/deeper": FileNotFoundError,
            "": tent.InvalidArgumentError,  # the folder itself
            "fifo": tent.InvalidArgumentError,
            "socket": tent.TentError,
            "file/below": tent.TentError,
        }.items():
            with pytest.raises(error) as caught:
                engine.open(f"file://{tmp_path}/{name}")
            assert str(tmp_path) in str(caught.value)
            assert isinstance(caught.value, tent.TentError)
    with pytest.raises(tent.InvalidArgumentError, match="not a regular file"):
        engine.open("file:///dev/null")
    for given_, match in (
        ({"size": 4}, "create=True"),
        ({"size": "four", "create": True}, "number of bytes"),
        ({"size": -1, "create": True}, "number of bytes"),
        ({"create": 1}, "True or False"),
        ({"readonly": True, "create": True}, "reading only"),
        ({"readonly": True, "durability": "data"}, "reading only"),
        ({"durability": "full"}, "durability"),
    ):
        with pytest.raises(tent.InvalidArgumentError, match=match):
            engine.open(file, **given_)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        engine.open(file, mode="r")  # type: ignore[call-arg]
    for target in ("file:x", "file://x", "file://localhost/x"):
        with pytest.raises(tent.InvalidArgumentError, match="three slashes"):
            engine.open(target)
    with pytest.raises(tent.InvalidArgumentError, match="zero byte"):
        engine.open("file:///a\0b")
    with pytest.raises(tent.InvalidArgumentError, match="for files"):
        engine.open(engine.address, create=True)
    assert file.read_bytes() == b"12345678"


@pytest.mark.interpreter
@pytest.mark.parametrize("name", ["a b", "ü", "%41", "a:b", "#?&", "'\""])
def test_a_path_is_taken_as_it_stands(engine: tent.Engine, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"1234")
    for target in (f"file://{tmp_path}/{name}", tmp_path / name):
        with engine.open(target) as file:
            assert file.size == 4
            assert file.path == str(tmp_path / name)


def test_slices_stay_inside_and_a_file_has_neither_regions_nor_addresses(engine: tent.Engine, tmp_path: Path) -> None:
    memory = bytearray(100)
    with engine.register(memory) as local, engine.open(tmp_path / "f", create=True, size=100) as file:
        for key in (slice(0, 101), slice(50, 50), slice(-1, 3), slice(0, 10, 2)):
            with pytest.raises(tent.InvalidArgumentError):
                file[key]
        with pytest.raises(tent.InvalidArgumentError, match="slice it"):
            file["kv"]
        with pytest.raises(tent.InvalidArgumentError, match="slice it"):
            file.memory(1, 1)
        with pytest.raises(tent.InvalidArgumentError, match="no notification"):
            engine.write(local, file, notify=("a", "b"))
        with pytest.raises(tent.InvalidArgumentError, match="no notification"):
            engine.notify(file, "a")
        with pytest.raises(tent.InvalidArgumentError, match="differ in size"):
            engine.write(local[:10], file)
        with pytest.raises(tent.InvalidArgumentError, match="no file is written"):
            engine.write(local[:10], local[20:30], durability="data")
        with pytest.raises(tent.InvalidArgumentError, match="durability"):
            engine.write(local, file, durability="yes")
        with pytest.raises(tent.InvalidArgumentError, match="no checksums"):
            engine.write(local, file, integrity="crc32c")
        assert file.alive()
        assert repr(file) == f"<Segment file://{tmp_path}/f: 100 B>"
        assert repr(file[5:10]) == f"<file://{tmp_path}/f[5:10] 5 B>"
    with pytest.raises(tent.InvalidEntryError):
        engine.write(memory, file)


def test_readonly_refuses_to_write(engine: tent.Engine, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"12345678")
    memory = bytearray(8)
    with engine.register(memory) as local, engine.open(path, readonly=True) as file:
        assert file.readonly
        assert engine.read(local, file).result(10) == 8
        with pytest.raises(PermissionError, match="reading only"):
            engine.write(local, file)
    assert memory == path.read_bytes() == b"12345678"


AS_NOBODY = """
import os, sys, tent
path, other = sys.argv[1:]
with tent.Engine() as engine, tent.TransferEngine() as plain:
    with engine.open("file://" + other, create=True, size=8) as file, engine.register(bytearray(8)) as local:
        engine.write(local, file).result(10)         # everything is loaded: nobody may not read the interpreter's files
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    try:
        engine.open("file://" + path)
    except PermissionError as error:
        assert isinstance(error, tent.PermissionDeniedError) and path in str(error), error
    else:
        raise SystemExit("it could be opened for writing")
    with engine.open("file://" + path, readonly=True) as file, engine.register(bytearray(file.size)) as local:
        assert engine.read(local, file).result(10) == 8 and bytes(local.view) == b"12345678"
    segment = plain.open_segment("file://" + path)   # reading is enough for a name alone
    memory = plain.allocate_local_memory(8)
    plain.transfer_sync([tent.Request(tent.OpCode.READ, memory, segment, 0, 8)], 10)
    try:
        plain.transfer_sync([tent.Request(tent.OpCode.WRITE, memory, segment, 0, 8)], 10)
    except PermissionError:
        print("ok")
    plain.free_local_memory(memory)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_without_permission(tmp_path: Path) -> None:
    for folder in tmp_path.relative_to("/").parents:  # pytest's own folders are for their user alone
        if folder != Path(".") and folder != Path("tmp"):
            (Path("/") / folder).chmod(0o755)
    tmp_path.chmod(0o755)
    path = tmp_path / "f"
    path.write_bytes(b"12345678")
    path.chmod(0o444)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", AS_NOBODY, path, tmp_path / "other"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_roots_limit_open(engines: Callable[..., tent.Engine], tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (inside / "link").symlink_to(outside / "secret")
    (inside / "folder").symlink_to(outside)
    engine = engines(transports={"file": {"roots": [str(inside)]}})
    with engine.open(inside / "mine", create=True, size=10) as file:
        assert file.size == 10
    for path in (
        outside / "secret",
        f"{inside}/../outside/secret",
        inside / "link",
        inside / "folder/secret",
        f"{inside}2",
        "/etc/passwd",
    ):
        with pytest.raises(PermissionError):
            engine.open(f"file://{path}")
        with pytest.raises(PermissionError):
            engine.open(f"file://{path}", create=True, size=10)
    assert (outside / "secret").read_bytes() == b"secret"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["inside", "outside"]


def test_without_a_transport_of_files(engines: Callable[..., tent.Engine], tmp_path: Path) -> None:
    off = {"io_uring": {"enable": False}, "buf-io": {"enable": False}}
    with pytest.raises(NotImplementedError, match=r"io-uring: .*enable is false.*buf-io: .*enable is false"):
        engines(transports=off).open(tmp_path / "f", create=True, size=1)
    assert not (tmp_path / "f").exists()
    only = engines(transports={"io_uring": {"enable": False}})
    with only.open(tmp_path / "f", create=True, size=4096) as file, only.register(bytearray(4096)) as local:
        said = only.explain(local, file)
        assert [route["transport"] for route in said["routes"]] == ["buf-io"]
        assert {"transport": "io-uring", "reason": "transports/io-uring/enable is false"} in said["rejected"]
        assert only.write(local, file).result(30) == 4096
