"""tent as SGLang's transfer backend, as far as it can be tested without it: a stand-in has SGLang's names and nothing
more. `make test-clients` runs SGLang's own classes."""

from __future__ import annotations

import enum
import json
import logging
import pickle
import random
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from sglang_stand import NixlPrefill, Pool  # noqa: E402

import tent  # noqa: E402
from tent.compat import nixl  # noqa: E402
from tent.integrations import registration, sglang_stand  # noqa: E402

pytestmark = pytest.mark.adapters

LAYERS, PAGES, PAGE, ROOMS = 2, 32, 2048, 4
DISAGGREGATION = "sglang.srt.disaggregation"


class TransferBackend(enum.Enum):
    MOONCAKE = "mooncake"
    NIXL = "nixl"
    FAKE = "fake"


class KVClassType(enum.Enum):
    MANAGER = "manager"
    SENDER = "sender"
    BOOTSTRAP_SERVER = "bootstrap_server"


class HookType(enum.Enum):
    AROUND = "around"


def get_kv_class(transfer_backend: Any, class_type: Any) -> Any:
    """As SGLang's: a table by backend."""
    if transfer_backend not in (TransferBackend.NIXL, TransferBackend.MOONCAKE):
        raise ValueError(f"Unsupported transfer backend: {transfer_backend}")
    return Manager if class_type is KVClassType.MANAGER else (transfer_backend.value, class_type.value)


class Manager(NixlPrefill):
    """As SGLang's over NIXL: it finds the agent by an import of its own, and calls its pages memory of a GPU."""

    kind = "VRAM"

    def __init__(self, args: Any, disaggregation_mode: Any, server_args: Any, is_mla_backend: bool = False) -> None:
        self.server_args, self.mode = server_args, disaggregation_mode
        super().__init__(args.pool)

    def made(self, options: dict[str, Any] | None) -> Any:
        from nixl._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t  # type: ignore[import-not-found]

        mode = nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
        return nixl_agent(str(uuid.uuid4()), nixl_agent_config(backends=[], num_threads=8, sync_mode=mode))


