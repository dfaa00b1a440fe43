"""Two clusters' Prometheus send what the docs say to one VictoriaMetrics, and it is read there."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from disagg_cluster.cli.prometheus_access import access_of
from disagg_cluster.planner.history.history_request import HistoryRequest
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.history.prometheus_history import NoPastLoadError, PrometheusHistory
from disagg_cluster.prometheus.local_server import ScrapeTarget, prepare_prometheus, scrape_config
from disagg_cluster.prometheus.prometheus_api import Prometheus, PrometheusError
from support.alert_rules import ALERTS, groups, hasten
from support.certificates import client_context, write_files
from support.children import free_port
from support.page_server import page_server
from support.running_node import wait_for
from support.victoria_metrics import victoria_metrics

pytestmark = pytest.mark.prometheus

DOCS = Path(__file__).parents[2] / "docs" / "prometheus.md"
# So long is a minute of the rules here.
STEP_SECONDS = 0.5
# The first come before the rules do.
STEPS, COMPARED = 8, 5
USER = {"username": "planner", "password": "a word"}
TOKENS_PER_SECOND = {"east": 600.0, "west": 50.0}


def node_page(tokens_per_second: float) -> bytes:
    """A node's page: counters that grow since the machine began, and what nobody sends on."""
    since = time.monotonic()
    owner = 'model_name="llama",engine_namespace="search"'
    gpus = f'role="mixed",gpu_name="L4",{owner}'
    counters = {
        f'disagg_node_phase_tokens_total{{role="mixed",phase="decode",{owner}}}': tokens_per_second,
        f'disagg_node_phase_tokens_total{{role="mixed",phase="prefill",{owner}}}': 900.0,
        f'disagg_node_phase_seconds_total{{phase="decode",{gpus}}}': 0.5,
        f'disagg_request_arrivals_total{{source="engine",{owner}}}': 3.0,
        f'disagg_request_ends_total{{source="engine",reason="stop",{owner}}}': 3.0,
        'disagg_engine_gpu_seconds_total{engine="e",role="mixed",phase="decode"}': 0.5,
    }
    lines = [f"{series} {rate * since}" for series, rate in counters.items()]
    lines += [
        f"disagg_node_capacity_used_gpus{{{gpus}}} 1",
        f"disagg_node_capacity_known_gpus{{{gpus}}} 2",
    ]
    return "\n".join([*lines, ""]).encode()


def remote_write(url: str) -> list[dict[str, Any]]:
    """The documented one, sent at once, by TLS and with a password."""
    blocks = re.findall(r"```yaml\n(remote_write:.*?)```", DOCS.read_text(), re.DOTALL)
    only, _ruler = (yaml.safe_load(block)["remote_write"] for block in blocks)
    return [
        {
            **each,
            "url": f"{url}/api/v1/write",
            "tls_config": {"ca_file": "ca.pem"},
            "basic_auth": USER,
            "queue_config": {"batch_send_deadline": "200ms"},
        }
        for each in only
    ]


