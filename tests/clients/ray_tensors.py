"""Ray's direct transport of tensors between actors on CPUs: a program that compares every element.

Its word is the transport, `nixl` or `tent`. Its last line is a JSON object.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ray  # type: ignore[import-not-found]
import torch
from ray.experimental.rdt.util import get_tensor_transport_manager  # type: ignore[import-not-found]

TRANSPORT = sys.argv[1]  # travels to the actors with their class
COUNT, LIMIT = 1 << 18, 60  # elements of a tensor, seconds for a fetch


def tensors(seed: int) -> list[torch.Tensor]:
    """Three tensors with elements that are known."""
    return [torch.arange(COUNT, dtype=torch.int32) * (2 * i + 1) + seed for i in range(3)]


def equal(given: list[torch.Tensor], seed: int) -> bool:
    """Whether each element is as it was made."""
    return len(given) == 3 and all(map(torch.equal, given, tensors(seed)))


def manager() -> Any:
    """The transport of this process."""
    return get_tensor_transport_manager(TRANSPORT.upper())


if TRANSPORT == "tent":
    import tent.integrations.ray

    tent.integrations.ray.register()


@ray.remote(num_cpus=0.1, enable_tensor_transport=True)
class Actor:
    """Makes tensors, and compares those of another actor."""

    def pool(self, size: int) -> None:
        """Lets Ray copy tensors into one registered pool."""
        if TRANSPORT == "tent":
            tent.integrations.ray.register_memory_pool(size, torch.device("cpu"))
        else:
            ray.experimental.register_nixl_memory_pool(size, torch.device("cpu"))

    @ray.method(tensor_transport=TRANSPORT)  # type: ignore[untyped-decorator]
    def make(self, seed: int) -> list[torch.Tensor]:
        """Tensors that stay here until another actor wants them."""
        return tensors(seed)

    def put(self, seed: int) -> list[Any]:
        """A reference to tensors, for an actor that has buffers for them."""
        return [ray.put(tensors(seed), _tensor_transport=TRANSPORT)]

    def compare(self, given: list[torch.Tensor], seed: int) -> bool:
        """Whether they came whole."""
        return equal(given, seed)

    def fetch_into(self, references: list[Any], seed: int) -> bool:
        """Fetches into buffers that are here already."""
        places = [torch.zeros(COUNT, dtype=torch.int32) for _ in range(3)]
        ray.experimental.set_target_for_ref(references[0], places)
        return equal(ray.get(references[0], timeout=LIMIT), seed) and equal(places, seed)

    def module(self) -> str:
        """The module of the agent."""
        return type(manager().get_nixl_agent()).__module__


def get(reference: Any) -> Any:
    """The value, or the name of Ray's error."""
    try:
        return ray.get(reference, timeout=LIMIT)
    except ray.exceptions.RayError as error:
        return type(getattr(error, "cause", error)).__name__


def main() -> dict[str, Any]:
    """Moves tensors in each way that Ray has, loses an actor, and goes on with another one."""
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
    one, two, pooled = Actor.remote(), Actor.remote(), Actor.remote()
    ray.get(pooled.pool.remote(64 << 20))
    seen = {
        "whole": [get(two.compare.remote(one.make.remote(seed), seed)) for seed in range(8)],
        "from a pool": [get(two.compare.remote(pooled.make.remote(seed), seed)) for seed in range(8)],
        "into buffers": get(two.fetch_into.remote(ray.get(one.put.remote(9)), 9)),
        "module": ray.get(one.module.remote()),
    }
    kept = one.make.remote(7)
    ray.wait([kept])
    ray.kill(one)
    seen["lost"] = get(two.compare.remote(kept, 7))
    three = Actor.remote()
    seen["successor"] = get(two.compare.remote(three.make.remote(8), 8))
    ray.shutdown()
    return seen


if __name__ == "__main__":
    print(json.dumps(main()))
