"""Metrics of an engine over HTTP, for Prometheus and `tent top`: serve_metrics()."""

from __future__ import annotations

from ._text import shown
from .errors import EngineClosedError, InvalidArgumentError
from .handle import Handle
from .quantities import integer_of, text_of


class MetricsServer:
    """A place at which an engine's metrics are served, from serve_metrics(), until close() or the engine's end.

    Example:
        with tent.serve_metrics(engine) as server:
            print(server.url)
    """

    __slots__ = ("_engine", "address")

    def __init__(self, engine: Handle, address: str) -> None:
        """For tent only."""
        self._engine: Handle | None = engine
        self.address = address

    @property
    def url(self) -> str:
        """Of the text for Prometheus."""
        return f"http://{self.address}/metrics"

    def close(self) -> None:
        """Ends it; a second time does nothing."""
        engine, self._engine = self._engine, None
        if engine is not None:
            try:
                engine._call(engine._library.pybind_StopMetrics, self.address)
            except EngineClosedError:
                pass  # it ended with its engine

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<MetricsServer {self.url}{'' if self._engine and not self._engine.closed else ' closed'}>"


def serve_metrics(engine: Handle, port: int = 0, host: str = "127.0.0.1") -> MetricsServer:
    """Serves an engine's metrics over HTTP, under /metrics as Prometheus' text; port 0 takes a free one.

    Example:
        import urllib.request

        with tent.serve_metrics(engine, port=0) as server:
            text = urllib.request.urlopen(server.url, timeout=10).read().decode()
            assert "tent_write_bytes_total" in text

    The setting `metrics/listen` does the same when the engine opens. Only this machine reaches the default host. Raises
    RpcServiceError when the port is taken.
    """
    if not isinstance(engine, Handle):
        raise InvalidArgumentError(f"engine is {shown(engine)}: it must be an Engine")
    if (number := integer_of(port)) is None or not 0 <= number < 1 << 16:
        raise InvalidArgumentError(f"port is {shown(port)}: it must be a number from 0 to 65535")
    where = text_of(host, "host", needed=True)
    place = f"[{where}]:{number}" if ":" in where else f"{where}:{number}"
    return MetricsServer(engine, engine._call(engine._library.pybind_ServeMetrics, place))
