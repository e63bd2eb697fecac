"""`tent run` and `tent compat`: a program that imports nixl or mooncake gets tent, and so do its children."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apart
import pytest

import tent
from tent import command, compat

pytestmark = pytest.mark.adapters

PROGRAM = """
import json, multiprocessing, os, sys

def names():
    import nixl, nixl._bindings
    from mooncake.engine import TransferEngine
    from nixl._api import nixl_agent, nixl_thread_sync_t
    from nixl.logging import get_logger
    assert nixl_agent is nixl.nixl_agent and issubclass(nixl._bindings.nixlBackendError, Exception)
    get_logger("x").debug("quiet")
    return nixl_agent.__module__, TransferEngine.__module__

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        child = pool.apply(names)
    conf = json.loads(os.environ.get("TENT_CONF", "null"))
    print(json.dumps([names(), child, conf, sys.argv[1:]]))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    pytest.importorskip("numpy")  # as those that call the adapters have
    path = tmp_path / "stack.py"
    path.write_text(PROGRAM)
    return path


def tent_run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tent", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_a_program_and_its_children_get_tent(program: Path, tmp_path: Path) -> None:
    key = tmp_path / "cluster.key"
    key.write_bytes(os.urandom(32))
    done = tent_run(
        "run", "--as", "nixl,mooncake", "--config", '{"log_level": "error", "transports/tcp/lanes": 2}',
        "--security-key", str(key), "--", sys.executable, str(program), "--flag", "value",
        TENT_CONF='{"log_level": "info", "security/limits/peers": 9, "transports": {"shm": {"enable": false}}}',
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    own, child, conf, arguments = json.loads(done.stdout)
    assert own == child == ["tent.compat.nixl.agent", "tent.compat.mooncake"]
    assert conf == {
        "log_level": "error",
        "security": {"limits": {"peers": 9}, "cluster_key": str(key)},
        "transports": {"shm": {"enable": False}, "tcp": {"lanes": 2}},
    }
    assert arguments == ["--flag", "value"]
    assert done.stderr.count("stands for nixl in process") == done.stderr.count("stands for mooncake.engine") == 2


@pytest.mark.parametrize(
    "known, config",
    [
        ({"staging": {"slots": 3}, "log_level": "error"}, {"staging": None, "log_level": None}),
        ({"staging": None}, {"staging/slots": 3}),
        ({"transports": None}, {"transports/tcp/lanes": 2}),
        ({"transports": {"io_uring": {"enable": False}}}, {"transports": {"iouring": {"enable": True}}}),
        ({"transports/io-uring/depth": 7}, {"transports": {"iouring": {"depth": 9}, "bufio": {"workers": 3}}}),
        (
            {"topology": {"priority_matrix": {"cpu:0": [["a"], ["b"]]}}},
            {"topology/priority_matrix": {"cpu:1": [["c"], []]}},
        ),
        ({"topology/priority_matrix": {"cpu:0": [["a"], ["b"]]}}, {"topology": {"priority_matrix": {}}}),
        ({}, {"staging": {"slots": None}, "staging/slots": 3}),
        ({"staging": {"slots": 3}, "transports": {}}, {"staging": {}, "transports/tcp": {}}),
    ],
)
def test_settings_are_merged_as_the_engine_merges_them(
    monkeypatch: pytest.MonkeyPatch, known: dict[str, object], config: dict[str, object]
) -> None:
    monkeypatch.setenv("TENT_CONF", json.dumps(known))
    with tent.Engine(config) as engine:
        expected = {key: setting.value for key, setting in engine.config.items()}
    show = "import os; print(os.environ['TENT_CONF'])"
    done = tent_run("run", "--config", json.dumps(config), "--", sys.executable, "-c", show)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("TENT_CONF", done.stdout)
    with tent.Engine() as engine:
        assert {key: setting.value for key, setting in engine.config.items()} == expected


@pytest.mark.parametrize(
    "config",
    [
        {"name": {}},
        {"transports": {"io-uring": {"depth": 7}, "io_uring": {"depth": 8}}},
        {"transports/tcp/lanes": 1, "transports": {"tcp": {"lanes": 2}}},
        {"staging/slots": None, "staging": {"slots": 3}},
    ],
)
def test_settings_that_the_engine_refuses_are_not_merged_into_others(
    config: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENT_CONF", '{"name": "a"}')
    with pytest.raises(tent.InvalidArgumentError) as refused:
        tent.Engine(config).close()
    code = "import tent; tent.Engine().close()"
    done = tent_run("run", "--config", json.dumps(config), "--", sys.executable, "-c", code)
    assert done.returncode == 1
    assert str(refused.value).partition("argument: ")[2] in done.stderr


def test_a_key_may_be_given_where_the_settings_have_a_null(tmp_path: Path) -> None:
    key = tmp_path / "cluster.key"
    key.write_bytes(os.urandom(32))
    show = "import os; print(os.environ['TENT_CONF'])"
    done = tent_run("run", "--security-key", str(key), "--", sys.executable, "-c", show, TENT_CONF='{"security": null}')
    assert json.loads(done.stdout) == {"security": {"cluster_key": str(key)}}, done.stderr


def test_pythonpath_alone_does_it(program: Path) -> None:
    shown = tent_run("compat")
    assert shown.stdout.strip() == compat.path()
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": shown.stdout.strip(), "TENT_COMPAT_QUIET": "1"},
    )
    assert done.returncode == 0 and "stands for" not in done.stderr, done.stderr
    assert tent_run("compat", "nixl").stdout.strip() == compat.path(["nixl"])


def test_the_real_packages_other_modules_stay(tmp_path: Path) -> None:
    real = tmp_path / "site" / "mooncake"
    real.mkdir(parents=True)
    (real / "__init__.py").write_text("raise ImportError('the real package was imported')\n")
    (real / "store.py").write_text("kind = 'real'\n")
    (real / "engine.py").write_text("raise ImportError('the real engine was imported')\n")
    (real / "buffer_pool.py").write_text("class BufferPool: kind = 'pool'\n")
    code = (
        "import mooncake.store, mooncake.engine; from mooncake import store, BufferPool;"
        "print(store.kind, mooncake.engine.TransferEngine.__module__, BufferPool.kind, hasattr(mooncake, 'Pool'))"
    )
    done = tent_run("run", "--as", "mooncake", "--", sys.executable, "-c", code, PYTHONPATH=str(tmp_path / "site"))
    assert done.stdout.split() == ["real", "tent.compat.mooncake", "pool", "False"], done.stderr


def test_the_version_of_nixl_is_that_for_which_tent_stands(tmp_path: Path) -> None:
    """vLLM looks for it, and refuses a NIXL before 1.5."""
    site = tmp_path / "site"
    for part in ("nixl", "nixl-1.3.0.dist-info"):
        (site / part).mkdir(parents=True)
    (site / "nixl" / "__init__.py").write_text("raise ImportError('the real package was imported')\n")
    (site / "nixl-1.3.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: nixl\nVersion: 1.3.0\n")
    (site / "nixl-1.3.0.dist-info" / "top_level.txt").write_text("nixl\n")
    code = (
        "from importlib.metadata import packages_distributions, version;"
        "import nixl; print(*packages_distributions()['nixl'], version('nixl'), nixl.nixl_agent.__module__)"
    )
    done = tent_run("run", "--as", "nixl", "--", sys.executable, "-c", code, PYTHONPATH=str(site))
    assert done.stdout.split() == ["nixl", "nixl", "1.5.1", "tent.compat.nixl.agent"], done.stderr


@pytest.mark.parametrize("package", ["nixl_cu12", "nixl_cu13", "nixl_rocm"])
def test_the_packages_behind_nixl_are_tents_too(tmp_path: Path, package: str) -> None:
    """TensorRT-LLM imports nixl_cu13 before nixl, and vLLM nixl_rocm on AMD's GPUs."""
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("raise ImportError('the real package was imported')\n")
    code = (
        f"import {package} as p, {package}._api as a, {package}._bindings as b;"
        "assert p._api is a and p.nixl_agent is a.nixl_agent and p.NIXL_ERR_NOT_FOUND == b.NIXL_ERR_NOT_FOUND == -4;"
        "assert p.malloc_passthru is p._utils.malloc_passthru and p.nixlXferTelemetry is b.nixlXferTelemetry;"
        "print(p.nixl_agent.__module__, p.logging.get_logger(__name__).name)"
    )
    done = tent_run("run", "--as", "nixl", "--", sys.executable, "-c", code, PYTHONPATH=str(tmp_path))
    assert done.stdout.split() == ["tent.compat.nixl.agent", "tent.compat.nixl"], done.stderr
    assert f"stands for {package} in process" in done.stderr


def test_a_real_module_gets_the_part_of_the_engine_that_tent_does_not_have(tmp_path: Path) -> None:
    real = tmp_path / "site" / "mooncake"
    real.mkdir(parents=True)
    (real / "__init__.py").write_text("")
    (real / "engine.py").write_text("import sys\nsys.modules[__name__] = None\nclass SharedSegment: kind = 'real'\n")
    (real / "shared_segment.py").write_text("from .engine import SharedSegment\n")
    code = (
        "import mooncake.shared_segment as s, mooncake.engine as e;"
        "print(s.SharedSegment.kind, e.TransferEngine.__module__, hasattr(e, 'MooncakeStore'))"
    )
    done = tent_run("run", "--as", "mooncake", "--", sys.executable, "-c", code, PYTHONPATH=str(tmp_path / "site"))
    assert done.stdout.split() == ["real", "tent.compat.mooncake", "False"], done.stderr
    (real / "engine.py").unlink()
    done = tent_run("run", "--as", "mooncake", "--", sys.executable, "-c", code, PYTHONPATH=str(tmp_path / "site"))
    assert "cannot import name 'SharedSegment'" in done.stderr


def test_elsewhere_nothing_is_in_their_place() -> None:
    code = "import importlib.util as u; import tent; print(u.find_spec('nixl'), u.find_spec('mooncake'))"
    assert "compat" not in apart.passes(code)


def test_wrong_words_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """One in a process of its own, for its exit status; the others by the entry point of the same command."""
    done = tent_run("run", "--as", "nixl", "--")
    assert done.returncode != 0 and "no command to run" in done.stderr, done.stderr
    for words, said in (
        (("run", "--as", "ucx", "--", "true"), "'ucx' is none of nixl, mooncake"),
        (("run", "--", "no-such-program"), "no program 'no-such-program'"),
        (("run", "--security-key", "/nonexistent", "--", "true"), "there is no file /nonexistent"),
        (("run", "--config", "/nonexistent", "--", "true"), "--config"),
        (("run", "--config", "{", "--", "true"), "--config is not JSON"),
        (("run", "--config", '{"a": 1, "a/b": 2}', "--", "true"), "below 'a', which is a value"),
        (("compat", "ucx"), "'ucx' is none of"),
    ):
        try:
            status: object = command.main(list(words))
        except SystemExit as exit:
            status = exit.code
        err = str(status) + capsys.readouterr().err  # Python prints a status that is a text
        assert status not in (0, None) and said in err, (words, err)
    with pytest.raises(tent.InvalidArgumentError, match="no module is named"):
        compat.path([])


READER = """
import json, mmap, ctypes, sys
import nixl  # which is tent's here

metadata, remote, size = sys.stdin.readline().strip().encode(), int(sys.argv[1]), int(sys.argv[2])
memory = mmap.mmap(-1, size)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
agent = nixl.nixl_agent("reader")
agent.register_memory([(address, size, 0, "")], "DRAM")
name = agent.add_remote_agent(metadata)
lists = agent.get_xfer_descs([(address, size, 0)], "DRAM"), agent.get_xfer_descs([(remote, size, 0)], "DRAM")
handle = agent.initialize_xfer("READ", *lists, name, b"taken")
agent.transfer(handle)
while agent.check_xfer_state(handle) == "PROC":
    pass
wrong = sum(byte != i * 7 % 251 for i, byte in enumerate(memory[:]))
transports = sorted(set().union(*(t.transports for t in handle._sent)))
print(json.dumps([agent.check_xfer_state(handle), wrong, transports]))
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Two network namespaces with a wire between them: the words that run a command in each."""
    tool = shutil.which("ip")
    if tool is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and the command ip (iproute2)")
    names = [f"tent-{os.getpid()}-{side}" for side in "ab"]

    def ip(*words: str) -> None:
        subprocess.run([tool, *words], check=True, capture_output=True, timeout=20)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "wire", "netns", names[0], "type", "veth", "peer", "name", "wire", "netns", names[1])
        for i, name in enumerate(names, 1):
            ip("-n", name, "address", "add", f"10.98.0.{i}/24", "dev", "wire")
            ip("-n", name, "link", "set", "wire", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield [tool, "netns", "exec", names[0]], [tool, "netns", "exec", names[1]]
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
    finally:
        for name in names:
            subprocess.run([tool, "netns", "del", name], capture_output=True, timeout=20)


def test_two_hosts_by_one_key(hosts: tuple[list[str], list[str]], tmp_path: Path) -> None:
    """The adapters between two network namespaces: `tent run` carries the key and the address."""
    pytest.importorskip("numpy")
    size = 1 << 20
    key = tmp_path / "cluster.key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    reader = tmp_path / "reader.py"
    reader.write_text(READER)

    def command(side: int, *words: str) -> list[str]:
        settings = {"rpc_server_hostname": f"10.98.0.{side + 1}", "transports": {"shm": {"enable": False}}}
        config = json.dumps(settings)  # two machines share no memory
        run = [sys.executable, "-m", "tent", "run", "--security-key", str(key), "--config", config, "--"]
        return [*hosts[side], *run, sys.executable, *words]

    side = Path(__file__).parent / "programs" / "nixl_side.py"
    with subprocess.Popen(
        command(0, str(side), "prefill", str(size)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdin and owner.stdout
        try:
            said = json.loads(owner.stdout.readline())
            words = command(1, str(reader), str(said["address"]), str(size))
            done = subprocess.run(words, input=said["metadata"] + "\n", capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout) == ["DONE", 0, ["tcp"]]
            owner.stdin.write("notes\n")
            owner.stdin.flush()
            assert json.loads(owner.stdout.readline()) == {"reader": ["taken"]}
            other = tmp_path / "other.key"
            other.write_bytes(os.urandom(32))
            other.chmod(0o600)
            refused = [word.replace(str(key), str(other)) for word in words]
            done = subprocess.run(refused, input=said["metadata"] + "\n", capture_output=True, text=True, timeout=60)
            assert done.returncode != 0 and "nixl" in done.stderr.splitlines()[-1], done.stderr
        finally:
            owner.kill()
