"""What goes round the daemon: scraping, dashboards, network."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from helm_python import Chart

from support.chart import (
    ATTACH,
    CHART,
    LAUNCH,
    OF_THE_OPERATOR,
    VERSIONS,
    Manifest,
    documented_blocks,
    one,
    render,
    validate,
    values_of,
)


def test_the_service_is_headless_and_selects_the_pods() -> None:
    manifests = render({})
    labels = one(manifests, "DaemonSet")["spec"]["template"]["metadata"]["labels"]

    service = one(manifests, "Service")["spec"]
    assert service["clusterIP"] == "None"
    assert service["selector"].items() <= labels.items()


def test_the_network_policy_admits_the_named_peers() -> None:
    values = values_of("network-policy")["networkPolicy"]

    spec = one(render({"networkPolicy": values}), "NetworkPolicy")["spec"]
    metrics, extra = spec["ingress"]
    assert metrics == {"ports": [{"port": "metrics", "protocol": "TCP"}], "from": values["from"]}
    assert extra == values["extraIngress"][0]


def test_the_network_policies_allow_the_given_egress() -> None:
    values = values_of("network-policy")

    def egress(manifests: list[Manifest]) -> dict[str, tuple[list[str], object]]:
        return {
            each["metadata"]["name"]: (each["spec"]["policyTypes"], each["spec"].get("egress"))
            for each in manifests
            if each["kind"] == "NetworkPolicy"
        }

    both = ["Ingress", "Egress"]
    assert egress(render(values)) == {
        "rel-disagg-node": (both, values["networkPolicy"]["egress"]),
        "rel-disagg-node-planner": (both, values["networkPolicy"]["plannerEgress"]),
    }
    open_out = values | {"networkPolicy": {"enabled": True}}
    assert egress(render(open_out)) == {
        "rel-disagg-node": (["Ingress"], None),
        "rel-disagg-node-planner": (["Ingress"], None),
    }


def test_the_documented_policy_admits_the_namespace_of_the_install_command() -> None:
    [text] = [block for block in documented_blocks("kubernetes.md") if "apiVersion" in block]
    policy = yaml.safe_load(text)

    for version in VERSIONS:
        validate(policy | {"metadata": policy["metadata"] | {"namespace": "engines"}}, version)
    [rule] = policy["spec"]["ingress"]
    [peer] = rule["from"]
    [name] = peer["namespaceSelector"]["matchLabels"].values()
    commands = (CHART.parents[1] / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    assert f"helm install disagg-node helm/disagg-node -n {name}" in commands


@pytest.mark.parametrize("case", ["planner", "launch-strict"])
def test_the_documented_scrape_jobs_keep_the_pages_of_the_charts_pods(case: str) -> None:
    """Prometheus' pod discovery shows each port of a container as a target."""
    [block] = [b for b in documented_blocks("prometheus.md") if "kubernetes_sd_configs" in b]
    jobs = yaml.safe_load(block)["scrape_configs"]
    meta = "__meta_kubernetes_pod_"
    of_target = [f"{meta}label_app_kubernetes_io_name", f"{meta}container_port_name"]

    workloads = [m for m in render(values_of(case)) if m["kind"] in ("DaemonSet", "Deployment")]
    assert workloads
    for workload in workloads:
        pod = workload["spec"]["template"]
        app = pod["metadata"]["labels"]["app.kubernetes.io/name"]
        kept = []
        for job in jobs:
            keep = job["relabel_configs"][0]
            assert (keep["source_labels"], keep["action"]) == (of_target, "keep")
            for port in pod["spec"]["containers"][0]["ports"]:
                if re.fullmatch(keep["regex"], f"{app};{port['name']}"):
                    kept.append((job["job_name"], port["name"]))
        is_planner = workload["kind"] == "Deployment"
        assert kept == [("disagg-planner" if is_planner else "disagg-node", "metrics")]


@pytest.mark.parametrize("case", ["names", "planner", "launch-eight-gpus"])
def test_common_labels_are_on_every_object_and_choose_none(case: str) -> None:
    label = {"cost-center": "4711"}
    manifests = render(values_of(case) | {"commonLabels": label})

    assert all(label.items() <= each["metadata"]["labels"].items() for each in manifests)
    specs = [each.get("spec", {}) for each in manifests]
    assert "cost-center" not in json.dumps([spec.get("selector") for spec in specs])


