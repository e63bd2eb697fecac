"""The command: doctor, topo, plan, serve and bench, as users run them."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tent
from tent import command
from tent.command import bench, doctor, pair, screen, topo

ROOT = Path(__file__).parents[2]
TENT = [sys.executable, "-W", "error", "-m", "tent"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TENT, *arguments], capture_output=True, text=True, timeout=60)


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """`tent serve` in another process; the value is host:port/region."""
    with subprocess.Popen([*TENT, "serve", *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
        assert process.wait(30) == 0


def test_doctor_lists_versions_the_machine_and_the_transports() -> None:
    done = run("doctor", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == doctor.STATUS[found["verdict"]], done.stderr
    machine = found["machine"]
    assert machine["tent"] == tent.__version__ and machine["cores"] >= 1
    assert all(machine[key] for key in ("wire", "python", "go", "kernel", "memory_bytes", "congestion"))
    checks = found["checks"]
    assert {"transport tcp", "transport shm", "transport io-uring", "transport buf-io"} <= {c["name"] for c in checks}
    assert all((c["found"] if c["ok"] else c["reason"]) for c in checks), "every line says something"
    assert all(c["ok"] == (not c["reason"]) for c in checks)
    text = run("doctor").stdout
    assert f"tent {tent.__version__} " in text and text.rstrip().splitlines()[-1].startswith("verdict: ")


def test_the_help_shows_the_default_of_each_flag() -> None:
    options = command.parser().parse_args(["bench"])
    assert options.size == [4 << 10, 64 << 10, 1 << 20, 16 << 20] and options.op == ["write", "read"]
    assert (options.batch, options.threads, options.priority, options.seconds) == ([1], [1], ["high"], 0.5)
    shown = " ".join(run("bench", "--help").stdout.split())
    for text in ("4K,64K,1M,16M", "write,read", "1", "high", "0.5"):
        assert f"(default: {text})" in shown


def test_the_verdict_follows_the_weight_of_a_missing_part() -> None:
    def verdict(*missing: str) -> str:
        weights = (doctor.NEEDED, doctor.ADVISED, doctor.OPTIONAL)
        return doctor.judge([doctor.Check(w, w, "absent" if w in missing else "") for w in weights])

    assert verdict() == verdict(doctor.OPTIONAL) == doctor.READY
    assert verdict(doctor.ADVISED, doctor.OPTIONAL) == doctor.LIMITED
    assert verdict(doctor.NEEDED, doctor.ADVISED) == doctor.NOT_READY
    assert sorted(doctor.STATUS.values()) == [0, 1, 3], "2 is that of a wrong argument"


def test_doctor_examines_devices_for_rdma(tmp_path: Path) -> None:
    """Over the fake library: addresses, packets, PCI order and bridges of each device, with a verdict each."""
    sources = sorted((ROOT / "tests" / "fakes" / "verbs" / "library").glob("*.c"))
    library = tmp_path / "libibverbs.so.1"
    include = ROOT / "transports" / "rdma" / "verbs"
    flags = ["-std=gnu11", "-shared", "-fPIC", f"-I{include}", "-Wl,-soname,libibverbs.so.1", "-o", library]
    subprocess.run(["gcc", *flags, *sources, "-lpthread"], check=True)
    env = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "TENT_FAKE_VERBS_DEVICES": "2"}
    command = [sys.executable, "-m", "tent", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    for device in ("fake0", "fake1"):
        for part in ("addresses", "packets", "PCI order", "PCI bridges"):
            check = checks[f"{part} of {device}"]
            assert check["ok"] and check["found"] and check["matters"], check
    assert "RoCE v2" in checks["addresses of fake0"]["found"][0]


def test_doctor_checks_a_pair_there_and_back() -> None:
    with serving("--size", "1M") as target:
        address = target.partition("/")[0]
        done = run("doctor", "--peer", address, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        steps = {step["name"]: step for step in json.loads(done.stdout)["steps"]}
        assert list(steps)[:3] == ["name", "port", "control plane"]
        for name in ("over shm", "over tcp", "back over shm", "back over tcp"):
            assert steps[name]["ok"] and "every byte right" in steps[name]["found"], steps
        assert steps["over io-uring"]["ok"] is None, "it is not for this pair"
        only_here = run("doctor", "--peer", address, "--config", '{"transports": {"shm": {"enable": false}}}')
        assert "ok  over tcp" in only_here.stdout and "ok  over shm" not in only_here.stdout


def test_commands_look_and_measure_beside_the_service_of_their_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]  # as an engine of these settings has them
    control, data, metrics = (place.getsockname()[1] for place in taken)
    settings = {
        "rpc_server_port": control,
        "transports": {"tcp": {"port": data}},
        "metrics": {"http_port": metrics, "http_host": "0.0.0.0"},
    }
    with serving("--size", "1M") as target:
        path = tmp_path / "settings.json"
        path.write_text(json.dumps(settings))
        monkeypatch.setenv("TENT_CONF", str(path))
        looked = run("topo")
        assert looked.returncode == 0 and "has no effect" not in looked.stderr, "nothing is wrong with the settings"
        assert run("plan", "cpu:0", target).returncode == 0
        found = run("doctor", "--peer", target.partition("/")[0])
        assert found.returncode == 0, found.stdout + found.stderr
        done = run("bench", "--size", "4K", "--seconds", "0.02")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "ok  registered memory" in run("doctor").stdout
        served = run("serve")
        assert served.returncode == 1 and str(control) in served.stderr, "this is the service itself"
    for place in taken:
        place.close()


def test_doctor_registers_memory_with_the_settings_that_it_is_given() -> None:
    settings = json.dumps({"transports": {"shm": {"enable": False}}})
    checks = {
        check["name"]: check for check in json.loads(run("doctor", "--json", "--config", settings).stdout)["checks"]
    }
    found = checks["registered memory"]["found"]
    assert "transport tcp uses it" in found and "transport shm uses it" not in found


def test_doctor_takes_settings_from_a_pipe() -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"transports": {"shm": {"enable": false}}}')
    os.close(writing)
    command = [*TENT, "doctor", "--json", "--config", f"/proc/self/fd/{reading}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, pass_fds=[reading])
    os.close(reading)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    found = checks["registered memory"]["found"]
    assert "transport tcp uses it" in found and "transport shm uses it" not in found


def test_doctor_only_reads_from_a_peer_that_offers_no_region_for_it() -> None:
    with tent.Engine() as other, other.allocate(1 << 16, name="theirs") as region:
        region.view[:] = before = bytes(range(256)) * 256
        steps = {step.name: step for step in pair.check(other.address, None)}
        assert steps["over tcp"].ok and steps["over tcp"].found.startswith("READ of")
        assert steps["back"].ok is None and bytes(region.view) == before


@pytest.mark.parametrize(
    "target, step, words",
    [
        ("no-such-host.invalid:1", "name", "does not resolve"),
        ("nonsense", "name", "HOST:PORT"),
        ("127.0.0.1:99999", "name", "HOST:PORT"),
        ("", "name", "HOST:PORT"),
        ("127.0.0.1:1", "port", "nobody listens"),
    ],
)
def test_doctor_names_the_first_step_that_fails(target: str, step: str, words: str) -> None:
    steps = list(pair.check(target, None))
    assert [s.name for s in steps if s.ok is False] == [step] == [steps[-1].name]
    assert words in steps[-1].found and steps[-1].cure


def test_an_answer_of_a_peer_that_is_none_is_no_answer() -> None:
    step = {"name": "over tcp", "ok": True, "found": "\x1b[2J", "cure": "", "of a later version": 1}
    assert pair.told(json.dumps([step])) == [pair.Step("back over tcp", True, "?[2J", "")]
    deep = "[" * pair.ANSWER_BYTES
    for wrong in ("", "[{", "7", "[7]", deep, '[{"name": "x"}]', '[{"name": 7, "ok": true, "found": "", "cure": ""}]'):
        assert pair.told(wrong) == []


def test_a_peer_that_calls_itself_a_file_has_none_opened(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(bytes(4096))
    with tent.Engine() as engine, pair.Answerer(engine) as answerer:
        (step,) = answerer._steps(f"file://{path}")
        assert (step.name, step.ok) == ("control plane", False) and "is not another engine" in step.found


def test_a_long_name_of_a_step_stands_apart_from_its_words() -> None:
    long, short = (
        next(pair.step_lines(pair.Step(name, True, "found"))) for name in ("back over ascend_directacl", "name")
    )
    assert long == "ok  back over ascend_directacl found" and short == f"ok  name{'':16}found"


def test_doctor_without_the_key_of_its_peer_says_how_to_give_it(tmp_path: Path) -> None:
    key = tmp_path / "cluster.key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    settings = json.dumps({"security": {"cluster_key": str(key)}})
    with serving("--config", settings) as target:
        *_, last = pair.check(target, None)
        assert (last.name, last.ok) == ("control plane", False) and "--config" in last.cure
        assert not [step for step in pair.check(target, settings) if step.ok is False]


def test_a_pair_with_wrong_bytes_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison itself: over each transport other bytes come back than were sent."""
    with tent.Engine() as engine, engine.allocate(4096, name=pair.REGION) as region:
        with engine.open(engine.address) as peer, engine.allocate(4096) as local:
            remote = peer[pair.REGION][:4096]
            right = pair.attempt(engine, local, remote, "shm", True, [])
            read = engine.read

            def flipping(*operands: object, **terms: object) -> tent.Transfer:
                region.view[7] ^= 1
                return read(*operands, **terms)  # type: ignore[arg-type]

            monkeypatch.setattr(tent.Engine, "read", lambda _, *operands, **terms: flipping(*operands, **terms))
            wrong = pair.attempt(engine, local, remote, "shm", True, [])
    assert right.ok is True and wrong.ok is False and "other bytes" in wrong.found


