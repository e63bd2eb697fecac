"""Engine.config shows the values in force and the ranges that are really taken."""

from __future__ import annotations

import copy
import os
import pickle
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tent
from tent import command, settings

DEEP = 200_000  # objects in objects: Python 3.14 takes some 50,000
LANES = "transports/tcp/lanes"
ENABLE = "transports/tcp/enable"


def test_config_shows_values_in_force_and_their_ranges() -> None:
    with tent.Engine() as engine:
        lanes = engine.config[LANES]
        assert lanes.value == min(2, os.cpu_count() or 1)
        assert lanes.origin == "default (one a processor, at most 2)"
        assert lanes.takes == "an integer from 1 to 16"
        assert engine.config["transports/tcp/credit_requests"].value == 1024
        assert engine.config["transports/tcp/slice_bytes"].value == 1 << 20


def test_a_default_follows_a_value_that_bounds_it() -> None:
    with tent.Engine({"transports/tcp/window_bytes": 1 << 16}) as engine:
        slice_bytes = engine.config["transports/tcp/slice_bytes"]
        assert (slice_bytes.value, slice_bytes.origin) == (1 << 16, "default (at most transports/tcp/window_bytes)")


def test_a_setting_is_not_changed_by_its_view() -> None:
    with tent.Engine() as engine:
        config = engine.config
        with pytest.raises(TypeError, match="given when an engine is made"):
            config[LANES] = 4
        assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config == engine.config


