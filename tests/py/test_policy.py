"""Policies choose the transport by request, and explain() names the one that counted."""

from __future__ import annotations

import pytest

import tent

POLICIES = [
    {"name": "checkpoints", "segment_type": "memory", "intent_type": "checkpoint", "transports": ["shm"]},
    {"name": "small", "segment_type": "memory", "max_size": 4096, "transports": ["tcp"]},
    {"name": "low", "segment_type": "memory", "priority": "low", "transports": ["tcp", "shm"]},
]


@pytest.fixture
def engine():
    with tent.Engine(policy=POLICIES) as engine:
        yield engine


def test_a_policy_chooses_by_size_and_priority(engine: tent.Engine) -> None:
    high, low = tent.PRIO_HIGH, tent.PRIO_LOW
    with engine.allocate(1 << 20) as own, engine.allocate(1 << 20) as other:
        for size, priority, want in ((4096, high, "tcp"), (65536, high, "shm"), (65536, low, "tcp")):
            transfer = engine.write(own[:size], other[:size], priority=priority)
            assert transfer.result(timeout=10) == size
            assert list(transfer.transports) == [want]


def test_explain_names_the_policy_and_what_it_leaves_out(engine: tent.Engine) -> None:
    with engine.allocate(4096) as own, engine.allocate(4096) as other:
        assert engine.explain(own, other)["policy"] == 'policy "small"'
        told = engine.explain(own, other, intent=tent.IntentType.CHECKPOINT)
        assert told["policy"] == 'policy "checkpoints"'
        assert {"transport": "tcp", "reason": 'policy "checkpoints" does not list it'} in told["rejected"]


def test_a_policy_of_an_unknown_transport_is_refused() -> None:
    unknown = 'no transport is called "udp"; known are shm, mnnvl, nvlink, acl, rdma, ascend_direct, tcp'
    with pytest.raises(tent.InvalidArgumentError, match=unknown):
        tent.Engine(policy=[{"segment_type": "memory", "transports": ["udp"]}])