def test_a_peer_that_cannot_be_asked_for_the_way_back_is_a_step_of_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """So are the verdict and the JSON there: a firewall that closes the port of data is the usual case."""

    def silent(*_: object, **__: object) -> tent.Transfer:
        raise tent.PeerUnreachableError("the peer is silent", hint="open the port")

    monkeypatch.setattr(tent.Engine, "notify", silent)
    with serving("--size", "1M") as target:
        *_, last = pair.check(target, None)
    assert (last.name, last.ok) == ("back", False) and "open the port" in last.found


def test_topo_is_json_and_an_unknown_speed_is_null() -> None:
    done = run("topo")
    assert done.returncode == 0, done.stderr
    loopback = [nic for nic in json.loads(done.stdout)["nics"] if nic["name"] == "lo"]
    assert all(nic["speed_mbps"] is None for nic in loopback)


def test_topo_has_tables_for_people() -> None:
    done = run("topo", "--table")
    assert done.returncode == 0, done.stderr
    assert "memory of the host" in done.stdout and "interfaces" in done.stdout
    assert any(line.split()[:1] == ["lo"] for line in done.stdout.splitlines())


def test_topo_shows_the_ways_between_accelerators_and_interfaces() -> None:
    def gpu(name: str, nics: dict[str, str], **devices: str) -> dict[str, object]:
        fabric = {"cluster": "c1", "clique": 7}
        facts = {"name": "H100", "pci_bus_id": "0000:03:00.0", "uuid": "", "nics": nics, "devices": devices}
        domain = {"fabric": fabric, "unknown": "no library", "apart": ""}
        return {"name": name, "numa_node": 0, "device": {**facts, **domain}}

    nic = {
        "name": "mlx0",
        "numa_node": 0,
        "speed_mbps": 400000,
        "mtu": 9000,
        "up": True,
        "pci_bus_id": "",
        "addresses": [],
    }
    shown = topo.sections(
        {
            "nics": [nic],
            "mems": [gpu("cuda0", {"mlx0": "PIX"}, cuda1="NV12"), gpu("cuda1", {"mlx0": "SYS"}, cuda0="NV12")],
        }
    )
    ways = next(part for part in shown if part.title == "ways")
    assert ways.header == ("", "cuda0", "cuda1", "mlx0")
    assert ways.rows == [["cuda0", "X", "NV12", "PIX"], ["cuda1", "NV12", "X", "SYS"]]
    assert "no library" in shown[-1].title and [row[-1] for row in shown[2].rows[:1]] == ["c1, clique 7"]


