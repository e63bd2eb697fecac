"""tent as a KV connector of vLLM: prefill and decode servers move KV caches over it, without NIXL.

vLLM finds the connectors by the entry point of this package; the line is

    --kv-transfer-config '{"kv_connector":"TentConnector","kv_role":"kv_producer","kv_buffer_device":"cpu"}'

for a prefill server, and `kv_consumer` for a decode server. Options stand in `kv_connector_extra_config`: `priority`,
`timeout`, `integrity` and `config`, as tent.compat.options has them, beside those of vLLM's NixlConnector. These
classes are that connector with tent's agent inside. Leases, heartbeats, layouts and metrics are vLLM's.
"""

from __future__ import annotations

from typing import Any

import vllm  # type: ignore[import-not-found]
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole  # type: ignore[import-not-found]

from . import vllm_stand as stand
from .versions import warn_unless_tested
from .vllm_counts import KEY, PREFIX, Counted, parsed

BASE_WORKER = stand.base_worker(vllm.__version__)  # before the others: they would import NIXL

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import (  # type: ignore[import-not-found]  # noqa: E402
    NixlPullConnector,
    NixlPushConnector,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import (  # type: ignore[import-not-found]  # noqa: E402
    NixlKVConnectorStats,
    NixlPromMetrics,
)


class TentKVConnectorStats(NixlKVConnectorStats):  # type: ignore[misc]
    """The figures of vLLM's connector, and the growth of tent's counters."""

    def reset(self) -> None:
        """Empties them."""
        super().reset()
        self.data[KEY] = []

    def is_empty(self) -> bool:
        """Whether there is nothing to report."""
        return not self.data[KEY] and super().is_empty()


class TentPromMetrics(NixlPromMetrics):  # type: ignore[misc]
    """The metrics of vLLM's connector, and tent's counters as `vllm:tent_..._total`."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], engines: dict[int, Any]) -> None:
        """For vLLM only."""
        super().__init__(vllm_config, metric_types, labelnames, engines)
        self._counters: dict[str, Any] = {}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Adds the figures of a step."""
        super().observe(transfer_stats_data, engine_idx)
        for grown in transfer_stats_data.get(KEY, []):
            for series, value in grown.items():
                self._add(series, value, engine_idx)

    def _add(self, series: str, value: float, engine_idx: int) -> None:
        found = parsed(series)
        if found is None:
            return
        name, transport = found
        if name not in self._counters:
            self._counters[name] = self._counter_cls(
                name=PREFIX + name,
                documentation=f"{name} of tent; its reference of metrics describes it.",
                labelnames=[*self._labelnames, "transport"],
            )
        self._counters[name].labels(*self.per_engine_labelvalues[engine_idx], transport).inc(value)


class _OverTent:
    """The additions of both connectors to vLLM's."""

    _counted: Counted | None = None

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        """For vLLM only."""
        options = stand.options_of(vllm_config.kv_transfer_config.kv_connector_extra_config)
        stand.check_settings(vllm_config)
        if role == KVConnectorRole.SCHEDULER:  # there is one in each server
            warn_unless_tested("vLLM", vllm.__version__, stand.INSTEAD)
        with stand.standing(BASE_WORKER, options):
            super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]
        worker = getattr(self, "connector_worker", None)
        if worker is not None:
            self._counted = Counted(worker.nixl_wrapper.engine.metrics)

    def get_kv_connector_stats(self) -> Any:
        """The figures since the last call; None without news."""
        found = super().get_kv_connector_stats()  # type: ignore[misc]
        grown = self._counted.taken(busy=found is not None) if self._counted else {}
        if found is None and not grown:
            return None
        stats = self.build_kv_connector_stats(None if found is None else found.data)
        stats.data[KEY] = [grown] if grown else []
        return stats

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> TentKVConnectorStats:
        """The figures that a worker has sent, or empty ones."""
        stats = TentKVConnectorStats()
        stats.data.update(data or {})
        return stats

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, Any]
    ) -> TentPromMetrics:
        """The metrics that the server shows."""
        return TentPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


class TentConnector(_OverTent, NixlPullConnector):  # type: ignore[misc]
    """Decode servers READ the KV cache of prefill servers.

    Example:
        from vllm.config import KVTransferConfig

        KVTransferConfig(kv_connector="TentConnector", kv_role="kv_producer", kv_buffer_device="cpu")
    """


class TentPushConnector(_OverTent, NixlPushConnector):  # type: ignore[misc]
    """Prefill servers WRITE the KV cache to decode servers. Both requests of a prompt have one X-Request-Id.

    Example:
        from vllm.config import KVTransferConfig

        KVTransferConfig(kv_connector="TentPushConnector", kv_role="kv_producer", kv_buffer_device="cpu")
    """
