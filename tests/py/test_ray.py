"""tent's transport for Ray, as far as it can be tested without it: a stand-in has Ray's names and nothing more."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

pytest.importorskip("numpy")

from tent.compat.nixl import nixl_agent

pytestmark = pytest.mark.adapters

RDT = "ray.experimental.rdt"
MODULE = "tent.integrations.ray"


class Tensor:
    """As torch's, by its name alone."""


class Info(NamedTuple):
    transport_manager_class: type
    devices: list[str]
    data_type: type


class NixlTensorTransport:
    """As Ray's: it makes its agent when it is first wanted."""

    def __init__(self) -> None:
        self._nixl_agent: Any = None
        self.calls: list[tuple[str, Any]] = []

    def get_nixl_agent(self) -> Any:
        self._nixl_agent = self._nixl_agent or self._init_nixl_agent()
        return self._nixl_agent

    def _init_nixl_agent(self) -> Any:
        raise ImportError("NIXL is not installed")

    def register_nixl_memory(self, tensor: Any) -> None:
        self.calls.append(("register", tensor))

    def deregister_nixl_memory(self, tensor: Any) -> None:
        self.calls.append(("deregister", tensor))

    def register_nixl_memory_pool(self, size: int, device: Any) -> None:
        self.calls.append(("pool", (size, device)))


class Actor:
    """As the handle of an actor, which runs in this process."""

    class __ray_call__:
        @staticmethod
        def options(concurrency_group: str) -> SimpleNamespace:
            assert concurrency_group == "_ray_system"
            return SimpleNamespace(remote=lambda function: function(None))


class Ray:
    """The modules of a Ray that is not there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, version: str = "2.60.0") -> None:
        self.known: dict[str, Info] = {"NIXL": Info(NixlTensorTransport, ["cuda", "cpu"], Tensor)}
        made: dict[str, Any] = {}
        modules = {name: ModuleType(name) for name in ("ray", "ray.experimental", RDT)}
        context = SimpleNamespace(get_actor_id=lambda: self.actor)
        self.actor: str | None = "actor"
        vars(modules["ray"]).update(__version__=version, get=lambda v: v, get_runtime_context=lambda: context)
        self.util = modules[f"{RDT}.util"] = ModuleType(f"{RDT}.util")
        vars(self.util).update(
            transport_manager_info=self.known,
            register_tensor_transport=self.register,
            get_transport_data_type=lambda name: self.known[name].data_type,
            get_tensor_transport_manager=lambda name: made.setdefault(name, self.known[name].transport_manager_class()),
        )
        modules[f"{RDT}.nixl_tensor_transport"] = ModuleType(f"{RDT}.nixl_tensor_transport")
        vars(modules[f"{RDT}.nixl_tensor_transport"]).update(NixlTensorTransport=NixlTensorTransport)
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.delitem(sys.modules, MODULE, raising=False)

    def register(self, name: str, devices: list[str], kind: type, data: type) -> None:
        if name in self.known:
            raise ValueError(f"Transport {name} already registered.")
        self.known[name] = Info(kind, devices, data)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ray]]:
    monkeypatch.setenv("TENT_COMPAT", '{"priority": "high", "config": {"log_level": "error"}}')
    yield lambda *given: Ray(monkeypatch, *given)
    sys.modules.pop(MODULE, None)


def test_registering_again_does_no_harm(ray: Callable[..., Ray]) -> None:
    stand, ours = ray(), importlib.import_module(MODULE)
    ours.register()
    ours.register()
    assert stand.known["TENT"] == Info(ours.TentTensorTransport, ["cuda", "cpu"], Tensor)


@pytest.mark.parametrize("actor", ["actor", None])
def test_the_transport_has_tents_agent_and_its_options(ray: Callable[..., Ray], actor: str | None) -> None:
    """A driver has no identifier of an actor."""
    stand, ours = ray(), importlib.import_module(MODULE)
    stand.actor = actor
    ours.register()
    transport = stand.util.get_tensor_transport_manager("TENT")
    agent = transport.get_nixl_agent()
    assert isinstance(agent, nixl_agent) and agent.options.terms["priority"] == 0
    assert agent.name == actor or (actor is None and agent.name.startswith("driver-"))
    assert transport.tensor_transport_backend() == "TENT" and transport.actor_has_tensor_transport(Actor)
    agent.close()


def test_an_actor_without_an_engine_says_why(
    ray: Callable[..., Ray], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stand, ours = ray(), importlib.import_module(MODULE)
    ours.register()
    monkeypatch.setenv("TENT_COMPAT", '{"config": {"transports": {"tpc": {}}}}')
    assert not stand.util.get_tensor_transport_manager("TENT").actor_has_tensor_transport(Actor)
    assert "no engine of tent starts in this actor" in caplog.text and "tpc" in caplog.text


def test_memory_is_registered_with_tents_transport(ray: Callable[..., Ray]) -> None:
    """Also where Ray has not registered the transport in this actor yet."""
    stand, ours = ray(), importlib.import_module(MODULE)
    ours.register_memory("tensor")
    ours.deregister_memory("tensor")
    ours.register_memory_pool(4096, "cpu")
    calls = stand.util.get_tensor_transport_manager("TENT").calls
    assert calls == [("register", "tensor"), ("deregister", "tensor"), ("pool", (4096, "cpu"))]


def test_an_unknown_version_is_named(ray: Callable[..., Ray], caplog: pytest.LogCaptureFixture) -> None:
    ray("2.70.1")
    with caplog.at_level(logging.WARNING, "tent.integrations"):
        importlib.import_module(MODULE).register()
    (text,) = [record.getMessage() for record in caplog.records]
    assert "2.60.0" in text and "Ray 2.70.1" in text and "tent run --as nixl" in text


def test_a_ray_without_the_names_is_refused(ray: Callable[..., Ray]) -> None:
    stand = ray("9.9")
    del vars(stand.util)["register_tensor_transport"]
    with pytest.raises(RuntimeError, match=r"does not fit Ray 9\.9.*register_tensor_transport.*2\.60\.0"):
        importlib.import_module(MODULE)