def test_plan_names_the_route_and_the_reasons(tmp_path: Path) -> None:
    with serving() as target:
        done = run("plan", "cpu:0", target, "--json")
        plan = json.loads(done.stdout)
        assert done.returncode == 0 and plan["taken"] == "shm"
        text = run("plan", "cpu:0", target, "--op", "read", "--size", "4K").stdout
        assert "READ of 4.0 KiB" in text and "1. shm  <- taken" in text and "shm is preferred" in text
        assert "-  io-uring: " in text
    file = tmp_path / "cache"
    file.write_bytes(b"x" * 8192)
    assert str(file) in run("plan", "cpu:0", f"file://{file}", "--op", "read").stdout
    assert run("plan", "cpu:0", "127.0.0.1:1/x").returncode == 1


def test_bench_alone_measures_two_processes(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    sweep = ["--size", "4K,64K", "--batch", "1,4", "--threads", "1,2", "--priority", "high,low", "--seconds", "0.02"]
    done = run("bench", *sweep, "--transport", "shm", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(path.read_text())
    rows = found["rows"]
    assert len(rows) == 2**5 and len(done.stdout.strip().splitlines()) == 2**5 + 3
    assert len({(r["op"], r["size"], r["batch"], r["threads"], r["priority"]) for r in rows}) == 2**5
    assert all(r["wrong"] == "" and r["transfers"] >= r["threads"] and r["bytes_per_second"] > 0 for r in rows)
    assert done.stderr == "", "no progress where nobody looks"


def test_bench_to_a_peer_and_what_does_not_fit() -> None:
    with serving("--size", "128K", "--region", "pool") as target:
        done = run("bench", target, "--size", "64K,1G", "--seconds", "0.02", "--json", "-")
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)["rows"]
        assert {r["size"] for r in rows} == {65536} and {r["transport"] for r in rows} == {"shm", "tcp"}
        assert run("bench", target, "--size", "1G").stderr.startswith("tent: nothing fits into")


def test_bench_finds_wrong_bytes_and_other_transports() -> None:
    with tent.Engine() as engine, engine.allocate(8192, name="pool") as theirs:
        with engine.open(engine.address) as peer, engine.allocate(8192) as local:

            class Scribbling(bench.Bench):
                def _rounds(self, row: bench.Row, thread: int, stop: threading.Event) -> None:
                    super()._rounds(row, thread, stop)
                    theirs.view[row.cell.span - 1] ^= 1
                    local.view[row.cell.span - 1] ^= row.cell.op == "read"

            for op in ("write", "read"):
                cell = bench.Cell("shm", "high", 1, 1, 4096, op)
                assert bench.Bench(engine, peer["pool"], local, 0.01).measure(cell).wrong == ""
                wrong = Scribbling(engine, peer["pool"], local, 0.01).measure(cell).wrong
                assert wrong == "other bytes arrived than were sent", op
            other = bench.Cell("io-uring", "high", 1, 1, 4096, "write")
            assert bench.Bench(engine, peer["pool"], local, 0.01).measure(other).wrong, "it cannot carry this"


def test_ctrl_c_stops_all_threads_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    move, here, calls = bench.Bench._move, threading.main_thread(), iter(range(20))

    def interrupted(self: bench.Bench, cell: bench.Cell, thread: int) -> tent.Transfer:
        if threading.current_thread() is here and next(calls, None) is None:
            raise KeyboardInterrupt
        return move(self, cell, thread)

    monkeypatch.setattr(bench.Bench, "_move", interrupted)
    with tent.Engine() as owner, tent.Engine() as engine, owner.allocate(1 << 20, name="pool"):
        with engine.open(owner.address) as peer, engine.allocate(1 << 20) as local:
            with pytest.raises(KeyboardInterrupt):
                bench.Bench(engine, peer["pool"], local, 1e5).measure(bench.Cell("shm", "high", 2, 1, 4096, "write"))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("bench-")]


