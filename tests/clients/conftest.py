"""The model, its right answers, and a prefill and a decode server by each way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import little
import pytest
from servers import Server, running
from ways import WAYS, Way, meet

SIZES = (200, 700, 1500, 3000)


@pytest.fixture(scope="session", autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes start outside of the checkout: `python -m` looks in its own folder first, and the tent there has
    a native module only where somebody has built one."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    yield
    os.chdir(before)


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return little.write(tmp_path_factory.mktemp("little"))


@pytest.fixture(scope="session")
def truth(model: Path, logs: Path) -> dict[tuple[int, ...], list[int]]:
    """The prompts, each with the answer of a server that prefills and decodes by itself."""
    alone = Server("alone", model, logs)
    with running(alone):
        prompts = [little.prompt(n, seed) for n in SIZES for seed in (1, 2)]
        return {tuple(prompt): alone.tokens(prompt) for prompt in prompts}


class Pair:
    """A prefill and a decode server."""

    def __init__(self, way: Way, prefill: Server, decode: Server) -> None:
        self.way, self.prefill, self.decode = way, prefill, decode

    def answer(self, prompt: list[int]) -> list[int]:
        """The tokens of the decode server, to which the prefill server hands the prompt over."""
        return self.decode.tokens(prompt, transfer=self.way.hand_over(self.prefill, prompt))


@pytest.fixture(scope="module", params=WAYS)
def started(request: pytest.FixtureRequest, model: Path, logs: Path, truth: object) -> Iterator[Pair]:
    """The servers of one way."""
    way = WAYS[request.param]
    if missing := way.missing():
        pytest.skip(f"{way.needs} cannot be imported here: {missing}")
    prefill = way.server("prefill", "kv_producer", model, logs)
    decode = way.server("decode", "kv_consumer", model, logs)
    with running(prefill, decode):
        yield Pair(way, prefill, decode)


@pytest.fixture
def pair(started: Pair) -> Pair:
    """The servers of one way, both alive, also behind a test that has killed one and failed."""
    for server in (started.prefill, started.decode):
        server.alive()
    meet(started.way, started.prefill, started.decode)
    return started
