"""A linter that needs data of the network asks for them before it loads a package."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import arm64
import guest
import lint
import pytest

PROGRAM = '#!/bin/sh\necho "Vulnerability #1: GO-2000-0001"\nexit 3\n'


class Answer(http.server.BaseHTTPRequestHandler):
    """Has each page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    """The address of a server of this process."""
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(10)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A govulncheck that finds something."""
    path = tmp_path / "govulncheck"
    path.write_text(PROGRAM)
    path.chmod(0o755)
    monkeypatch.setattr(lint, "BIN", tmp_path)
    return path


def test_what_is_run_without_cgo_is_looked_at_without_cgo() -> None:
    assert {*arm64.PACKAGES_OF_GO, *guest.PROGRAMS} <= {*lint.WITHOUT_CGO}


def test_without_its_data_govulncheck_is_skipped_and_not_started(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.unlink()  # starting it would raise another error
    monkeypatch.setattr(lint, "VULNERABILITIES", "http://127.0.0.1:1")
    with pytest.raises(lint.SkippedError, match="cannot be reached from here"):
        lint.govulncheck("go", {}, None)


def test_with_its_data_govulncheck_reports(program: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint, "VULNERABILITIES", address)
    assert lint.govulncheck("go", {}, None) == ["Vulnerability #1: GO-2000-0001"]
