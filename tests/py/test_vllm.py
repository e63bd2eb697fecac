"""tent's connectors for vLLM, as far as they can be tested without it: a stand-in has vLLM's names and nothing more."""

from __future__ import annotations

import json
import logging
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("numpy")

import tent
from tent.buffers import address_of
from tent.compat.nixl import nixl_agent, nixl_agent_config
from tent.integrations import registration, vllm_counts, vllm_stand
from tent.testing import Memory

pytestmark = pytest.mark.adapters

V1 = "vllm.distributed.kv_transfer.kv_connector.v1"
FIGURES = ("transfer_duration", "num_failed_transfers")


class Stats:
    """As vLLM's container of figures: lists by name."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        self.data = data or {}
        if not self.data:
            self.reset()

    def reset(self) -> None:
        self.data = {name: [] for name in FIGURES}

    def is_empty(self) -> bool:
        return not any(self.data[name] for name in FIGURES)

    def aggregate(self, other: Stats) -> Stats:
        for name, values in other.data.items():
            self.data[name].extend(values)
        return self


class Prom:
    """As vLLM's metrics: it counts failures."""

    def __init__(
        self, config: Any, types: dict[str, Any], labelnames: list[str], engines: dict[int, list[Any]]
    ) -> None:
        self._counter_cls, self._labelnames, self.per_engine_labelvalues = types["Counter"], labelnames, engines
        self.failures = 0

    def observe(self, data: dict[str, Any], engine_idx: int = 0) -> None:
        self.failures += sum(data["num_failed_transfers"])


class Counter:
    """As prometheus_client's."""

    every: ClassVar[dict[str, Counter]] = {}

    def __init__(self, name: str, documentation: str, labelnames: list[str]) -> None:
        assert name not in self.every, "a name is registered once"
        self.labelnames, self.values = labelnames, dict[tuple[Any, ...], float]()
        self.every[name] = self

    def labels(self, *values: Any) -> SimpleNamespace:
        assert len(values) == len(self.labelnames)

        def inc(value: float) -> None:
            self.values[values] = self.values.get(values, 0) + value

        return SimpleNamespace(inc=inc)


class Worker:
    """As vLLM's worker: it takes its agent from the names of its module."""

    def __init__(self, module: ModuleType) -> None:
        if hasattr(module, "check_nixl_version"):  # since vLLM 0.33
            module.check_nixl_version("1.5.0")
        configuration = module.nixl_agent_config(num_threads=4, capture_telemetry=True)
        self.nixl_wrapper = module.NixlWrapper("worker", configuration)
        self.stats: Stats | None = None


def connector_of(module: ModuleType) -> type:
    class Connector:
        def __init__(self, vllm_config: Any, role: str, kv_cache_config: Any) -> None:
            self.connector_worker = Worker(module) if role == "worker" else None

        def get_kv_connector_stats(self) -> Stats | None:
            return self.connector_worker.stats if self.connector_worker else None

    return Connector


class Factory:
    registry: ClassVar[dict[str, tuple[str, str]]] = {}

    @classmethod
    def register_connector(cls, name: str, module: str, kind: str) -> None:
        if name in cls.registry:
            raise ValueError(f"Connector '{name}' is already registered.")
        cls.registry[name] = module, kind


