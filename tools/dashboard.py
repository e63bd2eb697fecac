"""Writes docs/operate/grafana.json and docs/operate/alerts.yml from the tables below.

    dashboard.py           # writes them
    dashboard.py --check   # exits with 1 if one of them is old

tests/py/test_dashboard.py holds every expression against docs/reference/metrics.md: names, labels and kinds.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

import generated

FOLDER = generated.ROOT / "docs" / "operate"
WINDOW = "$__rate_interval"
ENGINES = 'instance=~"$instance"'


class Panel(NamedTuple):
    """One picture: legends with expressions. $E stands for the chosen engines, $W for Grafana's window of rates."""

    title: str
    unit: str  # of Grafana
    lines: dict[str, str]


RAIL = "{{transport}} {{local}} to {{remote}}"


def quantile(share: float, name: str, label: str = "class") -> str:
    return f"histogram_quantile({share}, sum by (le, {label}) (rate({name}_bucket{{$E}}[$W])))"


def rate(name: str, *labels: str) -> str:
    return f"sum{' by (' + ', '.join(labels) + ')' if labels else ''} (rate({name}{{$E}}[$W]))"


PANELS = (
    Panel(
        "Bytes delivered",
        "Bps",
        {f"{op} {{{{class}}}}": f"sum by (class) (rate(tent_{op}_bytes_total{{$E}}[$W]))" for op in ("write", "read")},
    ),
    Panel(
        "Requests ended",
        "reqps",
        {
            f"{op} {{{{class}}}}": f"sum by (class) (rate(tent_{op}_requests_total{{$E}}[$W]))"
            for op in ("write", "read")
        },
    ),
    Panel(
        "Time of a WRITE, from submit to end",
        "µs",
        {f"p{100 * share:g} {{{{class}}}}": quantile(share, "tent_write_latency_us") for share in (0.5, 0.99)},
    ),
    Panel(
        "Time of a READ, from submit to end",
        "µs",
        {f"p{100 * share:g} {{{{class}}}}": quantile(share, "tent_read_latency_us") for share in (0.5, 0.99)},
    ),
    Panel(
        "Wait for the first slice",
        "µs",
        {f"p{100 * share:g} {{{{class}}}}": quantile(share, "tent_stage_queue_wait_us") for share in (0.5, 0.99)},
    ),
    Panel(
        "Requests that did not complete",
        "reqps",
        {
            "failed": "sum(rate(tent_write_failures_total{$E}[$W])) + sum(rate(tent_read_failures_total{$E}[$W]))",
            "canceled": "sum(rate(tent_canceled_total{$E}[$W]))",
            "timed out": "sum(rate(tent_timeout_total{$E}[$W]))",
            "dirty": "sum(rate(tent_dirty_total{$E}[$W]))",
        },
    ),
    Panel(
        "Bytes of a rail",
        "Bps",
        {RAIL: "sum by (transport, local, remote) (rate(tent_rail_bytes_total{$E}[$W]))"},
    ),
    Panel("Slow rails", "none", {RAIL: "tent_rail_slow{$E}"}),
    Panel("Health of a rail", "none", {RAIL: "tent_rail_health{$E}"}),
    Panel("Rails by state", "none", {"{{transport}} {{state}}": "sum by (transport, state) (tent_rails{$E})"}),
    Panel(
        "Second tries",
        "ops",
        {
            "retries": "sum(rate(tent_retries_total{$E}[$W]))",
            "reroutes": "sum(rate(tent_reroutes_total{$E}[$W]))",
            "failover {{from}} to {{to}}": "sum by (from, to) (rate(tent_transport_failover_total{$E}[$W])) > 0",
            "slices asked back": rate("tent_withdrawn_total"),
        },
    ),
    Panel(
        "Bytes in flight and waiting",
        "bytes",
        {
            "in flight {{transport}}": "sum by (transport) (tent_in_flight_bytes{$E})",
            "waiting {{class}}": "sum by (class) (tent_queue_bytes{$E})",
            "in flight of other processes, {{device}}": "max by (device) (tent_shared_others_bytes{$E})",
        },
    ),
    Panel("Registered memory", "bytes", {"registered": "sum(tent_registered_bytes{$E})"}),
    Panel(
        "Regions and peers",
        "short",
        {
            "regions": "sum(tent_regions{$E})",
            "peers": "sum(tent_peers{$E})",
            "segments": "sum(tent_segments{$E})",
        },
    ),
    Panel(
        "Requests alive",
        "short",
        {
            "not ended": "sum(tent_pending_requests{$E})",
            "wait for a rail, {{class}}": "sum by (class) (tent_queue_depth{$E})",
            "batches": "sum(tent_batches{$E})",
        },
    ),
    Panel(
        "Deadlines",
        "reqps",
        {
            "missed, {{stage}}": rate("tent_deadline_misses_total", "stage"),
            "could not be met": rate("tent_deadline_infeasible_total"),
        },
    ),
    Panel(
        "Turns of the classes",
        "ops",
        {
            "promoted {{class}}": rate("tent_promotions_total", "class"),
            "waits for a slot {{class}}": rate("tent_slot_waits_total", "class"),
        },
    ),
    Panel(
        "Wait for a slot of time",
        "µs",
        {f"p{100 * share:g} {{{{class}}}}": quantile(share, "tent_slot_wait_us") for share in (0.5, 0.99)},
    ),
    Panel(
        "Attempts of a transport",
        "ops",
        {
            "{{transport}} {{operation}}": rate("tent_transport_attempts_total", "transport", "operation"),
            "{{transport}} {{operation}} failed": rate(
                "tent_transport_attempt_failures_total", "transport", "operation"
            ),
        },
    ),
    Panel(
        "Time of a slice",
        "µs",
        {
            f"p{100 * share:g} {{{{transport}}}}": quantile(share, "tent_transport_attempt_latency_us", "transport")
            for share in (0.5, 0.99)
        },
    ),
    Panel(
        "Size of a request, median",
        "bytes",
        {f"{op} {{{{class}}}}": quantile(0.5, f"tent_{op}_size_bytes") for op in ("write", "read")},
    ),
    Panel("Rate that a rail is believed to carry", "Bps", {RAIL: "tent_rail_rate_bytes{$E}"}),
    Panel("Bytes in flight of a rail", "bytes", {RAIL: "tent_rail_in_flight_bytes{$E}"}),
    Panel("State of a rail", "none", {RAIL + ": {{state}}": "tent_rail_state{$E}"}),
    Panel("Failures of a rail", "ops", {RAIL: rate("tent_rail_failures_total", "transport", "local", "remote")}),
    Panel(
        "Errors of rails",
        "ops",
        {
            "errors {{transport}}": rate("tent_rail_errors_total", "transport"),
            "given up {{transport}}": rate("tent_rails_condemned_total", "transport"),
            "slow {{transport}}": rate("tent_slow_paths_total", "transport"),
        },
    ),
    Panel("Flushes behind WRITEs", "ops", {"{{transport}}": rate("tent_flushes_total", "transport")}),
    Panel(
        "Defects of transports",
        "ops",
        {
            "stray completions {{transport}}": rate("tent_stray_completions_total", "transport"),
            "calls of ended links {{transport}}": rate("tent_stale_calls_total", "transport"),
        },
    ),
    Panel(
        "Notifications",
        "short",
        {
            "sent a second": rate("tent_notifications_sent_total"),
            "received a second": rate("tent_notifications_received_total"),
            "refused a second": rate("tent_notifications_refused_total"),
            "wait to be read": "sum(tent_notifications_waiting{$E})",
        },
    ),
    Panel(
        "Strangers",
        "short",
        {
            "refused a second, {{plane}}: {{reason}}": rate("tent_refused_total", "plane", "reason"),
            "engines without security": "sum(tent_insecure{$E})",
        },
    ),
    Panel(
        "Engines that share the NICs of a host",
        "short",
        {"{{transport}}": "max by (transport) (tent_shared_processes{$E})"},
    ),
    Panel(
        "Faults of tests, and reports that were lost",
        "short",
        {
            "in force {{transport}}": "sum by (transport) (tent_faults{$E})",
            "struck {{transport}}": rate("tent_faults_injected_total", "transport"),
            "ambient {{transport}}": rate("tent_faults_ambient_total", "transport"),
            "reports of traces dropped": rate("tent_trace_reports_dropped_total"),
        },
    ),
    Panel(
        "Pools in memory of the host, for memory of devices",
        "short",
        {
            "slots": "sum(tent_staging_slots{$E})",
            "free slots": "sum(tent_staging_slots_free{$E})",
            "waits for a slot": rate("tent_staging_waits_total"),
        },
    ),
)


