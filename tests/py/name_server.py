"""A metadata service with the protocol of Mooncake's HTTP server, for tests."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Store(ThreadingHTTPServer):
    """A metadata server; `asked` is set when somebody has asked for a name that is not there."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.values: dict[str, bytes] = {}
        self.asked = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/metadata"


class Answer(BaseHTTPRequestHandler):
    server: Store

    def do_GET(self) -> None:
        value = self.server.values.get(self.key())
        if value is None:
            self.server.asked.set()
        self.answer(404 if value is None else 200, value or b"metadata not found")

    def do_PUT(self) -> None:
        self.server.values[self.key()] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, b"metadata updated")

    def do_DELETE(self) -> None:
        self.server.values.pop(self.key(), None)
        self.answer(200, b"metadata deleted")

    def key(self) -> str:
        return parse_qs(urlsplit(self.path).query)["key"][0]

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Is silent."""


@contextlib.contextmanager
def served() -> Iterator[Store]:
    """Serves until the end of the block."""
    with Store() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
