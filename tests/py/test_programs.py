"""The programs of the API's description run as they stand, in processes of their own: tests/py/programs keeps them."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Pair

import tent

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.interpreter
def test_prefill_writes_into_decode() -> None:
    pytest.importorskip("numpy")
    command = [sys.executable, "-W", "error"]
    decode = subprocess.Popen([*command, PROGRAMS / "decode.py"], stdout=subprocess.PIPE, text=True)
    try:
        assert decode.stdout
        address = decode.stdout.readline().strip()
        assert re.fullmatch(r"127\.0\.0\.1:\d+", address)
        prefill = subprocess.run(
            [*command, PROGRAMS / "prefill.py", address], capture_output=True, text=True, timeout=60
        )
        assert prefill.returncode == 0, prefill.stderr
        assert re.fullmatch(r"<Transfer COMPLETED 64\.0 KiB \w+ [\d.]+ [mu]?s>\n", prefill.stdout), prefill.stdout
        assert prefill.stderr == ""
        assert decode.wait(timeout=60) == 0
    finally:
        decode.kill()
        decode.wait()
        if decode.stdout:
            decode.stdout.close()


@pytest.mark.interpreter
def test_the_integer_program(pair: Callable[..., Pair]) -> None:
    both = pair(65536)
    text = (PROGRAMS / "integers.py").read_text().replace("127.0.0.1:41233", both.far.address)
    names: dict[str, Any] = {"size": 4096}
    exec(compile(text, "integers.py", "exec"), names)
    engine: tent.TransferEngine = names["engine"]
    try:
        assert names["status"] == (tent.TransferStatusEnum.COMPLETED, 4096)
        arrived = (tent.page.bytes_at(names["addr"], 4096)).tobytes()  # type: ignore[attr-defined]
        assert arrived == bytes(both.theirs.expected[:4096])
    finally:
        engine.free_local_memory(names["addr"])
        engine.close()


@pytest.mark.interpreter
def test_the_program_in_an_event_loop(pair: Callable[..., Pair]) -> None:
    both = pair(1 << 20)
    names: dict[str, Any] = {}
    exec(compile((PROGRAMS / "prefill_async.py").read_text(), "prefill_async.py", "exec"), names)
    back = both.far.open(both.near.address)

    async def run() -> None:
        task = asyncio.ensure_future(names["prefill"](both.near, both.peer, both.local))
        both.far.notify(back, "a", "b")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(task, timeout=1)

    asyncio.run(run())
    both.theirs.expect(0, both.mine.expected[0:65536])
    both.check()
    assert both.near.notifications.drain() == []  # the loop took it
