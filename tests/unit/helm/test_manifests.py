"""What the chart renders: right for Kubernetes, and no right more than was asked for."""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm_python import Chart, lint

from disagg_cluster.nodefile import parse
from disagg_cluster.nodefile.oneworker import Host
from support.chart import (
    CASES,
    CHART,
    OF_THE_OPERATOR,
    VERSIONS,
    Manifest,
    containers,
    node_files,
    notes,
    one,
    pods,
    render,
    validate,
    values_of,
)

every_case = pytest.mark.parametrize("case", CASES)
LAUNCH = [case for case in CASES if values_of(case).get("profile") == "launch"]
ATTACH = [case for case in CASES if case not in LAUNCH]


def pod_of(case: str) -> dict[str, Any]:
    [pod] = pods(render(values_of(case))).values()
    return pod


def env_of(container: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}


def test_there_are_value_sets_for_both_profiles() -> None:
    assert len(CASES) >= 12
    assert ATTACH
    assert LAUNCH


@every_case
def test_helm_finds_nothing_to_complain_about(case: str) -> None:
    found = lint(CHART, values_of(case), strict=True)

    # An icon is for catalogues of charts.
    told = [line for line in found["messages"] if "icon is recommended" not in str(line)]
    assert told == []


@pytest.mark.parametrize("version", VERSIONS)
@every_case
def test_manifests_fit_the_schemas_of_kubernetes(case: str, version: str) -> None:
    manifests = [m for m in render(values_of(case)) if m["kind"] not in OF_THE_OPERATOR]

    assert manifests
    for manifest in manifests:
        validate(manifest, version)


def test_a_field_that_kubernetes_does_not_know_would_be_noticed() -> None:
    daemon_set = one(render({}), "DaemonSet")
    daemon_set["spec"]["template"]["spec"]["hostPid"] = True

    with pytest.raises(kubernetes_validate.ValidationError, match="hostPid"):
        validate(daemon_set, VERSIONS[0])


@every_case
def test_names_are_short_enough_and_nothing_is_rendered_twice(case: str) -> None:
    """Also for a release whose name is as long as Helm lets it be."""
    manifests = render(values_of(case), release="r" * 53)

    names = [(m["kind"], m["metadata"]["name"]) for m in manifests]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 for _, name in names)


@every_case
def test_every_volume_has_one_source_and_every_mount_a_volume(case: str) -> None:
    for pod in pods(render(values_of(case))).values():
        volumes = [volume["name"] for volume in pod["volumes"]]
        assert len(set(volumes)) == len(volumes)
        assert all(len(volume) == 2 for volume in pod["volumes"])

        mounts = [mount for c in containers(pod) for mount in c["volumeMounts"]]
        assert {mount["name"] for mount in mounts} == set(volumes)
        for container in containers(pod):
            paths = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert len(set(paths)) == len(paths)


@every_case
def test_every_container_gives_up_what_it_does_not_need(case: str) -> None:
    for pod in pods(render(values_of(case))).values():
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(pod):
            rights = container["securityContext"]
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["capabilities"]["drop"] == ["ALL"]
            assert "privileged" not in rights


@pytest.mark.parametrize("case", ATTACH)
def test_attach_requests_no_gpu_and_writes_nothing_into_its_image(case: str) -> None:
    [container] = pod_of(case)["containers"]

    assert not any("gpu" in name for part in container["resources"].values() for name in part)
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert env_of(container)["NVIDIA_DRIVER_CAPABILITIES"] == "utility"


def test_attach_sees_all_gpus_in_the_way_that_the_cluster_allows() -> None:
    def seen(way: str) -> tuple[str, list[str]]:
        pod = one(render({"attach": {"gpus": {"from": way}}}), "DaemonSet")["spec"]["template"]
        [container] = pod["spec"]["containers"]
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        found = [path for path in mounts if "nvidia" in path]
        return env_of(container)["NVIDIA_VISIBLE_DEVICES"], found

    folder = "/var/run/nvidia-container-devices"
    assert seen("environment") == ("all", [])
    assert seen("volume-mounts") == (folder, [f"{folder}/all"])
    assert seen("none") == ("void", [])


def test_attach_without_rights_is_not_root_and_sees_nothing_of_its_node() -> None:
    manifests = render(values_of("attach-least-rights"))
    pod = pod_of("attach-least-rights")

    assert pod["hostPID"] is False
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
    assert not [m for m in manifests if m["kind"].startswith("ClusterRole")]