@contextlib.contextmanager
def cluster_prometheus(name: str, folder: Path, above: str) -> Iterator[str]:
    """The Prometheus of one cluster, with its only node and the rules of past load in a hurry."""
    write_files(folder)
    hurried = hasten(groups(ALERTS / "rules" / "disagg-recording-history.yaml"), 60 / STEP_SECONDS)
    rules = folder / "rules.yaml"
    rules.write_text(
        yaml.safe_dump({"groups": [{**group, "interval": "500ms"} for group in hurried]})
    )
    with page_server(lambda _path: node_page(TOKENS_PER_SECOND[name])) as page:
        target = ScrapeTarget(page.removeprefix("http://"), "n1", name)
        text = scrape_config([target], interval_seconds=STEP_SECONDS / 4, rule_files=[str(rules)])
        config = {**yaml.safe_load(text), "remote_write": remote_write(above)}
        launch = prepare_prometheus(
            Path("prometheus"), folder, yaml.safe_dump(config), listen=f"127.0.0.1:{free_port()}"
        )
        with (folder / "prometheus.log").open("wb") as log:
            process = subprocess.Popen(launch.argv, stdout=log, stderr=log)
            try:
                yield launch.url
            finally:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mapping[str, str], str]]:
    """Where each cluster's Prometheus answers, and the VictoriaMetrics above both."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    folder = tmp_path_factory.mktemp("clusters")
    above = folder / "above"
    above.mkdir()
    write_files(above)
    flags = (
        *("-tls", f"-tlsCertFile={above / 'cert.pem'}", f"-tlsKeyFile={above / 'key.pem'}"),
        *(f"-httpAuth.username={USER['username']}", f"-httpAuth.password={USER['password']}"),
    )
    with contextlib.ExitStack() as stack:
        url, _ = stack.enter_context(victoria_metrics(above, *flags, tls=client_context()))
        below = {}
        for name in TOKENS_PER_SECOND:
            own = folder / name
            own.mkdir()
            below[name] = stack.enter_context(cluster_prometheus(name, own, url))
        yield below, url


def read(url: str, request: HistoryRequest, config: Path | None = None) -> list[LoadHistory]:
    access = access_of(url, (), config)
    with closing(Prometheus(access.url, access.headers, access.tls)) as prometheus:
        return PrometheusHistory(prometheus, recorded_every_seconds=STEP_SECONDS).read(request)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An HTTP config file with the password."""
    folder = tmp_path_factory.mktemp("config")
    write_files(folder)
    path = folder / "client.yml"
    told = {"basic_auth": USER, "tls_config": {"ca_file": "ca.pem"}}
    path.write_text(yaml.safe_dump(told))
    return path


def test_load_read_from_the_central_store_equals_that_of_each_cluster(
    servers: tuple[Mapping[str, str], str], config: Path
) -> None:
    below, above = servers

    def all_there() -> HistoryRequest | None:
        """The latest steps, once both clusters have recorded and sent them."""
        end = time.time() // STEP_SECONDS * STEP_SECONDS - 1
        request = HistoryRequest(end - STEPS * STEP_SECONDS, end, STEP_SECONDS)
        with contextlib.suppress(PrometheusError):
            found = read(above, request, config)
            known = [each.output_tokens.known for each in found]
            return request if known == [STEPS, STEPS] else None
        return None

    request = wait_for(all_there, "both clusters' load above", 180)

    together = {each.key: each for each in read(above, request, config)}
    assert set(together) == {LoadKey(name, "llama", "search") for name in below}
    for key, found in together.items():
        (own,) = read(below[key.cluster], request)
        for name in ("prompt_tokens", "output_tokens", "requests", "decode_gpus"):
            one, other = (getattr(each, name).values[-COMPARED:] for each in (found, own))
            # VictoriaMetrics keeps 12 digits.
            np.testing.assert_allclose(one, other, rtol=1e-9)
        level = np.median(found.output_tokens.values)
        assert level == pytest.approx(TOKENS_PER_SECOND[key.cluster], rel=0.2)
        assert found.decode_capacity_used is not None
        np.testing.assert_array_equal(found.decode_capacity_used.values[-COMPARED:], 0.5)
        assert found.rejections is None


def test_a_missing_password_or_ca_is_reported(
    servers: tuple[Mapping[str, str], str], tmp_path: Path
) -> None:
    _, above = servers
    request = HistoryRequest(time.time() - 60, time.time(), 1.0)
    write_files(tmp_path, {"trusting.yml": "tls_config: {ca_file: ca.pem}"})

    with pytest.raises(PrometheusError, match=r"does not let us in \(401.*--http-config"):
        read(above, request, tmp_path / "trusting.yml")
    with pytest.raises(PrometheusError, match="its certificate is not trusted"):
        read(above, request)


def test_a_cluster_without_data_in_the_central_store_is_named(
    servers: tuple[Mapping[str, str], str], config: Path
) -> None:
    end = int(time.time())
    request = HistoryRequest(end - 60, end, 1.0, cluster="north")

    with pytest.raises(NoPastLoadError, match="there is no cluster 'north', only 'east', 'west'"):
        read(servers[1], request, config)
