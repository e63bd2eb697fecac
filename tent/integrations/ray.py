"""tent as a tensor transport of Ray: actors move tensors over it, without NIXL.

The driver makes it known before it makes actors:

    import tent.integrations.ray

    tent.integrations.ray.register()

    @ray.remote(enable_tensor_transport=True)
    class Trainer:
        @ray.method(tensor_transport="tent")
        def weights(self): ...

`ray.put(tensors, _tensor_transport="tent")` is the same for a reference. Each host has tent installed; options stand in
TENT_COMPAT, see tent.compat.options. The transport is Ray's own over NIXL with tent's agent inside: descriptors, pools,
references and aborts are Ray's.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any

import ray  # type: ignore[import-not-found]

from ..compat import nixl
from .versions import unfit, warn_unless_tested

INSTEAD = 'take tensor_transport="nixl" under `tent run --as nixl` instead'

try:
    from ray.experimental.rdt.nixl_tensor_transport import NixlTensorTransport  # type: ignore[import-not-found]
    from ray.experimental.rdt.util import (  # type: ignore[import-not-found]
        get_tensor_transport_manager,
        get_transport_data_type,
        register_tensor_transport,
        transport_manager_info,
    )
except ImportError as error:
    raise unfit("Ray", ray.__version__, error, INSTEAD) from error

if TYPE_CHECKING:
    import torch  # type: ignore[import-not-found]

logger = logging.getLogger("tent.integrations")

NAME = "TENT"


class TentTensorTransport(NixlTensorTransport):  # type: ignore[misc]
    """The transport of one process. Receivers READ the tensors where they are."""

    def tensor_transport_backend(self) -> str:
        """Its name in Ray."""
        return NAME

    def _init_nixl_agent(self) -> nixl.nixl_agent:
        self._backend = NAME
        return nixl.nixl_agent(ray.get_runtime_context().get_actor_id() or f"driver-{uuid.uuid4()}")

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        """Whether an actor can move tensors so: whether an engine starts there."""
        call = actor.__ray_call__.options(concurrency_group="_ray_system")
        return bool(ray.get(call.remote(_starts)))


def _starts(actor: Any) -> bool:
    try:
        _transport().get_nixl_agent()
    except Exception:
        logger.exception("no engine of tent starts in this actor")
        return False
    return True


def _transport() -> Any:
    _register()  # an actor's first method may come before Ray's own registration there
    return get_tensor_transport_manager(NAME)


def register() -> None:
    """Makes "tent" known to Ray, for the actors that this process makes afterwards. Again: no effect."""
    warn_unless_tested("Ray", ray.__version__, INSTEAD)
    _register()


def _register() -> None:
    if NAME not in transport_manager_info:
        register_tensor_transport(NAME, ["cuda", "cpu"], TentTensorTransport, get_transport_data_type("NIXL"))


def register_memory(tensor: torch.Tensor) -> None:
    """Keeps a tensor's memory registered in this actor, as ray.experimental.register_nixl_memory()."""
    _transport().register_nixl_memory(tensor)


def deregister_memory(tensor: torch.Tensor) -> None:
    """Takes register_memory() back. References to the tensor keep its memory registered until they are gone."""
    _transport().deregister_nixl_memory(tensor)


def register_memory_pool(size: int, device: torch.device) -> None:
    """Makes a pool of `size` bytes in this actor, to which Ray copies tensors instead of registering each, as
    ray.experimental.register_nixl_memory_pool(). A second one raises ValueError."""
    _transport().register_nixl_memory_pool(size, device)
