"""A real Prometheus on our scrape config and rules, asked through our client."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from disagg_cluster.demo.nodefile import free_ports
from disagg_cluster.host.files.package_data import asset_dir
from disagg_cluster.prometheus.local_server import (
    ScrapeTarget,
    find_prometheus,
    prepare_prometheus,
    scrape_config,
)
from disagg_cluster.prometheus.prometheus_api import PrometheusError
from support.http_serving import serving
from support.prometheus_query import query

pytestmark = pytest.mark.prometheus

PAGE = b"""\
# TYPE disagg_node_busy_gpus gauge
disagg_node_busy_gpus{role="prefill",phase="prefill",model_name="m",gpu_name="H"} 3.0
disagg_node_busy_gpus{role="decode",phase="decode",model_name="m",gpu_name="H"} 1.0
# TYPE disagg_node_busy_window_seconds gauge
disagg_node_busy_window_seconds 1.0
"""


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def page_address() -> Iterator[str]:
    with serving(Page) as url:
        yield url.removeprefix("http://")


def test_the_fast_ratio_of_a_scraped_node_is_recorded_under_its_cluster(
    page_address: str, tmp_path: Path
) -> None:
    binary = find_prometheus(os.environ, shutil.which)
    if binary is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    config = scrape_config(
        [ScrapeTarget(page_address, "n1", "east")],
        interval_seconds=0.5,
        rule_files=[str(asset_dir("alerts").joinpath("rules", "*.yaml"))],
    )
    launch = prepare_prometheus(
        binary, tmp_path / "prometheus", config, listen=f"127.0.0.1:{free_ports(1)[0]}"
    )
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen(launch.argv, stdout=log, stderr=subprocess.STDOUT)
    try:
        recorded = first_answer(launch.url, "cluster:disagg_prefill_decode_ratio:busy")
    finally:
        process.terminate()
        process.wait(20)
        log.close()

    name = "cluster:disagg_prefill_decode_ratio:busy"
    assert recorded == [({"__name__": name, "cluster": "east"}, 3.0)], (
        tmp_path / "log"
    ).read_text()


def first_answer(url: str, expr: str, seconds: float = 30.0) -> list[tuple[dict[str, str], float]]:
    until = time.monotonic() + seconds
    tick = threading.Event()
    while time.monotonic() < until:
        try:
            if answer := query(url, expr, deadline_seconds=2.0):
                return answer
        except PrometheusError:
            pass  # it is still starting
        tick.wait(0.1)
    return []
