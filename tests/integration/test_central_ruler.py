"""A Prometheus sends what the docs say to a VictoriaMetrics, and vmalert judges it there."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from disagg_cluster.prometheus.local_server import ScrapeTarget, prepare_prometheus, scrape_config
from disagg_cluster.prometheus.prometheus_api import PrometheusError
from support.alert_rules import RULE_FILES, all_rules, groups, hasten, metric_names
from support.children import free_port
from support.page_server import page_server
from support.prometheus_query import query
from support.running_node import wait_for
from support.victoria_metrics import victoria_metrics

pytestmark = pytest.mark.prometheus

DOCS = Path(__file__).parents[2] / "docs" / "prometheus.md"
# Five minutes are five seconds.
DIVISOR = 60


def to_a_ruler() -> dict[str, Any]:
    """The documented remote_write to a central ruler."""
    text = DOCS.read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(remote_write: # to a central ruler\n.*?)```", text, re.DOTALL)
    (only,) = yaml.safe_load(block)["remote_write"]
    return dict(only)


def node_page() -> bytes:
    """A node with an engine that steps and one that holds requests and makes no token."""
    since = time.monotonic()
    lines = [
        'disagg_build_info{version="0.1.0"} 1',
        "disagg_node_busy_window_seconds 1",
        'disagg_node_role_gpus{role="decode",gpu_name="H100"} 2',
        f'disagg_gpu_power_watts{{gpu="G0"}} {since}',
    ]
    for name, tokens in (("well", since), ("hangs", 5.0)):
        engine = f'engine="{name}",role="decode"'
        lines += [
            f'disagg_engine_info{{{engine},model_name="m",kind="vllm"}} 1',
            f'disagg_engine_up{{engine="{name}"}} 1',
            f'disagg_engine_requests{{{engine},state="running"}} 3',
            f'disagg_engine_phase_tokens_total{{{engine},phase="decode"}} {tokens}',
        ]
    return "\n".join([*lines, ""]).encode()


@contextlib.contextmanager
def sending_prometheus(folder: Path, above: str) -> Iterator[None]:
    """A Prometheus without rules that scrapes the node and sends on what the docs say."""
    with page_server(lambda _path: node_page()) as page:
        target = ScrapeTarget(page.removeprefix("http://"), "n1", "east")
        config = yaml.safe_load(scrape_config([target], interval_seconds=0.5, rule_files=[]))
        queue = {"queue_config": {"batch_send_deadline": "200ms"}}
        config["remote_write"] = [to_a_ruler() | {"url": f"{above}/api/v1/write"} | queue]
        launch = prepare_prometheus(
            Path("prometheus"), folder, yaml.safe_dump(config), listen=f"127.0.0.1:{free_port()}"
        )
        with (folder / "prometheus.log").open("wb") as log:
            process = subprocess.Popen(launch.argv, stdout=log, stderr=log)
            try:
                yield
            finally:
                process.kill()
                process.wait()


@contextlib.contextmanager
def ruler(folder: Path, store: str) -> Iterator[None]:
    """Run vmalert on all shipped rules, in a hurry, without what this old one does not know."""
    program = shutil.which("vmalert")
    if program is None:
        pytest.skip("vmalert is not installed: apt-get install victoria-metrics")
    files = folder / "rules"
    files.mkdir()
    for path in RULE_FILES:
        hurried = hasten(groups(path), DIVISOR)
        for group in hurried:
            for rule in group["rules"]:
                rule.pop("keep_firing_for", None)
        (files / path.name).write_text(yaml.safe_dump({"groups": hurried}), encoding="utf-8")
    argv = (
        program,
        f"-rule={files}/*.yaml",
        f"-datasource.url={store}",
        f"-remoteWrite.url={store}",
        "-remoteWrite.flushInterval=200ms",
        f"-notifier.url=http://127.0.0.1:{free_port()}",
        "-evaluationInterval=1s",
        f"-httpListenAddr=127.0.0.1:{free_port()}",
    )
    with (folder / "vmalert.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def firing(store: str) -> set[tuple[str, str]]:
    """Alerts that fire now, by name and engine."""
    with contextlib.suppress(PrometheusError):
        found = query(store, 'ALERTS{alertstate="firing"}')
        return {(labels["alertname"], labels.get("engine", "")) for labels, _ in found}
    return set()


def test_a_central_ruler_alerts_on_a_stalled_engine_and_on_nothing_else(folder: Path) -> None:
    """The sending Prometheus evaluates no rule and does not send `up` of other jobs."""
    with contextlib.ExitStack() as stack:
        store, _ = stack.enter_context(victoria_metrics(folder / "store"))
        stack.enter_context(sending_prometheus(folder, store))
        stack.enter_context(ruler(folder, store))

        # It is the only engine of its pool.
        told = {("DisaggEngineStalled", "hangs"), ("DisaggPoolReduced", "")}
        wait_for(lambda: told <= firing(store), "the stalled engine and its pool", 90)
        # Missing nodes would have been alerted on by now.
        wait_for(lambda: query(store, "count_over_time(cluster:disagg_gpus:sum[1m]) > 11"), "11 s")
        assert firing(store) == told
        assert query(store, 'up{job=~".*disagg-node.*"}')
        assert query(store, "disagg_gpu_power_watts") == []


def test_the_remote_write_filter_keeps_every_metric_the_rules_read() -> None:
    keep, drop = to_a_ruler()["write_relabel_configs"]
    recorded = {rule["record"] for rule in all_rules() if "record" in rule}
    read = set().union(*(metric_names(rule["expr"]) for rule in all_rules())) - recorded

    lost = {
        name
        for name in read
        if not re.fullmatch(keep["regex"], f"{name};disagg-node")
        or re.fullmatch(drop["regex"], name)
    }
    assert lost == set()
