"""The Prometheus of the node: its config, and how it is found and started."""

from __future__ import annotations

from pathlib import Path

import yaml

from disagg_cluster.prometheus.local_server import (
    HOW_TO_GET,
    ScrapeTarget,
    find_prometheus,
    prepare_prometheus,
    scrape_config,
)


def test_cluster_and_node_are_labels_of_the_target() -> None:
    config = yaml.safe_load(
        scrape_config(
            [
                ScrapeTarget("127.0.0.1:9847", "gpu-7", "east"),
                ScrapeTarget("10.0.0.2:9847", "gpu-8"),
            ],
            interval_seconds=2,
            rule_files=["/r/*.yaml"],
        )
    )

    assert config["scrape_configs"] == [
        {
            "job_name": "disagg-node",
            "static_configs": [
                {"targets": ["127.0.0.1:9847"], "labels": {"node": "gpu-7", "cluster": "east"}},
                {"targets": ["10.0.0.2:9847"], "labels": {"node": "gpu-8"}},
            ],
        }
    ]
    assert config["rule_files"] == ["/r/*.yaml"]
    assert set(config["global"].values()) == {"2s"}


def test_an_interval_below_a_second_is_written_in_milliseconds() -> None:
    config = yaml.safe_load(scrape_config([], interval_seconds=0.25))

    assert config["global"]["scrape_interval"] == "250ms"


def test_a_name_that_yaml_would_misread_stays_text() -> None:
    config = yaml.safe_load(scrape_config([ScrapeTarget("h:1", "0123", "no")]))

    labels = config["scrape_configs"][0]["static_configs"][0]["labels"]
    assert labels == {"node": "0123", "cluster": "no"}


def test_the_configured_prometheus_is_preferred_to_the_one_on_the_path() -> None:
    installed = {"prometheus": "/usr/bin/prometheus", "/opt/p/prometheus": "/opt/p/prometheus"}.get

    assert find_prometheus({}, installed) == Path("/usr/bin/prometheus")
    assert find_prometheus({"DISAGG_PROMETHEUS": ""}, installed) == Path("/usr/bin/prometheus")
    named = {"DISAGG_PROMETHEUS": "/opt/p/prometheus"}
    assert find_prometheus(named, installed) == Path("/opt/p/prometheus")


def test_a_missing_prometheus_is_not_replaced_by_another() -> None:
    installed = {"prometheus": "/usr/bin/prometheus"}.get

    assert find_prometheus({"DISAGG_PROMETHEUS": "/gone"}, installed) is None
    assert find_prometheus({}, {}.get) is None
    assert "apt-get install prometheus" in HOW_TO_GET


def test_a_launched_prometheus_writes_only_into_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "prometheus"

    launch = prepare_prometheus(Path("/p"), folder, "global: {}\n", listen="127.0.0.1:9090")

    assert launch.argv == (
        "/p",
        f"--config.file={folder}/prometheus.yaml",
        f"--storage.tsdb.path={folder}/data",
        "--storage.tsdb.retention.time=1d",
        "--web.listen-address=127.0.0.1:9090",
        "--log.level=warn",
    )
    assert launch.url == "http://127.0.0.1:9090"
    assert launch.config_file.read_text() == "global: {}\n"