def test_a_picture_without_a_known_ending_is_a_mistake_before_it_measures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("rates", "rates.csv"):
        done = run("bench", "--plot", str(tmp_path / name))
        assert done.returncode == 1 and done.stdout == "" and ", svg," in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "rates.svg"
    assert run("bench", "--size", "4K", "--seconds", "0.02", "--plot", str(path)).returncode == 0
    assert "</svg>" in path.read_text()


def test_text_of_peers_cannot_steer_the_terminal() -> None:
    assert screen.printable("kv \x1b[2J\r\n\u202etxt") == "kv ?[2J???txt"
    assert screen.aligned(("", "n"), [("a", "5"), ("long", "12")]) == ["       n", "a      5", "long  12"]


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version").stdout == f"tent {tent.__version__}\n"
    assert run("bench", "127.0.0.1:1/x").returncode == 1
    done = run("topo", "--config", '{"no_such_key": 1}')
    assert done.returncode == 1 and done.stderr.startswith("tent: ") and "no_such_key" in done.stderr
    done = run("serve", "--size", "1X")
    assert done.returncode == 2 and "it must be a number of bytes" in done.stderr
    mistakes = [(["serve", "--size", wrong], "it must be a number of bytes") for wrong in ("0", "-1", "K", "")]
    mistakes += [
        (["top", wrong], "is not HOST:PORT")
        for wrong in ("here", ":9100", "http://127.0.0.1:9100/metrics", "h:", "h:0", "127.0.0.1:65537")
    ]
    mistakes += [(["bench", "--transport", wrong], "it is empty") for wrong in ("", "shm,")]
    mistakes += [(["bench", ""], "it is empty"), (["plan", "cpu:0", ""], "it is empty")]
    mistakes += [(["serve", "--region", ""], "it is empty"), (["bench", "--priority", "urgent"], "high, medium, low")]
    for words, said in [*mistakes, ([], "usage: ")]:
        with pytest.raises(SystemExit, check=lambda exit: exit.code == 2):
            command.main(words)
        assert said in capsys.readouterr().err, words