class Alert(NamedTuple):
    """A rule: it fires when the expression has had a value for so long."""

    name: str
    expression: str
    lasting: str
    severity: str
    summary: str


ALERTS = (
    Alert(
        "TentRequestsFail",
        "sum by (instance) (rate(tent_write_failures_total[5m]) + rate(tent_read_failures_total[5m])) > 0",
        "5m",
        "critical",
        "Requests end FAILED; the events peer_gone, failover_exhausted, failover_no_route and stalled say why",
    ),
    Alert(
        "TentRailDown",
        'sum by (instance, transport) (tent_rails{state="down"}) > 0',
        "2m",
        "warning",
        "A rail is out; transfers go over the others. The events rail_down and rail_condemned have the cause",
    ),
    Alert(
        "TentRailErrors",
        "sum by (instance, transport) (rate(tent_rail_errors_total[5m])) > 0",
        "5m",
        "warning",
        "A rail fails again and again, and may be up in between; the events rail_paused and rail_down have the cause",
    ),
    Alert(
        "TentSlowPath",
        "sum by (instance, transport, local, remote) (tent_rail_slow) > 0",
        "1m",
        "warning",
        "A full rail carries less than half of its nominal or usual rate; the event slow_path has cause and knob",
    ),
    Alert(
        "TentFailover",
        "sum by (instance, from, to) (rate(tent_transport_failover_total[5m])) > 0",
        "5m",
        "warning",
        "Requests leave a transport for another one; look at the rails of the first",
    ),
    Alert(
        "TentDirty",
        "sum by (instance) (increase(tent_dirty_total[10m])) > 0",
        "0m",
        "warning",
        "Requests ended before the peer confirmed that nothing lands any more; fence the regions at their owner",
    ),
    Alert(
        "TentStrayCompletions",
        "sum by (instance, transport) (increase(tent_stray_completions_total[10m])) > 0",
        "0m",
        "warning",
        "A transport completed slices that were not outstanding; its links go down. Report the event stray_completion",
    ),
    Alert(
        "TentNotificationsRefused",
        "rate(tent_notifications_refused_total[5m]) > 0",
        "5m",
        "warning",
        "The queue of notifications is full: the program does not read engine.notifications",
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's JSON."""
    source = {"type": "prometheus", "uid": "${source}"}
    panels = []
    for i, panel in enumerate(PANELS):
        targets = [
            {
                "datasource": source,
                "expr": expression.replace("$E", ENGINES).replace("$W", WINDOW),
                "legendFormat": legend,
                "refId": chr(ord("A") + j),
            }
            for j, (legend, expression) in enumerate(panel.lines.items())
        ]
        panels.append(
            {
                "id": i + 1,
                "type": "timeseries",
                "title": panel.title,
                "datasource": source,
                "gridPos": {"h": 8, "w": 12, "x": 12 * (i % 2), "y": 8 * (i // 2)},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": targets,
            }
        )
    instances = "label_values(tent_build_info, instance)"
    variables = [
        {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "instance",
            "type": "query",
            "label": "Engines",
            "datasource": source,
            "query": {"query": instances, "refId": "instances"},
            "definition": instances,
            "multi": True,
            "includeAll": True,
            "refresh": 2,
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    return {
        "uid": "tent-engines",
        "title": "tent",
        "tags": ["tent"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }


def alerts() -> str:
    """The rules in Prometheus' YAML."""
    lines = ["# Written by tools/dashboard.py; do not edit.", "groups:", "  - name: tent", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {alert.expression}",
            f"        for: {alert.lasting}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    panels = json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"
    pages = {FOLDER / "grafana.json": panels, FOLDER / "alerts.yml": alerts()}
    return generated.renew(pages, "make docs-reference", check="--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