class Stack:
    """The modules of an SGLang that is not there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, version: str = "0.5.23", device: str = "cpu") -> None:
        self.choices = ["mooncake", "nixl", "fake"]
        self.hooks: dict[str, list[Any]] = {}
        # The members are those of this stack: registration adds one.
        self.backends = enum.Enum("TransferBackend", {kind.name: kind.value for kind in TransferBackend})  # type: ignore[misc]
        monkeypatch.setitem(globals(), "TransferBackend", self.backends)
        modules = {
            "sglang": {"__version__": version},
            "sglang.srt": {},
            "sglang.srt.plugins": {},
            "sglang.srt.plugins.hook_registry": {
                "HookRegistry": SimpleNamespace(register=self.register), "HookType": HookType,
            },
            "sglang.srt.server_args": {"add_disagg_transfer_backend_choices": self.choices.extend},
            "sglang.srt.runtime_context": {"get_device": lambda: SimpleNamespace(device=device)},
            DISAGGREGATION: {},
            f"{DISAGGREGATION}.utils": {"TransferBackend": self.backends, "get_kv_class": get_kv_class},
            f"{DISAGGREGATION}.nixl": {},
            f"{DISAGGREGATION}.nixl.conn": {"NixlKVManager": Manager, "_NIXL_TRANSPORT_ERRORS": (RuntimeError,)},
        }  # fmt: skip
        for name, names in modules.items():
            module = ModuleType(name)
            module.__path__ = []
            vars(module).update(names)
            monkeypatch.setitem(sys.modules, name, module)
            parent, _, last = name.rpartition(".")
            if parent:
                vars(sys.modules[parent])[last] = module
        monkeypatch.delitem(sys.modules, registration.SGLANG_MODULE, raising=False)

    def register(self, target: str, hook: Any, kind: HookType) -> None:
        assert kind is HookType.AROUND
        self.hooks.setdefault(target, []).append(hook)

    def found(self, backend: str, kind: KVClassType) -> Any:
        """The class that SGLang finds once the hooks are applied."""
        (hook,) = self.hooks[f"{DISAGGREGATION}.utils.get_kv_class"]
        return hook(get_kv_class, self.backends(backend), kind)

    def manager(self, pool: Pool, rank: int = 0, **arguments: Any) -> Any:
        registration.register_sglang()
        described = SimpleNamespace(pool=pool, engine_rank=rank)
        return self.found("tent", KVClassType.MANAGER)(described, "prefill", SimpleNamespace(**arguments))


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    monkeypatch.setenv("TENT_COMPAT", json.dumps({"config": {"log_level": "error"}}))
    yield Stack(monkeypatch)
    sys.modules.pop(registration.SGLANG_MODULE, None)


@pytest.fixture
def made(stack: Stack) -> Iterator[Callable[..., Any]]:
    """Makes managers; they are closed at the end."""
    managers: list[Any] = []

    def make(seed: int, **arguments: Any) -> Any:
        managers.append(stack.manager(Pool(LAYERS, PAGES, PAGE, ROOMS, seed), **arguments))
        return managers[-1]

    yield make
    for manager in managers:
        manager.agent.close()


def test_tent_is_a_choice_and_a_backend(stack: Stack) -> None:
    registration.register_sglang()
    registration.register_sglang()
    assert stack.choices == ["mooncake", "nixl", "fake", "tent"]
    backend: Any = stack.backends("tent")
    assert backend is stack.backends["TENT"] is stack.backends.TENT
    assert repr(backend) == "<TransferBackend.TENT: 'tent'>"
    assert [kind.value for kind in stack.backends] == stack.choices
    assert len({*stack.backends}) == 4 and backend != stack.backends("nixl")
    assert registration.SGLANG_MODULE not in sys.modules


def test_the_backend_goes_to_another_process(stack: Stack) -> None:
    registration.register_sglang()
    assert pickle.loads(pickle.dumps(stack.backends("tent"))) is stack.backends("tent")


def test_every_other_backend_keeps_its_classes(stack: Stack) -> None:
    registration.register_sglang()
    assert stack.found("nixl", KVClassType.MANAGER) is Manager
    assert stack.found("mooncake", KVClassType.SENDER) == ("mooncake", "sender")
    with pytest.raises(ValueError, match="Unsupported transfer backend"):
        stack.found("fake", KVClassType.SENDER)
    assert stack.found("tent", KVClassType.SENDER) == ("nixl", "sender")
    assert stack.found("tent", KVClassType.BOOTSTRAP_SERVER) == ("nixl", "bootstrap_server")
    assert registration.SGLANG_MODULE not in sys.modules
    assert issubclass(stack.found("tent", KVClassType.MANAGER), Manager)


@pytest.mark.parametrize("gone", ["add_disagg_transfer_backend_choices", "TransferBackend", "HookRegistry"])
def test_an_sglang_without_the_names_goes_on(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, gone: str
) -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("sglang.") and gone in vars(module):
            monkeypatch.delattr(module, gone)
    with caplog.at_level(logging.WARNING, "tent.integrations"):
        registration.register_sglang()
    (record,) = caplog.records
    assert gone in record.getMessage()
    assert stack.choices == ["mooncake", "nixl", "fake"] and not stack.hooks


def test_rooms_move_by_the_native_backend(made: Callable[..., Any], seed: int) -> None:
    """On CPUs SGLang calls host memory that of a GPU; every byte has come when the room is told."""
    draw = random.Random(seed)
    prefill, decode = made(seed), made(seed + 100)
    assert type(prefill.agent) is sglang_stand.HostAgent
    peer = prefill.add_peer(decode.agent.get_agent_metadata(), decode.pool, decode.strided())
    here, there = (np.array(draw.sample(range(PAGES), 8), np.int32) for _ in range(2))
    handles = [
        prefill.send_prepared(peer, here[:3], there[:3], "0_kv_0_0"),
        prefill.send_grouped(peer, here[3:], there[3:], "0_kv_1_1"),
        prefill.send_aux(peer, 1, 2, "0_aux"),
    ]
    over = threading.Timer(30, lambda: None)
    over.start()
    while not decode.rooms[0].done():
        decode.hear()
        assert over.is_alive(), "the room is not told"
    over.cancel()
    for mine, theirs in zip(prefill.pool.kv, decode.pool.kv):
        for i, j in zip(here.tolist(), there.tolist()):
            theirs.expect(j * PAGE, mine.expected[i * PAGE : (i + 1) * PAGE])
    decode.pool.aux.expect(2 * 512, prefill.pool.aux.expected[512 : 2 * 512])
    decode.pool.check()
    while not prefill.poll(handles):
        pass
    prefill.pool.check()


def test_a_server_on_gpus_has_the_plain_agent(monkeypatch: pytest.MonkeyPatch, stack: Stack) -> None:
    """Its pages are memory of a GPU, which this machine has not."""
    Stack(monkeypatch, device="cuda")
    registered: list[Any] = []

    def register(self: Any, descs: Any, kind: str) -> Any:
        registered.append((type(self), kind))
        return [1]

    monkeypatch.setattr(nixl.nixl_agent, "register_memory", register)
    manager = Stack(monkeypatch, device="cuda").manager(Pool(1, 1, PAGE, 1, 1))
    manager.agent.close()
    assert registered == [(nixl.nixl_agent, "VRAM"), (nixl.nixl_agent, "DRAM")]


def test_nixl_is_as_it_was_afterwards(monkeypatch: pytest.MonkeyPatch, stack: Stack, made: Callable[..., Any]) -> None:
    monkeypatch.delitem(sys.modules, "nixl", raising=False)
    monkeypatch.delitem(sys.modules, "nixl._api", raising=False)
    made(1)
    assert "nixl" not in sys.modules and "nixl._api" not in sys.modules
    theirs = ModuleType("nixl")
    monkeypatch.setitem(sys.modules, "nixl", theirs)
    with pytest.raises(ZeroDivisionError), sglang_stand.standing("cpu"):
        assert sys.modules["nixl"] is not theirs
        raise ZeroDivisionError
    assert sys.modules["nixl"] is theirs and "nixl._api" not in sys.modules


def test_failures_of_tent_are_failures_of_transfers(made: Callable[..., Any]) -> None:
    """SGLang fails the room, and does not call it an error of its own."""
    made(1)
    errors = sys.modules[f"{DISAGGREGATION}.nixl.conn"]._NIXL_TRANSPORT_ERRORS
    assert {RuntimeError, nixl.nixlRemoteDisconnectError, nixl.nixlBackendError} < set(errors)


def test_hisparse_is_refused_by_name(stack: Stack) -> None:
    with pytest.raises(tent.InvalidArgumentError, match=r"enable_hisparse.*tent run --as nixl"):
        stack.manager(Pool(1, 1, PAGE, 1, 1), enable_hisparse=True)


@pytest.mark.parametrize(("version", "warns"), [("0.5.23", False), ("0.6.0", True)])
def test_an_unknown_version_warns_once(
    monkeypatch: pytest.MonkeyPatch, stack: Stack, caplog: pytest.LogCaptureFixture, version: str, warns: bool
) -> None:
    other = Stack(monkeypatch, version)
    with caplog.at_level(logging.WARNING, "tent.integrations"):
        for rank in range(2):  # the processes of a server with two ranks
            other.manager(Pool(1, 1, PAGE, 1, 1), rank).agent.close()
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == warns
    assert all(version in text and "0.5.23" in text and "tent run --as nixl" in text for text in texts)