class Loader(ModuleType):
    """As vllm.distributed.nixl_utils: a name that is not there is looked for in NIXL, which counts here."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__dict__["asked"] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.asked.append(name)
        return None


class Stack:
    """The modules of a vLLM that is not there, found as real ones are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, version: str = "0.32.0") -> None:
        self.modules: dict[str, ModuleType] = {}
        for full in (f"{V1}.base", f"{V1}.nixl.connector", f"{V1}.nixl.stats", vllm_stand.BASE):
            parts = full.split(".")
            for name in (".".join(parts[:i]) for i in range(1, len(parts) + 1)):
                self.modules.setdefault(name, ModuleType(name)).__path__ = []
        self.loader = Loader(vllm_stand.LOADER)
        self.modules[vllm_stand.LOADER] = self.loader
        self.base = self.modules.pop(vllm_stand.BASE)
        self.modules["vllm"].__dict__["__version__"] = version
        factory = ModuleType("vllm.distributed.kv_transfer.kv_connector.factory")
        factory.__dict__["KVConnectorFactory"] = Factory
        self.modules[factory.__name__] = factory
        roles = SimpleNamespace(SCHEDULER="scheduler", WORKER="worker")
        self.modules[f"{V1}.base"].__dict__["KVConnectorRole"] = roles
        vars(self.modules[f"{V1}.nixl.stats"]).update(NixlKVConnectorStats=Stats, NixlPromMetrics=Prom)
        vars(self.modules[f"{V1}.nixl.connector"]).update(
            NixlPullConnector=connector_of(self.base), NixlPushConnector=connector_of(self.base)
        )
        Factory.registry, Counter.every = {}, {}
        for name, module in self.modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        for name in (registration.MODULE, vllm_stand.BASE):
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setattr(vllm_stand.importlib, "import_module", self.importing)

    def importing(self, name: str) -> ModuleType:
        """As `from ...nixl_utils import NixlWrapper` at the top of vLLM's module."""
        if name == vllm_stand.BASE:
            for each in vllm_stand.NAMES:
                setattr(self.base, each, getattr(self.loader, each))
            sys.modules[name] = self.base
        return sys.modules[name]

    @staticmethod
    def configuration(extra: dict[str, Any] | None = None, **parallel: int) -> SimpleNamespace:
        return SimpleNamespace(
            kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra or {}),
            parallel_config=SimpleNamespace(**parallel),
        )


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    yield Stack(monkeypatch)
    sys.modules.pop(registration.MODULE, None)


def made(stack: Stack, extra: dict[str, Any] | None = None, role: str = "worker", name: str = "TentConnector") -> Any:
    module = __import__(registration.MODULE, fromlist=[name])
    return getattr(module, name)(stack.configuration(extra), role, None)


def test_registering_again_does_no_harm(stack: Stack) -> None:
    registration.register_vllm()
    registration.register_vllm()
    assert Factory.registry == {
        "TentConnector": ("tent.integrations.vllm", "TentConnector"),
        "TentPushConnector": ("tent.integrations.vllm", "TentPushConnector"),
    }
    assert registration.MODULE not in sys.modules


def test_options_of_vllm_stand_beside_ours() -> None:
    ours = {"priority": "high", "timeout": 30, "integrity": "crc32c", "config": {"log_level": "error"}}
    assert vllm_stand.options_of({**ours, "num_threads": 4, "kv_lease_duration": 30}) == ours
    assert vllm_stand.options_of({"num_threads": 4, "backends": ["UCX"]}) is None


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"timeot": 30}, "'timeot' is unknown.*'timeout'"),
        ({"Priority": "high"}, "'Priority' is unknown.*'priority'"),
        ({"priority": "urgent"}, "kv_connector_extra_config: priority is 'urgent'"),
        ({"integrity": "md5"}, "kv_connector_extra_config: integrity is 'md5'"),
        ({"timeout": "soon"}, "kv_connector_extra_config: timeout"),
        ({"config": 7}, "kv_connector_extra_config: config is 7"),
    ],
)
def test_wrong_options_are_refused_by_name(extra: dict[str, Any], text: str) -> None:
    with pytest.raises(tent.InvalidArgumentError, match=text):
        vllm_stand.options_of(extra)


def test_context_parallelism_is_refused(stack: Stack) -> None:
    vllm_stand.check_settings(stack.configuration(decode_context_parallel_size=1))
    with pytest.raises(tent.InvalidArgumentError, match=r"decode_context_parallel_size is 2.*tent run --as nixl"):
        vllm_stand.check_settings(stack.configuration(decode_context_parallel_size=2))


def test_routed_experts_are_refused(stack: Stack) -> None:
    """vLLM refuses them for its own connectors, by their names."""
    configuration = stack.configuration()
    configuration.aux_output_config = SimpleNamespace(enabled=False)
    vllm_stand.check_settings(configuration)
    configuration.aux_output_config.enabled = True
    with pytest.raises(tent.InvalidArgumentError, match="--enable-return-routed-experts is set"):
        vllm_stand.check_settings(configuration)


