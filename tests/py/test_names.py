"""Engines by name from Python, in a metadata service with the protocol of Mooncake's HTTP server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from name_server import Store, served

import tent


@pytest.fixture
def store() -> Iterator[Store]:
    with served() as server:
        yield server


def test_a_region_is_opened_by_name(store: Store) -> None:
    settings = {"metadata_type": "http", "metadata_servers": store.url}
    with tent.Engine(name="decode-0", config=settings) as owner, tent.Engine(config=settings) as opener:
        kv, page = owner.allocate(4096, name="kv"), opener.allocate(4096)
        page.view[:] = bytes(range(256)) * 16
        with opener.open("decode-0/kv") as remote:
            opener.write(page, remote[0:4096]).result(timeout=10)
        assert bytes(kv.view) == bytes(range(256)) * 16
        with pytest.raises(tent.InvalidEntryError, match="no engine is named"):
            opener.open("decode-1")
    assert store.values == {}, "names go with their engines"


@pytest.mark.parametrize("form", ["open", "open_peer", "open_async"])
def test_an_engine_that_starts_later_is_awaited(store: Store, form: str) -> None:
    settings = {"metadata_type": "http", "metadata_servers": store.url}
    with tent.Engine(config=settings) as opener:
        with pytest.raises(tent.InvalidEntryError):
            opener.open("late", wait=True, timeout=0.5)
        store.asked.clear()
        found: list[str] = []

        def wait() -> None:
            opened = getattr(opener, form)("late/kv", wait=True, timeout=30)
            with asyncio.run(opened) if form == "open_async" else opened as segment:
                found.append(segment.name)

        waiter = threading.Thread(target=wait)
        waiter.start()
        assert store.asked.wait(30)
        with tent.Engine(name="late", config=settings) as owner, owner.allocate(4096, name="kv"):
            waiter.join(30)
            assert found == ["late"]


def test_a_file_cannot_be_awaited() -> None:
    with tent.Engine() as engine, pytest.raises(tent.InvalidArgumentError, match="wait="):
        engine.open("file:///tmp/x", wait=True)


def test_doctor_checks_the_service(store: Store) -> None:
    def doctor(url: str) -> tuple[int, dict[str, object]]:
        config = json.dumps({"metadata_type": "http", "metadata_servers": url, "metadata_timeout": 1})
        command = [sys.executable, "-m", "tent", "doctor", "--json", "--config", config]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        (check,) = (each for each in json.loads(done.stdout)["checks"] if each["name"] == "metadata service")
        return done.returncode, check

    _, check = doctor(store.url)
    assert check["ok"] and check["found"] == [f"http at {store.url} lists names"]
    assert store.values == {}
    with Store() as closed:
        url = closed.url
    status, check = doctor(url)
    assert status == 1 and not check["ok"] and "connection refused" in str(check["reason"])
