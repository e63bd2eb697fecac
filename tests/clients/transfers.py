"""Each transfer of vLLM's connectors as they count it, and the cost of each post to the thread that made it.

vLLM's log has averages over several transfers, its metrics have sums, and MooncakeConnector's figures are in its log
alone. So a plug-in of vLLM writes the figures of a server into a file as they pass: those of the connector on their way
to the log, and those of a post where the connector calls its agent.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servers import Server

VARIABLE = "LITTLE_TRANSFERS"  # names the file
NAME = "little_transfers"  # of the plug-in

# The time for which a thread could run and had no processor is the second figure of schedstat, in nanoseconds.
PLUG_IN = """
import json, os, time

FILE = os.environ["LITTLE_TRANSFERS"]

def note(**line):
    with open(FILE, "a") as file:
        file.write(json.dumps(line) + chr(10))

def now():
    with open("/proc/thread-self/schedstat") as file:
        waited = int(file.read().split()[1])
    return time.perf_counter_ns(), time.thread_time_ns(), waited

def load():
    from vllm.distributed.kv_transfer.kv_connector import factory
    from vllm.distributed.kv_transfer.kv_connector.v1 import metrics
    kind, logged = factory.KVConnectorFactory, metrics.KVConnectorLogging.observe
    if logged.__module__ == __name__:
        return
    create = kind.create_connector

    def observe(self, transfer_stats_data):
        note(stats=transfer_stats_data)
        return logged(self, transfer_stats_data)

    def create_connector(cls, *given, **named):
        made = create(*given, **named)
        agent = getattr(getattr(made, "connector_worker", None), "nixl_wrapper", None)
        if agent is not None:
            watch(agent)
        return made

    metrics.KVConnectorLogging.observe = observe
    kind.create_connector = classmethod(create_connector)

def watch(agent):
    make, transfer, making = agent.make_prepped_xfer, agent.transfer, []

    def timed(call, given, named):
        begun = now()
        answer = call(*given, **named)
        return answer, [b - a for a, b in zip(begun, now())]

    def make_prepped_xfer(*given, **named):
        handle, spent = timed(make, given, named)
        making[:] = len(given[2]), spent
        return handle

    def posted(*given, **named):
        answer, spent = timed(transfer, given, named)
        descriptors, before = making
        note(post=[a + b for a, b in zip(before, spent)], descriptors=descriptors)
        return answer

    agent.make_prepped_xfer, agent.transfer = make_prepped_xfer, posted
"""


@dataclass(frozen=True)
class Transfer:
    """A transfer that has succeeded, as vLLM counts it."""

    seconds: float
    length: int  # bytes
    descriptors: int
    post: float | None  # the seconds that its post took; None where the connector does not say


@dataclass(frozen=True)
class Post:
    """The cost of a post to its thread, from the making of the transfer to the return of the call."""

    wall: float  # seconds
    processor: float  # those in which the thread ran
    waited: float  # those in which it could run and had no processor
    descriptors: int

    @property
    def held(self) -> float:
        """The seconds that the post took, less those that other threads took."""
        return self.wall - self.waited


@dataclass
class Figures:
    """All that a server has said."""

    transfers: list[Transfer] = field(default_factory=list)
    posts: list[Post] = field(default_factory=list)
    failures: int = 0  # transfers, their notifications and handshakes

    def largest(self) -> list[Transfer]:
        """The transfers of the largest size: those of a load, without the small ones by which servers meet."""
        most = max((transfer.length for transfer in self.transfers), default=0)
        return [transfer for transfer in self.transfers if transfer.length == most]

    def longest_lists(self) -> list[Post]:
        """The posts of most descriptors, for the same reason."""
        most = max((post.descriptors for post in self.posts), default=0)
        return [post for post in self.posts if post.descriptors == most]


FAILURES = ("num_failed_transfers", "num_failed_recvs", "num_failed_notifications", "num_failed_handshakes")


def parsed(text: str) -> Figures:
    """The figures of a file. Its last line may still be on its way."""
    figures = Figures()
    for line in text.splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        said: dict[str, Any] = json.loads(line)
        if "post" in said:
            wall, processor, waited = (nanoseconds / 1e9 for nanoseconds in said["post"])
            figures.posts.append(Post(wall, processor, waited, said["descriptors"]))
        else:
            _add(figures, said["stats"])
    return figures


def _add(figures: Figures, stats: dict[str, list[Any]]) -> None:
    rows = zip(stats["transfer_duration"], stats["bytes_transferred"], stats["num_descriptors"])
    posts = stats.get("post_duration") or [None] * len(stats["transfer_duration"])
    figures.transfers += [Transfer(*row, post) for row, post in zip(rows, posts)]
    figures.failures += sum(sum(stats.get(name, [])) for name in FAILURES)


def watched(server: Server) -> Path:
    """Lets a server that has not started write its figures; the file in which they will be."""
    path = server.logs / f"{server.name}-transfers.jsonl"
    server.load(NAME, PLUG_IN)
    server.environment[VARIABLE] = str(path)
    return path


def read(path: Path) -> Figures:
    """The figures that a server has written so far."""
    return parsed(path.read_text()) if path.exists() else Figures()