@pytest.mark.parametrize("kind", ["is_hybrid", "is_attention_free"])
def test_a_layout_of_mamba_that_does_not_move_is_refused(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """vLLM chooses DS for NixlConnector, by its name."""
    configuration = stack.configuration()
    configuration.model_config = SimpleNamespace(**{kind: True})
    for layout in ("", "SD"):
        monkeypatch.setenv("VLLM_SSM_CONV_STATE_LAYOUT", layout)
        vllm_stand.check_settings(stack.configuration())
        with pytest.raises(tent.InvalidArgumentError, match="set VLLM_SSM_CONV_STATE_LAYOUT=DS"):
            vllm_stand.check_settings(configuration)
    monkeypatch.setenv("VLLM_SSM_CONV_STATE_LAYOUT", "DS")
    vllm_stand.check_settings(configuration)


@pytest.mark.parametrize(
    ("version", "warns"), [("0.32.0", False), ("0.32.0+cpu", False), ("0.33.0", False), ("0.33.1", True)]
)
def test_an_unknown_version_warns_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str, warns: bool
) -> None:
    stack = Stack(monkeypatch, version)
    with caplog.at_level(logging.WARNING, "tent.integrations"):
        for role in ("scheduler", "worker"):  # as one server does
            made(stack, {"config": {"log_level": "error"}}, role)
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == warns
    assert all(version in text and "0.32.0" in text and "tent run --as nixl" in text for text in texts)
    sys.modules.pop(registration.MODULE, None)


def test_a_vllm_without_the_names_is_refused(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_stand, "NAMES", ("NixlWrapper", "a_name_that_is_gone"))
    monkeypatch.setitem(sys.modules, vllm_stand.BASE, stack.base)
    stack.base.__dict__["NixlWrapper"] = None
    with pytest.raises(RuntimeError, match=r"does not fit vLLM 9\.9.*a_name_that_is_gone.*0\.32\.0"):
        vllm_stand.base_worker("9.9")


@pytest.mark.parametrize("name", registration.CONNECTORS)
def test_the_worker_has_tents_agent_and_its_options(stack: Stack, name: str) -> None:
    config = {"log_level": "error", "name": "d"}
    extra = {"priority": "low", "timeout": "30s", "integrity": "crc32c", "config": config}
    connector = made(stack, extra, name=name)
    agent = connector.connector_worker.nixl_wrapper
    assert isinstance(agent, nixl_agent) and agent.name == "worker"
    assert agent.options.terms == {"priority": tent.PRIO_LOW, "timeout": 30.0, "integrity": "crc32c"}
    assert agent.options.config == config
    agent.close()


def test_nixl_is_not_asked_for_until_vllm_wants_its_own(stack: Stack) -> None:
    agent = made(stack).connector_worker.nixl_wrapper
    agent.close()
    assert stack.loader.asked == [] and not set(vllm_stand.NAMES) & set(vars(stack.loader))
    with pytest.raises(RuntimeError, match="NIXL is not available"):
        stack.base.NixlWrapper("theirs", None)
    vars(stack.loader)["NixlWrapper"] = lambda *given: given
    assert stack.base.NixlWrapper("theirs", None) == ("theirs", None)


def test_a_nixl_that_is_too_old_for_vllm_is_no_obstacle(stack: Stack) -> None:
    def check_nixl_version(oldest: str) -> None:
        raise RuntimeError(f"NIXL >= {oldest} is required")

    vars(stack.base)["check_nixl_version"] = check_nixl_version
    made(stack, {"config": {"log_level": "error"}}).connector_worker.nixl_wrapper.close()
    with pytest.raises(RuntimeError, match=r"1\.5\.0 is required"):
        stack.base.check_nixl_version("1.5.0")


def test_names_are_put_back_after_a_failure(stack: Stack) -> None:
    module = vllm_stand.base_worker("0.32.0")
    before = {name: getattr(module, name) for name in vllm_stand.NAMES}
    with pytest.raises(ZeroDivisionError), vllm_stand.standing(module, None):
        assert module.nixl_agent_config is nixl_agent_config
        raise ZeroDivisionError
    assert {name: getattr(module, name) for name in vllm_stand.NAMES} == before


