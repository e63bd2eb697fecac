"""The Grafana dashboard and the alert rules: every expression names metrics and labels that exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
OPERATE = ROOT / "docs" / "operate"
SCRAPED = {"instance", "job"}  # labels that Prometheus adds


class Metric(NamedTuple):
    kind: str
    labels: set[str]


def known() -> dict[str, Metric]:
    """The metrics of docs/reference/metrics.md, which is made from the engine's table."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(tent_\w+)` \| (\w+) \| ([^|]*) \|", page, re.M)
    return {name: Metric(kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def series(name: str) -> tuple[str, set[str]]:
    """The metric behind the name of a series, and its labels."""
    metrics = known()
    for suffix in ("_bucket", "_sum", "_count"):
        base = name.removesuffix(suffix)
        if base != name and metrics.get(base, Metric("", set())).kind == "histogram":
            return base, metrics[base].labels | ({"le"} if suffix == "_bucket" else set())
    return name, metrics[name].labels if name in metrics else set()


def faults(expression: str, legend: str = "") -> list[str]:
    """The mistakes in an expression of PromQL, as far as names go."""
    found = []
    names = re.findall(r"\btent_\w+", expression)
    for name in names:
        base, labels = series(name)
        if base not in known():
            found.append(f"{name} is no metric")
            continue
        used = {
            label for inner in re.findall(name + r"\{([^}]*)\}", expression) for label in re.findall(r"(\w+)=", inner)
        }
        for group in re.findall(r"by \(([^)]*)\)", expression):
            used |= set(re.findall(r"\w+", group))
        found += [f"{name} has no label {label}" for label in used - labels - SCRAPED]
        counts = known()[base].kind == "counter" or name != base
        if counts != bool(re.search(rf"(rate|increase)\({name}\b", expression)):
            found.append(f"{name} is a {known()[base].kind}")
    kept = re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression)))
    for label in re.findall(r"\{\{(\w+)\}\}", legend):
        if label not in (kept or series(names[0])[1]):
            found.append(f"the legend's {label} is summed away")
    return found if names else ["no metric"]


def panels() -> list[dict[str, Any]]:
    return list(json.loads((OPERATE / "grafana.json").read_text(encoding="utf-8"))["panels"])


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: str(panel["title"]))
def test_a_panel_draws_metrics_that_exist(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        assert faults(target["expr"], target["legendFormat"]) == []


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: str(panel["title"]))
def test_a_panel_has_the_unit_of_its_metrics(panel: dict[str, Any]) -> None:
    units = {r"\(\w+_bytes_total": "Bps", r"_rate_bytes": "Bps", r"_size_bytes|_bytes\b": "bytes", r"_us_": "µs"}
    for target in panel["targets"]:
        wanted = next((unit for part, unit in units.items() if re.search(part, target["expr"])), None)
        assert panel["fieldConfig"]["defaults"]["unit"] == wanted or wanted is None, target["expr"]


def test_every_metric_is_drawn() -> None:
    """The build's is the list of engines from which a reader chooses."""
    text = (OPERATE / "grafana.json").read_text(encoding="utf-8")
    drawn = {series(name)[0] for name in re.findall(r"\btent_\w+", text)}
    assert sorted(set(known()) - drawn) == []


def test_alerts_watch_metrics_that_exist() -> None:
    text = (OPERATE / "alerts.yml").read_text(encoding="utf-8")
    expressions = re.findall(r"^ +expr: (.*)$", text, re.M)
    assert len(expressions) == text.count("- alert:") > 3
    for expression in expressions:
        assert faults(re.sub(r" [<>] \S+$", "", expression)) == []
        for value in re.findall(r'state="(\w+)"', expression):
            rows = (ROOT / "gocore" / "metrics" / "families.go").read_text(encoding="utf-8")
            assert f'"{value}"' in rows, f"no rail is ever {value}"


def test_a_wrong_expression_is_found() -> None:
    assert faults("sum(rate(tent_written_bytes_total[5m]))") == ["tent_written_bytes_total is no metric"]
    assert faults("sum by (rail) (rate(tent_write_bytes_total[5m]))") == ["tent_write_bytes_total has no label rail"]
    assert faults("rate(tent_rail_health[5m])") == ["tent_rail_health is a gauge"]
    assert faults("tent_dirty_total") == ["tent_dirty_total is a counter"]
    assert faults("sum(tent_peers)", "{{class}}") == ["the legend's class is summed away"]


def test_the_files_are_those_of_the_tables() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "dashboard.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