@pytest.mark.parametrize("case", [ATTACH[0], LAUNCH[0]])
def test_pages_are_served_over_both_ipv4_and_ipv6(case: str) -> None:
    """A pod may have an address of either kind alone: 0.0.0.0 is none in a cluster of IPv6."""
    planner = {"enabled": True, "config": {"prometheus": {"url": "http://prometheus:9090"}}}

    manifests = render(values_of(case) | {"planner": planner})

    texts = [
        text
        for manifest in manifests
        if manifest["kind"] == "ConfigMap"
        for name, text in manifest["data"].items()
        if name in ("node.yaml", "planner.yaml")
    ]
    assert {yaml.safe_load(text)["listen"]["metrics"] for text in texts} == {":9847", ":9848"}


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
def test_a_monitor_sets_the_node_and_cluster_labels_of_the_rules(kind: str) -> None:
    case = "operator" if kind == "PodMonitor" else "service-monitor"
    values = values_of(case) | {"cluster": "east"}
    manifests = render(values)

    monitor = one(manifests, kind)
    spec = monitor["spec"]
    [endpoint] = spec["podMetricsEndpoints" if kind == "PodMonitor" else "endpoints"]
    assert endpoint["relabelings"][:2] == [
        {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"},
        {"targetLabel": "cluster", "replacement": "east"},
    ]
    assert endpoint["port"] == "metrics"
    target = one(manifests, "DaemonSet")["spec"]["template"]
    found = target if kind == "PodMonitor" else one(manifests, "Service")
    assert spec["selector"]["matchLabels"].items() <= found["metadata"]["labels"].items()
    dollars = one(render(values | {"cluster": "us-$1"}), kind)["spec"]
    [endpoint] = dollars["podMetricsEndpoints" if kind == "PodMonitor" else "endpoints"]
    assert endpoint["relabelings"][1]["replacement"] == "us-$$1"
    # The job, by which the alerts know their targets, is what this label says.
    assert spec["jobLabel"] in found["metadata"]["labels"]
    chosen = values["podMonitor" if kind == "PodMonitor" else "serviceMonitor"]["labels"]
    assert chosen.items() <= monitor["metadata"]["labels"].items()


def test_tls_and_basic_auth_settings_are_passed_to_the_pod_monitor() -> None:
    values = values_of("tls-and-users")

    [endpoint] = one(render(values), "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == values["scrape"]["tlsConfig"]
    assert endpoint["basicAuth"] == values["scrape"]["basicAuth"]


def test_auto_renders_only_kinds_that_the_cluster_supports(tmp_path: Path) -> None:
    """This Helm engine knows only the built-in APIs, so one of them stands for the operator's."""
    assert not [m for m in render({}) if m["kind"] in OF_THE_OPERATOR]

    copy = tmp_path / "disagg-node"
    shutil.copytree(CHART, copy)
    asked = '{{ include "disagg-node.wanted" (list . "auto" "%s") }}'
    (copy / "templates" / "asked.yaml").write_text(
        f"known: {asked % 'apps/v1'}\nunknown: {asked % 'apps/v9'}\n", encoding="utf-8"
    )
    texts = Chart.load(copy).render({}, name="rel", namespace="gpu")
    answer = yaml.safe_load(texts["disagg-node/templates/asked.yaml"])
    assert answer == {"known": True, "unknown": None}


def test_the_repositorys_dashboards_have_the_sidecar_label() -> None:
    manifests = render({})

    found: dict[str, str] = {}
    for manifest in manifests:
        if manifest["metadata"]["labels"].get("grafana_dashboard") == "1":
            found |= manifest["data"]
            assert manifest["metadata"]["annotations"] == {"grafana_folder": "disagg-node"}
    shipped = (CHART.parents[1] / "grafana" / "dashboards").glob("*.json")
    assert {name: json.loads(text) for name, text in found.items()} == {
        f"disagg-{path.name}": json.loads(path.read_text(encoding="utf-8")) for path in shipped
    }


def test_the_dashboards_link_to_the_configured_runbooks() -> None:
    wiki = {"runbooks": "https://wiki.example/disagg/", "runbookEnding": ".html"}
    manifests = render({"prometheusRule": wiki})

    boards = [
        json.loads(text)
        for manifest in manifests
        if manifest["metadata"]["labels"].get("grafana_dashboard") == "1"
        for text in manifest["data"].values()
    ]
    bases = [
        variable["query"]
        for board in boards
        for variable in board["templating"]["list"]
        if variable["name"] == "runbooks"
    ]
    assert boards
    assert bases == ["https://wiki.example/disagg"] * len(boards)
    links = re.findall(r"\$\{runbooks\}/[^\"]+", json.dumps(boards))
    assert "${runbooks}/${__data.fields.Alert}.html" in links
    assert [link for link in links if not link.rstrip("\\").endswith(".html")] == []