def unserved() -> float:
    """The seconds for which this thread waited for a processor, from the kernel's schedstat; 0 where it keeps none."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def test_posting_gives_the_thread_of_vllm_back(stack: Stack, seed: int, n: int = 16384, block: int = 512) -> None:
    """A post of 16,384 blocks in random order, with a notification, holds the thread for 10 ms at most. The time for
    which the thread could run and had no processor is left out. The bytes move afterwards, each to its place."""
    numpy = pytest.importorskip("numpy")
    quiet = {"config": {"log_level": "error"}}
    prefill, decode = (made(stack, quiet).connector_worker.nixl_wrapper for _ in range(2))
    theirs = numpy.frombuffer(random.Random(seed).randbytes(n * block), numpy.uint8).copy()
    ours = numpy.zeros_like(theirs)
    prefill.name = "prefill"
    for agent, memory in ((prefill, theirs), (decode, ours)):
        agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM", backends=["UCX"])
    name = decode.add_remote_agent(prefill.get_agent_metadata())

    def listed(memory: Any) -> Any:
        rows = numpy.zeros((n, 3), numpy.uint64)
        rows[:, 0], rows[:, 1] = memory.ctypes.data + block * numpy.arange(n, dtype=numpy.uint64), block
        return decode.get_xfer_descs(rows, "DRAM")

    local = decode.prep_xfer_dlist("NIXL_INIT_AGENT", listed(ours))
    remote = decode.prep_xfer_dlist(name, listed(theirs))
    posts, dice = [], numpy.random.default_rng(seed)
    for _ in range(9):
        ours[:], here, there = 0, dice.permutation(n), dice.permutation(n)
        begun = time.perf_counter() - unserved()
        handle = decode.make_prepped_xfer("READ", local, here, remote, there, notif_msg=b"request:1")
        decode.transfer(handle)
        posts.append(time.perf_counter() - unserved() - begun)
        until = time.monotonic() + 60
        while decode.check_xfer_state(handle) == "PROC":
            assert time.monotonic() < until
        assert decode.check_xfer_state(handle) == "DONE"
        decode.release_xfer_handle(handle)
        assert (ours.reshape(n, block)[here] == theirs.reshape(n, block)[there]).all()
    assert statistics.median(posts) <= 0.010, [round(post * 1e3, 1) for post in posts]
    decode.close()
    prefill.close()


def test_a_push_goes_as_vllm_makes_it(stack: Stack, seed: int, n: int = 512, block: int = 1024) -> None:
    """The decode server's PUSH_REG names more blocks than one notification holds. A thread of the prefill server owns
    the notifications and posts the WRITE, and its own message comes behind the bytes."""
    quiet = {"config": {"log_level": "error"}}
    prefill, decode = (made(stack, quiet, name="TentPushConnector").connector_worker.nixl_wrapper for _ in range(2))
    ours, theirs = Memory(n * block, seed), Memory(n * block, seed + 1)
    lists = []
    for agent, memory in ((prefill, ours), (decode, theirs)):
        base = address_of(memory.view)
        agent.register_memory([(base, n * block, 0, "")], "DRAM", backends=["UCX"])
        lists.append(agent.get_xfer_descs([(base + block * i, block, 0) for i in range(n)], "DRAM"))
    decode_at = prefill.add_remote_agent(decode.get_agent_metadata())
    local, remote = prefill.prep_xfer_dlist("NIXL_INIT_AGENT", lists[0]), prefill.prep_xfer_dlist(decode_at, lists[1])
    blocks = random.Random(seed).sample(range(n), n // 2)
    failed: list[BaseException] = []

    def write() -> None:
        try:
            (message,) = arrived(prefill)
            assert message.startswith(b"PUSH_REG:") and len(message) > 64 << 10
            here = json.loads(message[9:])["blocks"]
            there = [n - 1 - i for i in here]
            handle = prefill.make_prepped_xfer("WRITE", local, here, remote, there, notif_msg=b"request:1")
            prefill.transfer(handle)
            until(lambda: prefill.check_xfer_state(handle) != "PROC")
            assert prefill.check_xfer_state(handle) == "DONE"
            prefill.release_xfer_handle(handle)
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    prefill_at = decode.add_remote_agent(prefill.get_agent_metadata())
    padding = "x" * (70 << 10)  # as of a prompt with very many blocks
    decode.send_notif(prefill_at, notif_msg=b"PUSH_REG:" + json.dumps({"blocks": blocks, "more": padding}).encode())
    assert arrived(decode) == [b"request:1"]
    for i in blocks:
        theirs.expect((n - 1 - i) * block, ours.expected[i * block : (i + 1) * block])
    theirs.check()
    ours.check()
    writer.join(30)
    assert not failed, failed
    decode.close()
    prefill.close()


def until(true: Callable[[], Any], limit: float = 30) -> Any:
    over = time.monotonic() + limit
    while not (found := true()):
        assert time.monotonic() < over, "it has not come"
    return found


def arrived(agent: nixl_agent) -> list[bytes]:
    """The messages that come next, all of one agent."""
    (messages,) = until(agent.get_new_notifs).values()
    return list(messages)


def test_counters_are_told_by_their_growth() -> None:
    series, now = 'tent_read_bytes_total{transport="shm"}', [100.0]
    metrics = {series: 0.0, "tent_read_bytes_total": 0.0, "tent_batches": 3.0}
    counted = vllm_counts.Counted(lambda: metrics, lambda: now[0])
    assert counted.taken(busy=False) == {series: 0.0}  # zeros at first
    metrics[series] = 7.0
    assert counted.taken(busy=False) == {} == counted.taken(busy=True)
    now[0] += vllm_counts.BUSY_PERIOD
    assert counted.taken(busy=False) == {series: 7.0}  # a transfer that ended before is not forgotten
    metrics[series] = 9.0
    now[0] += vllm_counts.BUSY_PERIOD
    assert counted.taken(busy=False) == {}
    now[0] += vllm_counts.PERIOD
    assert counted.taken(busy=False) == {series: 2.0}


def test_every_counter_of_an_engine_is_told_once() -> None:
    with tent.Engine(log_level="error") as engine:
        metrics = engine.metrics()
    counters = {name for series in metrics if (name := series.partition("{")[0]).endswith("_total")}
    told = [vllm_counts.parsed(series) for series in vllm_counts.sums(metrics)]
    assert {found[0] for found in told if found} == counters and None not in told
    transports = {found[1] for found in told if found and found[0] == "tent_read_bytes_total"}
    assert "tcp" in transports and "" not in transports


def test_counters_reach_the_metrics_of_the_server(stack: Stack) -> None:
    """The whole way: worker, sum over workers, server."""
    connector = made(stack, {"config": {"log_level": "error"}})
    worker, kind = connector.connector_worker, type(connector)
    first = connector.get_kv_connector_stats()
    assert not first.is_empty() and connector.get_kv_connector_stats() is None
    worker.stats = Stats({"transfer_duration": [0.5], "num_failed_transfers": [1]})
    total = connector.get_kv_connector_stats().aggregate(first)
    total = kind.build_kv_connector_stats(total.data).aggregate(kind.build_kv_connector_stats())
    prom = kind.build_prom_metrics(None, {"Counter": Counter}, ["model_name", "engine"], {0: ["m", "0"]})
    prom.observe(total.data, 0)
    prom.observe(kind.build_kv_connector_stats().data, 0)
    assert prom.failures == 1
    reads = Counter.every["vllm:tent_read_bytes_total"]
    assert reads.labelnames == ["model_name", "engine", "transport"]
    assert all(labels[:2] == ("m", "0") and value == 0 for labels, value in reads.values.items()) and reads.values
    assert kind.build_kv_connector_stats().is_empty()
    # A counter of rails has no transport before there is a rail. An error here would end the server.
    prom.observe(kind.build_kv_connector_stats({**first.data, "tent": [{"tent_rail_bytes_total": 0.0}]}).data, 0)
    rail = {'tent_rail_bytes_total{transport="tcp"}': 5.0}
    prom.observe(kind.build_kv_connector_stats({**first.data, "tent": [rail]}).data, 0)
    assert Counter.every["vllm:tent_rail_bytes_total"].values == {("m", "0", ""): 0, ("m", "0", "tcp"): 5}
    worker.nixl_wrapper.close()