def test_attach_is_root_for_the_kubelet_socket_alone() -> None:
    pod = pod_of("attach-default")

    assert pod["securityContext"]["runAsUser"] == 0
    [container] = pod["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    [socket] = [mount for mount in container["volumeMounts"] if mount["name"] == "pod-resources"]
    assert socket["readOnly"] is True


def test_the_api_is_asked_for_pods_only_and_only_to_look() -> None:
    manifests = render({})

    assert one(manifests, "ClusterRole")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]
    [subject] = one(manifests, "ClusterRoleBinding")["subjects"]
    assert subject == {
        "kind": "ServiceAccount",
        "name": pod_of("attach-default")["serviceAccountName"],
        "namespace": "gpu",
    }


def test_every_right_that_is_asked_for_is_given() -> None:
    pod = pod_of("attach-all-rights")

    assert pod["hostNetwork"] is True
    assert pod["dnsPolicy"] == "ClusterFirstWithHostNet"
    [container] = pod["containers"]
    assert container["securityContext"]["capabilities"]["add"] == ["SYS_PTRACE"]
    assert container["ports"] == [{"name": "metrics", "containerPort": 19847, "protocol": "TCP"}]
    paths = [v["hostPath"]["path"] for v in pod["volumes"] if v["name"] == "pod-resources"]
    assert paths == ["/data/kubelet/pod-resources"]


