"""Every query of dashboards and rules before a real Prometheus: parsed, answered on the demo."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import pytest
import yaml

from disagg_cluster.prometheus.prometheus_api import PrometheusError
from support.dashboards import NAMES, Query, folded, load, marks, queries, rules
from support.prometheus_query import query
from support.running_demo import RunningDemo
from support.running_node import wait_for

pytestmark = pytest.mark.prometheus

NO_MIXING = "the engines of the demo do not mix phases"
NO_ROUTER = "the demo's load plays the router itself"
NO_DRIVER = "simulated devices do not tell it"
NO_CONNECTOR = "stand-in engines count no KV transfer"
NO_PLANNER = "no planner runs beside the demo"
NOT_KNOWN = "neither model nor GPU of the demo is a real one"
FEW_ENGINES = "the three highest decode engines of the demo are all, and leave no others"
FEW_NODES = "it takes four nodes"
NO_NODE_AWAY = "no node of the demo is away"
NO_POOL_GONE = "no pool of the demo has lost its engines"
NOT_EXPECTED = "nothing says how many GPUs the demo should have"
WITHOUT_DATA = {
    ("node", "SM clock"): NO_DRIVER,
    ("node", "Xid errors of an hour"): NO_DRIVER,
    ("node", "Memory errors of an hour"): NO_DRIVER,
    ("engines", "Time of a KV transfer"): NO_CONNECTOR,
    ("engines", "Size of a KV transfer"): NO_CONNECTOR,
    ("engines", "MFU"): NOT_KNOWN,
    ("engines", "MBU"): NOT_KNOWN,
    ("engines", "SM share on shared GPUs"): "each GPU of the demo serves one engine",
    ("engines", "Registered Dynamo workers"): "the demo has no Dynamo",
    ("engines", "Requests a second"): NO_ROUTER,
    ("engines", "Waiting for prefill"): NO_ROUTER,
    ("engines", "Engines held unhealthy"): NO_ROUTER,
    ("engines", "Requests at the engines"): NO_ROUTER,
    ("engines", "Failed requests a second"): NO_ROUTER,
} | {(name, "Alerts that fire"): "all is well" for name in NAMES}
PARTLY = {
    ("fleet", "Clusters"): "nothing says how many GPUs the demo should have, and nothing pages",
    ("cluster", "Models"): "no planner runs beside the demo, and its engines do not mix phases",
    ("cluster", "Requests a second"): "no frontend is there to refuse one",
    ("cluster", "GPUs by role"): "no GPU of the demo is in another role",
    ("node", "GPUs by role"): "as above",
    ("node", "Temperature"): "simulated devices have no sensor in their memory",
    ("engines", "NVLink and PCIe traffic"): "simulated devices have no links",
    ("engines", "TTFT at decode and mixed engines, p95"): FEW_ENGINES,
    ("engines", "Time between tokens (ITL), p95"): FEW_ENGINES,
    ("engines", "Parts of the first token by engine"): "no engine tells a transfer by itself",
}
WITHOUT_SERIES = {
    "engine:disagg_descriptions:count": "each engine of the demo is on one page",
    "disagg_engine_registered": "the demo has no Dynamo",
    "disagg_gpu_ecc_errors_total": NO_DRIVER,
    "disagg_gpu_xid_errors_total": NO_DRIVER,
    "disagg_bottleneck": NO_PLANNER,
    "disagg_bottleneck_action_info": NO_PLANNER,
    "disagg_bottleneck_ttft_cost_seconds": NO_PLANNER,
    "disagg_bottleneck_undecided": NO_PLANNER,
    "disagg_plan_error_ratio": NO_PLANNER,
    "disagg_plan_shortfall_gpus": NO_PLANNER,
    "disagg_plan_undecided": NO_PLANNER,
    "disagg_router_decode_errors_total": NO_ROUTER,
    "disagg_router_prefill_errors_total": NO_ROUTER,
    "disagg_router_requests_total": NO_ROUTER,
    "disagg_router_worker_health": NO_ROUTER,
    "cluster:disagg_interference_ratio:ratio_rate5m": NO_MIXING,
    "cluster_model:disagg_interference_ratio:ratio_rate5m": NO_MIXING,
    "cluster_model:disagg_interference_seconds:rate5m": NO_MIXING,
    "cluster_model:disagg_interference_step_seconds:rate5m": NO_MIXING,
    "cluster_model_namespace:disagg_shared_usage_cost_per_hour:rate1h": NO_MIXING,
    "node_role_model_gpu:disagg_occupancy_off_median:ratio_rate5m": FEW_NODES,
    "cluster_role_model_gpu:disagg_evenly_loaded_nodes:count": FEW_NODES,
    "cluster:disagg_expected_gpus:configured": NOT_EXPECTED,
    "cluster:disagg_missing_nodes:sum": NOT_EXPECTED,
    "cluster:disagg_observed_gpus:ratio": NOT_EXPECTED,
    "node:disagg_expected_gpus:kubernetes": NOT_EXPECTED,
    "cluster:disagg_gone_gpus:last7d": NO_NODE_AWAY,
    "node:disagg_away_gpus:last1h": NO_NODE_AWAY,
    "node_model_namespace_role:disagg_unseen_engines:last15m": NO_NODE_AWAY,
    "node_model_namespace_role:disagg_unseen_pool:info": NO_NODE_AWAY,
    "node:disagg_gone_gpus:last1d": "no GPU of the demo has gone",
    "cluster_model_namespace_role:disagg_vanished_engines:max1d": NO_POOL_GONE,
    "cluster_model_namespace_role:disagg_lost_engines:max1d": NO_POOL_GONE,
    "cluster_model_namespace_role:disagg_idle_pool:info": NO_POOL_GONE,
    "disagg_engine_tls_info": "engines of the demo speak no TLS",
}
"""What rules ask or record that the demo does not have."""
ON_THE_CLOCK = {
    "cluster_model_namespace:disagg_phase_tokens:max6h",
    "cluster_model_namespace:disagg_itl_tokens:increase6h",
    "cluster_model_namespace:disagg_ttft_requests:increase6h",
}
"""What has a value from the next five minutes of the clock on, which the demo may not see."""
Asked = TypeVar("Asked", Query, str)
QUERIES = [each for name in NAMES for each in queries(name)]


def test_every_expression_is_promql(tmp_path: Path) -> None:
    """Expressions of panels and annotations are checked by promtool as one rule file."""
    binary = shutil.which("promtool")
    if binary is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    asked = QUERIES + [each for name in NAMES for each in marks(name)]
    rules = [{"record": f"q:{number}", "expr": each.text} for number, each in enumerate(asked)]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}), "utf-8")

    done = subprocess.run([binary, "check", "rules", str(path)], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert f"{len(asked)} rules found" in done.stdout


def test_collapsed_panels_are_exactly_those_that_may_lack_data() -> None:
    """So neither the collapsed panels nor those without data grow unnoticed."""
    hidden = {(name, title) for name in NAMES for title in folded(load(name))}

    assert hidden == set(WITHOUT_DATA)


@pytest.fixture(scope="module")
def prometheus(demo: RunningDemo) -> str:
    """The Prometheus of the running demo."""
    return demo.prometheus_url()


def test_every_query_finds_data_on_the_demo(prometheus: str) -> None:
    """A panel that stays empty on the demo would never be checked."""
    unasked = WITHOUT_DATA.keys() | PARTLY.keys()
    # Queries of planner metrics are checked in test_capacity_dashboard.py.
    here = [each for each in QUERIES if each.dashboard != "capacity"]
    asked = [each for each in here if (each.dashboard, each.panel) not in unasked]

    assert len(asked) > 150
    assert unanswered(prometheus, {each: each.text for each in asked}) == []


def test_every_rule_finds_its_series_on_the_demo(prometheus: str) -> None:
    """Each recording rule has a value, and each series that an alert queries exists."""
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    alerts = " ".join(rule["expr"] for rule in rules() if "alert" in rule)
    series = recorded | set(re.findall(r"\b(?:[a-z_]+:)?disagg_[\w:]+", alerts))

    assert series > WITHOUT_SERIES.keys()
    there = series - WITHOUT_SERIES.keys() - ON_THE_CLOCK
    assert unanswered(prometheus, {name: f"count({name})" for name in there}) == []
    odd = set(WITHOUT_SERIES)

    def all_gone() -> bool:
        odd.intersection_update({each for each in odd if answered(prometheus, f"count({each})")})
        return not odd

    # A scrape delayed by a loaded machine may make a series absent for a moment.
    with contextlib.suppress(AssertionError):
        wait_for(all_gone, "what is not to be there to go", 30.0)
    assert odd == set()


def unanswered(prometheus: str, asked: Mapping[Asked, str]) -> list[str]:
    """Whose expressions still have no value when all have had time to get one.

    What a token cost is known some two minutes after the start, by rules that read rules. Of what
    is missing one is asked at a time: all of them over and over would keep a core busy.
    """
    missing = list(asked)

    def all_found() -> bool:
        while missing and answered(prometheus, asked[missing[-1]]):
            missing.pop()
        return not missing

    with contextlib.suppress(AssertionError):
        wait_for(all_found, "a value for every expression", 240.0)
    return sorted(str(each) for each in missing if not answered(prometheus, asked[each]))


def answered(prometheus: str, expr: str) -> bool:
    """Whether it has a value."""
    try:
        values = [value for _, value in query(prometheus, expr)]
    except PrometheusError:
        return False  # it is still starting; a bad expression stays among the missing
    return any(not math.isnan(value) for value in values)
