"""The planner in the chart: one, reading Prometheus, and taken for no node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helm_python import HelmError

from disagg_cluster.planner.settings.planner_file import read_planner_file
from support.chart import Manifest, one, render, values_of

CASE = "planner"


def named(kind: str, **values: Any) -> Manifest:
    """What the value set renders of a kind under the planner's name."""
    found = [
        each
        for each in render(values_of(CASE) | values)
        if each["kind"] == kind and each["metadata"]["name"].endswith("-planner")
    ]
    assert len(found) == 1
    return found[0]


def kinds_of_planner(values: Any) -> set[str]:
    """The kinds that are rendered with the planner's labels."""
    return {
        each["kind"]
        for each in render(values)
        if each["metadata"]["labels"].get("app.kubernetes.io/name") == "disagg-planner"
    }


def test_nothing_of_the_planner_is_deployed_by_default() -> None:
    by_monitor = {"podMonitor": {"PodMonitor"}, "serviceMonitor": {"Service", "ServiceMonitor"}}
    for monitor, other in zip(by_monitor, reversed(by_monitor), strict=True):
        network = {monitor: {"enabled": True}, other: {"enabled": False}}
        network["networkPolicy"] = {"enabled": True}

        assert kinds_of_planner(network) == set()
        assert kinds_of_planner(values_of(CASE) | network) == {
            "ConfigMap",
            "Deployment",
            "NetworkPolicy",
            *by_monitor[monitor],
        }


def test_the_planner_has_one_replica_and_is_recreated() -> None:
    spec = named("Deployment")["spec"]

    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize(
    ("own", "image"),
    [
        ({}, f"nodes@sha256:{'a' * 64}"),
        ({"tag": "0.1.0"}, "nodes:0.1.0"),
        ({"repository": "small", "tag": "0.1.0"}, "small:0.1.0"),
        ({"digest": f"sha256:{'b' * 64}"}, f"nodes@sha256:{'b' * 64}"),
    ],
)
def test_the_planner_may_have_a_smaller_image_than_the_engines(
    own: dict[str, str], image: str
) -> None:
    common = {"repository": "nodes", "digest": f"sha256:{'a' * 64}", "pullPolicy": "Always"}
    planner = values_of(CASE)["planner"] | {"image": own}
    deployment = named("Deployment", image=common, planner=planner)

    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["imagePullPolicy"]) == (image, "Always")


def test_the_planners_prometheus_is_an_address_with_its_scheme() -> None:
    planner = {"enabled": True, "config": {"prometheus": {"url": "prometheus:9090"}}}

    with pytest.raises(HelmError, match="/planner/config/prometheus/url"):
        render({"planner": planner})


def test_the_planner_file_is_valid_and_has_the_charts_page_and_credentials(tmp_path: Path) -> None:
    path = tmp_path / "planner.yaml"
    path.write_text(named("ConfigMap")["data"]["planner.yaml"])

    config = read_planner_file(path)

    assert config.cluster == "east"
    assert config.prometheus.url == "http://prometheus.monitoring:9090"
    assert config.prometheus.http_config == "/etc/disagg-prometheus/http-config.yaml"
    assert config.listen.web_config == "/etc/disagg-web/web-config.yaml"
    assert config.listen.metrics_address.port == 9848


def test_all_files_of_the_planner_are_mounted() -> None:
    pod = named("Deployment")["spec"]["template"]["spec"]
    [container] = pod["containers"]

    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    of_chart = {"/etc/disagg-planner", "/etc/disagg-prometheus", "/etc/disagg-web"}
    assert mounted == {*of_chart, "/etc/disagg-profiles"}
    assert {each["name"] for each in container["volumeMounts"]} == {
        each["name"] for each in pod["volumes"]
    }
    assert container["args"] == ["planner", "--config=/etc/disagg-planner/planner.yaml"]


def test_the_planner_is_ready_before_the_cluster_had_a_load() -> None:
    """Its /readyz is 503 until then: an installation that waits for it would never end."""
    [container] = named("Deployment", web={}, scrape={})["spec"]["template"]["spec"]["containers"]

    assert container["readinessProbe"]["httpGet"]["path"] == "/healthz"


def test_annotations_of_the_planner_replace_the_common_ones() -> None:
    annotations = named("Deployment")["spec"]["template"]["metadata"]["annotations"]

    assert annotations["prometheus.io/scrape"] == "true"
    assert annotations["prometheus.io/port"] == "9848"


def test_the_planner_has_no_unneeded_rights() -> None:
    pod = named("Deployment")["spec"]["template"]["spec"]
    [container] = pod["containers"]

    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
def test_the_planner_is_scraped_with_a_cluster_label_and_no_node_label(kind: str) -> None:
    values: dict[str, Any] = {}
    if kind == "ServiceMonitor":
        values = {"podMonitor": {"enabled": False}, "serviceMonitor": {"enabled": True}}
    spec = named(kind, **values)["spec"]

    [endpoint] = spec.get("podMetricsEndpoints") or spec["endpoints"]
    assert endpoint["relabelings"] == [{"targetLabel": "cluster", "replacement": "east"}]
    assert "basicAuth" in endpoint


def test_no_selector_of_the_nodes_matches_the_planner() -> None:
    """Nor does its job name match: alerts about nodes select jobs that contain disagg-node."""
    labels = named("Deployment")["spec"]["template"]["metadata"]["labels"]
    of_nodes = [
        each["spec"].get("selector", each["spec"].get("podSelector"))
        for each in render(values_of(CASE))
        if each["kind"] in ("PodMonitor", "NetworkPolicy", "Service", "DaemonSet")
        and not each["metadata"]["name"].endswith("-planner")
    ]

    assert of_nodes
    for selector in of_nodes:
        wanted = selector.get("matchLabels", selector)
        assert not wanted.items() <= labels.items()
    assert labels["app.kubernetes.io/name"] == "disagg-planner"


def test_the_planner_requires_a_prometheus_url() -> None:
    with pytest.raises(HelmError, match=r"planner\.config\.prometheus\.url"):
        render({"planner": {"enabled": True}})


def test_the_planner_leaves_the_daemon_set_unchanged() -> None:
    without = [each for each in render({}) if each["kind"] == "DaemonSet"]
    config = {"prometheus": {"url": "http://prometheus:9090"}}

    with_it = render({"planner": {"enabled": True, "config": config}})

    assert [one(with_it, "DaemonSet")] == without