@pytest.mark.parametrize("case", LAUNCH)
def test_launch_requests_its_gpus_and_never_ends_engines_by_itself(case: str) -> None:
    values, manifests = values_of(case), render(values_of(case))
    resource = values["launch"].get("gpuResource", "nvidia.com/gpu")

    sets = [manifest for manifest in manifests if manifest["kind"] == "DaemonSet"]
    assert len(sets) == len(values["launch"]["groups"])
    for daemon_set in sets:
        assert daemon_set["spec"]["updateStrategy"] == {"type": "OnDelete"}
        pod = daemon_set["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        [container] = pod["containers"]
        group = daemon_set["spec"]["selector"]["matchLabels"]["disagg-node/group"]
        assert (
            container["resources"]["limits"][resource] == values["launch"]["groups"][group]["gpus"]
        )
        assert container["args"][:4] == ["init", "--", "disagg-node", "start"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert "NVIDIA_VISIBLE_DEVICES" not in env_of(container)
        liveness = values["launch"].get("livenessProbe", {}).get("enabled", False)
        assert ("livenessProbe" in container) is liveness


def test_each_group_of_nodes_has_its_own_nodes_and_its_own_file() -> None:
    manifests = render(values_of("launch-pools"))

    selected = {name: pod["nodeSelector"] for name, pod in pods(manifests).items()}
    assert selected == {
        "rel-disagg-node-prefill": {"pool": "prefill"},
        "rel-disagg-node-decode": {"pool": "decode"},
    }
    for name, text in node_files(manifests).items():
        role = name.removeprefix("rel-disagg-node-")
        assert [worker["role"] for worker in yaml.safe_load(text)["workers"]] == [role]


def test_engines_and_router_run_with_the_images_interpreters_unless_they_name_their_own() -> None:
    [pair] = node_files(render(values_of("launch-eight-gpus"))).values()
    file = yaml.safe_load(pair)
    assert {worker["python"] for worker in file["workers"]} == {"/usr/bin/python3"}
    assert file["router"]["python"] == "/opt/vllm-router/bin/python"

    pools = node_files(render(values_of("launch-pools")))
    [decode] = yaml.safe_load(pools["rel-disagg-node-decode"])["workers"]
    assert decode["python"] == "/opt/engine/bin/python"


@every_case
def test_node_files_are_node_files(case: str, tmp_path: Path) -> None:
    """As they lie before the daemon: filled in by the pod's own script where there is one."""
    manifests = render(values_of(case))
    files = node_files(manifests)
    assert set(files) == set(pods(manifests))

    for name, text in files.items():
        before = pods(manifests)[name].get("initContainers", [])
        filled = fill_in(before[0]["command"], text, tmp_path) if before else text
        assert "$(" not in filled
        config = parse(filled, name, Host(exists=lambda _: True, executable=lambda _: True))
        assert config.run_dir == "/run/disagg-node"
        assert config.listen.metrics_address.port == values_of(case).get("port", 9847)
        assert config.cluster == values_of(case).get("cluster", "")


def fill_in(command: list[str], text: str, folder: Path) -> str:
    """Run the script that fills in a node file, in a folder in place of /etc."""
    (folder / "node-file").mkdir(exist_ok=True)
    (folder / "disagg-node").mkdir(exist_ok=True)
    (folder / "node-file" / "node.yaml").write_text(text, encoding="utf-8")
    assert command[:2] == ["python", "-c"]
    script = command[2].replace("/etc/", f"{folder}/")
    where = {"POD_IP": "10.0.0.7", "NODE_NAME": "gpu-7"}
    subprocess.run([sys.executable, "-c", script], env=os.environ | where, check=True)
    return (folder / "disagg-node" / "node.yaml").read_text(encoding="utf-8")


@every_case
def test_probes_ask_the_daemon_as_the_page_is_served(case: str) -> None:
    web = values_of(case).get("web", {})
    scheme = "HTTPS" if web.get("tlsSecret") or web.get("scheme") == "https" else "HTTP"

    for pod in pods(render(values_of(case))).values():
        for container in pod["containers"]:
            probes = [container[key] for key in container if key.endswith("Probe")]
            assert {p["httpGet"]["path"] for p in probes} <= {"/healthz", "/readyz"}
            assert probes
            assert all(p["httpGet"]["scheme"] == scheme for p in probes)
            assert all(p["httpGet"]["port"] == "metrics" for p in probes)


def test_tls_and_users_are_in_a_secret_and_nowhere_else() -> None:
    manifests = render(values_of("tls-and-users"))

    secret = one(manifests, "Secret")
    users = values_of("tls-and-users")["web"]["basicAuthUsers"]
    assert yaml.safe_load(secret["stringData"]["web-config.yaml"]) == {
        "tls_server_config": {
            "cert_file": "/etc/disagg-web/tls.crt",
            "key_file": "/etc/disagg-web/tls.key",
        },
        "basic_auth_users": users,
    }
    others = json.dumps([m for m in manifests if m["kind"] != "Secret"])
    assert users["prometheus"] not in others
    [container] = pods(manifests)["rel-disagg-node"]["containers"]
    assert "--web-config=/etc/disagg-web/web-config.yaml" in container["args"]


def test_a_web_config_of_ones_own_is_mounted_as_it_is() -> None:
    manifests = render(values_of("own-web-config"))

    assert not [manifest for manifest in manifests if manifest["kind"] == "Secret"]
    [volume] = [v for v in pods(manifests)["rel-disagg-node"]["volumes"] if v["name"] == "web"]
    assert volume["secret"] == {"secretName": "my-web-config"}


def test_without_a_web_config_none_is_passed() -> None:
    [container] = pod_of("attach-default")["containers"]

    assert not [argument for argument in container["args"] if "web-config" in argument]


def test_the_service_has_no_address_and_finds_the_pods() -> None:
    manifests = render({})
    labels = one(manifests, "DaemonSet")["spec"]["template"]["metadata"]["labels"]

    service = one(manifests, "Service")["spec"]
    assert service["clusterIP"] == "None"
    assert service["selector"].items() <= labels.items()


def test_the_network_policy_lets_in_who_is_named() -> None:
    values = values_of("network-policy")["networkPolicy"]

    spec = one(render({"networkPolicy": values}), "NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    metrics, extra = spec["ingress"]
    assert metrics == {"ports": [{"port": "metrics", "protocol": "TCP"}], "from": values["from"]}
    assert extra == values["extraIngress"][0]


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
def test_a_monitor_names_node_and_cluster_by_which_the_rules_sum(kind: str) -> None:
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
    # The job, by which the alerts know their targets, is what this label says.
    assert spec["jobLabel"] in found["metadata"]["labels"]
    chosen = values["podMonitor" if kind == "PodMonitor" else "serviceMonitor"]["labels"]
    assert chosen.items() <= monitor["metadata"]["labels"].items()


def test_what_the_operator_needs_for_tls_and_users_is_passed_on() -> None:
    values = values_of("tls-and-users")

    [endpoint] = one(render(values), "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == values["scrape"]["tlsConfig"]
    assert endpoint["basicAuth"] == values["scrape"]["basicAuth"]


def test_auto_renders_what_the_cluster_knows_and_nothing_else(tmp_path: Path) -> None:
    """The engine here knows the built-in APIs only, so one of them stands for the operator's."""
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


def test_dashboards_are_the_repositorys_under_the_sidecars_label() -> None:
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


def test_a_release_fits_into_the_secret_that_helm_keeps_it_in() -> None:
    """Helm stores chart and manifest compressed in one Secret of at most 1 MiB."""
    manifests: list[Manifest] = render(values_of("operator"))
    files = [path.read_bytes() for path in CHART.rglob("*") if path.is_file()]
    stored = json.dumps(manifests).encode() + base64.b64encode(b"".join(files))

    assert len(base64.b64encode(gzip.compress(stored))) < 700_000


@pytest.mark.parametrize("case", ["attach-default", "launch-eight-gpus", "own-web-config"])
def test_the_notes_say_how_to_see_it_work(case: str) -> None:
    told = notes(values_of(case))

    scheme = "https" if case == "own-web-config" else "http"
    assert f"{scheme}://127.0.0.1:9847/metrics" in told
    assert "kubectl -n gpu rollout status" in told or "kubectl -n gpu get daemonset" in told
    assert "{{" not in told