def test_an_empty_address_of_a_peer_is_a_mistake_and_no_check_of_this_machine() -> None:
    done = run("doctor", "--json", "--peer", "")  # of a variable of the shell that is not set
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (1, pair.NOT_READY)


def test_a_file_is_nothing_to_bench_and_an_empty_one_nothing_to_plan(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for words, said in (["bench", "is a file"], ["plan", "is empty"]):
        done = run(words, *["cpu:0"] * (words == "plan"), f"file://{tmp_path}/empty")
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1) and said in done.stderr


def test_ctrl_c_while_modules_are_loaded_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "platform.py").write_text("raise KeyboardInterrupt")  # of the standard library, as its import is left
    done = subprocess.run(
        [*TENT, "doctor"], capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    assert (done.returncode, done.stderr) == (130, "")


def test_a_program_that_run_starts_has_the_signals_of_a_shell() -> None:
    done = run("run", "--", "sh", "-c", "yes | head -1")
    assert (done.stdout, done.stderr) == ("y\n", "")


def test_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    missing = str(tmp_path / "none" / "x.json")
    done = run("bench", "--json", missing)
    assert done.returncode == 1 and done.stdout == "", "before it measures"
    assert done.stderr == f"tent: [Errno 2] No such file or directory: '{missing}'\n"
    for arguments in (["topo", "--json"], ["--help"], ["--version"], ["bench", "--help"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run([*TENT, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode == 1 and done.stderr.startswith("tent: the output cannot be written: "), done.stderr
        assert len(done.stderr.splitlines()) == 1
    closed = subprocess.run(["sh", "-c", '"$@" 2>&- >&-', "-", *TENT, "topo"], timeout=60)
    assert closed.returncode == 0, "nobody wants to read it"


def test_letters_that_the_terminal_lacks_are_escaped(tmp_path: Path) -> None:
    """Also those of a notification, which would end `tent serve`."""
    path = tmp_path / "zwölf"
    path.write_bytes(bytes(10))
    ascii = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*TENT, "plan", "cpu:0", f"file://{path}"], capture_output=True, text=True, timeout=60, env=ascii
    )
    assert done.returncode == 0 and "zw\\xf6lf" in done.stdout, done.stderr


def test_a_wait_that_runs_out_is_no_fault_of_the_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def late(_: object) -> int:
        raise TimeoutError("the transfer has not ended within 10 s; it goes on")

    monkeypatch.setattr(topo, "run", late)
    assert command.main(["topo"]) == 1
    assert capsys.readouterr().err == "tent: the transfer has not ended within 10 s; it goes on\n"


def test_a_reader_that_has_enough_ends_the_command() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run([*TENT, "topo", "--json"], stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_the_second_process_of_bench_ends_with_it() -> None:
    program = """
import os, pathlib, sys
from tent.command import bench
with bench.another_process(4096, None) as target:
    print(pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text(), flush=True)
    sys.stdin.readline()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        server = os.pidfd_open(int(process.stdout.readline()))
        process.kill()
    try:
        assert select.select([server], [], [], 30)[0], "it is left alone"
    finally:
        os.close(server)


def test_samples_of_the_reference_have_the_columns_of_today() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
    header = next(line for line in page.splitlines() if "GB/s" in line)
    assert header.split() == [name for name in bench.HEADER if name]