class Integer:
    """An integer that is no int, as those of NumPy."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __index__(self) -> int:
        return self._n


def test_paths_and_integers_of_any_kind_are_values(tmp_path: Path) -> None:
    key = tmp_path / "cluster.key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    member = {"cluster_key": key}
    with tent.Engine({"max_failover_attempts": Integer(3)}, security=member) as engine:
        assert engine.config["security/cluster_key"].value == str(key)
        assert engine.config["max_failover_attempts"].value == 3


@pytest.mark.parametrize("value", [0, 17])
def test_values_beyond_the_range_are_refused_before_anything_starts(value: int) -> None:
    with pytest.raises(
        tent.InvalidArgumentError,
        match=re.escape(f"{LANES}: {value} is out of range: it takes an integer from 1 to 16"),
    ):
        tent.Engine({LANES: value})


def test_what_has_no_effect_says_why() -> None:
    policy = [{"segment_type": "memory", "service_level": 3}]
    with tent.Engine({"transports/rdma/num_lanes": 2, "qos": {"version": 1}, "policy": policy}) as engine:
        config = engine.config
        assert config["transports/rdma/workers/num_workers"].value == 2, "an older name of num_lanes"
        lanes = config["transports/rdma/num_lanes"]
        assert lanes.active or "RDMA device" in lanes.why or "libibverbs" in lanes.why, "what this machine lacks"
        assert not config["qos"].active
        assert config["policy"].active
        assert "service_level" in config["policy"].why


@pytest.mark.parametrize("variable", ["TENT_CONF", "MC_TENT_CONF"])
def test_settings_come_from_the_environment_as_it_is_now(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, '{"log_level": "error"}')
    with tent.Engine() as engine:
        assert engine.config["log_level"][:2] == ("error", f"environment {variable}")
    monkeypatch.setenv(variable, '{"log_level": "loud"}')
    with pytest.raises(tent.InvalidArgumentError, match=f"environment {variable}"):
        tent.Engine()
    monkeypatch.delenv(variable)
    with tent.Engine() as engine:
        assert engine.config["log_level"].origin.startswith("default")


@pytest.mark.parametrize("variable", ["TENT_CONF", "MC_TENT_CONF"])
def test_a_path_in_the_environment_may_have_any_bytes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9.json"
    Path(os.fsdecode(path)).write_text('{"log_level": "error"}')
    monkeypatch.setitem(os.environb, variable.encode(), path)
    with tent.Engine() as engine:
        assert engine.config["log_level"].value == "error"


def test_other_threads_may_change_the_environment_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(_: object) -> Iterator[str]:
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(type(os.environ), "__iter__", changed)
    with tent.Engine() as engine:
        assert engine.address


def test_faults_come_from_the_environment_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENT_FAULTS", "op=READ delay=1ms unused_ok")
    with tent.Engine() as engine:
        assert engine.config["faults"].origin == "environment TENT_FAULTS"


@pytest.mark.parametrize("config", [{"transports": {"tcp": {"lanes": 3, "enable": False}}}, {LANES: 3, ENABLE: False}])
@pytest.mark.parametrize("keywords", [{"transports": {"tcp": {"lanes": 4}}}, {LANES: 4}])
def test_keywords_win_over_the_config_key_by_key(config: dict[str, Any], keywords: dict[str, Any]) -> None:
    """As objects and as paths."""
    with tent.Engine(config, **keywords) as engine:
        assert engine.config[LANES].value == 4
        assert engine.config[ENABLE].value is False, "a key that the keywords do not have"


@pytest.mark.parametrize(
    "text, words",
    [
        (b'{"log_level": "error", "log_level": "info"}', "'log_level' is given twice"),
        (b'{"transports": {"tcp": {"lanes": 1, "lanes": 2}}}', "'lanes' is given twice"),
        (b'{"metadata_timeout": NaN}', "NaN is no number"),
        (b'{"name": "caf\xe9"}', "are not UTF-8"),
        (b'{"a":' * DEEP + b"1" + b"}" * DEEP, "nested too deeply"),
        (b"{" + b" " * (4 << 20), "larger than 4 MiB"),
        (b"[]", "not a JSON object"),
    ],
)
def test_a_file_of_settings_is_refused_as_strictly_as_the_engine_does(
    tmp_path: Path, text: bytes, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(text)
    with pytest.raises(tent.InvalidArgumentError, match=words) as raised:
        tent.Engine(path)
    assert str(path) in str(raised.value)
    assert command.main(["run", "--config", str(path), "--", "true"]) == 1
    error = capsys.readouterr().err
    assert words in error and str(path) in error and len(error.splitlines()) == 1


def test_a_folder_of_settings_is_refused_and_leaves_no_descriptor(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(tent.InvalidArgumentError, match="Is a directory"):
        tent.Engine(tmp_path)
    assert os.listdir("/proc/self/fd") == before


def test_a_pipe_of_settings_is_read_to_its_end_and_not_awaited_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    monkeypatch.setattr(settings, "_PIPE_SECONDS", 0.05)
    with pytest.raises(tent.InvalidArgumentError, match="nobody has written"):
        tent.Engine(path)
    monkeypatch.setattr(settings, "_PIPE_SECONDS", 30.0)
    text = " " * 100_000 + '{"log_level": "error"}'  # more than a pipe holds
    writer = threading.Thread(target=path.write_text, args=(text,))
    writer.start()
    with tent.Engine(path) as engine:
        assert engine.config["log_level"].value == "error"
    writer.join()


def test_all_engines_have_the_settings_of_a_pipe_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b'{"log_level": "error"}')
        os.close(writing)
        monkeypatch.setenv("TENT_CONF", f"/proc/self/fd/{reading}")
        for _ in range(2):
            with tent.Engine() as engine:
                assert engine.config["log_level"].value == "error"
        with pytest.raises(tent.InvalidArgumentError, match="was read already"):
            tent.Engine(f"/proc/self/fd/{reading}")
    finally:
        os.close(reading)


@pytest.mark.parametrize("value", [float("nan"), {1, 2}])
def test_a_value_that_no_json_has_is_named_by_its_key(value: Any) -> None:
    with pytest.raises(tent.InvalidArgumentError, match="'metadata_timeout'"):
        tent.Engine(log_level="error", metadata_timeout=value)
