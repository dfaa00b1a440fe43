"""Profile attach: no GPU, and no right more than was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from disagg_cluster.host.run_dir.layout import RunFolder
from support.chart import (
    ATTACH,
    CHART,
    env_of,
    node_files,
    one,
    pod_of,
    pods,
    render,
    values_of,
)


@pytest.mark.parametrize("case", ATTACH)
def test_attach_requests_no_gpu_and_writes_nothing_into_its_image(case: str) -> None:
    [container] = pod_of(case)["containers"]

    assert not any("gpu" in name for part in container["resources"].values() for name in part)
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert env_of(container)["NVIDIA_DRIVER_CAPABILITIES"] == "utility"


def test_attach_gets_the_gpus_by_the_configured_method() -> None:
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


def test_attach_with_least_rights_is_not_root_and_has_no_host_access() -> None:
    manifests = render(values_of("attach-least-rights"))
    pod = pod_of("attach-least-rights")

    assert pod["hostPID"] is False
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
    assert not [m for m in manifests if m["kind"].startswith("ClusterRole")]


def test_attach_reads_a_dcgm_exporter_where_one_is_named() -> None:
    [text] = node_files(render(values_of("attach-dcgm"))).values()

    assert yaml.safe_load(text)["dcgm"] == {"url": "http://$(HOST_IP):9400", "interval_seconds": 15}
    [plain] = node_files(render({})).values()
    assert "dcgm" not in yaml.safe_load(plain)


@pytest.mark.parametrize(
    ("case", "name"), [("attach-default", "NVIDIA_VISIBLE_DEVICES"), ("launch-pools", "HF_HOME")]
)
def test_a_variable_of_the_user_replaces_that_of_the_chart(case: str, name: str) -> None:
    """A server-side apply refuses a name that is there twice."""
    values = values_of(case) | {"extraEnv": [{"name": name, "value": "own"}]}

    for pod in pods(render(values)).values():
        [container] = pod["containers"]
        assert [each["value"] for each in container["env"] if each["name"] == name] == ["own"]
        names = [each["name"] for each in container["env"]]
        assert len(set(names)) == len(names)


def test_links_in_the_values_are_in_the_node_file() -> None:
    links = {"grafana": "https://grafana.example.com"}
    [text] = node_files(render({"links": links})).values()

    assert yaml.safe_load(text)["links"] == links


def test_attach_uses_only_the_permitted_engine_finders() -> None:
    def looks(case: str) -> dict[str, Any]:
        [text] = node_files(render(values_of(case))).values()
        return dict(yaml.safe_load(text)["attach"])

    assert looks("attach-default") == {}
    assert looks("attach-least-rights") == {"processes": False, "kubernetes": "never"}
    assert list(looks("attach-node-file")) == ["endpoints"]


@pytest.mark.parametrize("right", ["kubelet", "steps"])
def test_attach_is_root_without_capabilities_for_kubelet_or_steps(right: str) -> None:
    off = {name: {"enabled": name == right} for name in ("kubelet", "steps")}

    pod = pods(render({"attach": off}))["rel-disagg-node"]
    assert pod["securityContext"]["runAsUser"] == 0
    [container] = pod["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    [volume] = [volume for volume in pod["volumes"] if "hostPath" in volume]
    [mount] = [mount for mount in container["volumeMounts"] if mount["name"] == volume["name"]]
    assert mount.get("readOnly", False) is (right == "kubelet")


def test_attach_without_kubelet_and_steps_is_not_root() -> None:
    off = {name: {"enabled": False} for name in ("kubelet", "steps")}

    pod = pods(render({"attach": off}))["rel-disagg-node"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["runAsGroup"] > 0
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]


def test_the_steps_folder_is_the_same_for_the_daemon_and_example_pods() -> None:
    """The example manifests of pods name the same folder of the host."""
    [container] = pod_of("attach-default")["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert Path(mounts["steps"]) == RunFolder(Path(mounts["run"])).pods

    [volume] = [v for v in pod_of("attach-default")["volumes"] if v["name"] == "steps"]
    for name in ("vllm/steps.yaml", "llm-d/steps.yaml", "kserve/steps.yaml"):
        text = (CHART.parents[1] / "examples" / "kubernetes" / name).read_text(encoding="utf-8")
        assert f"path: {volume['hostPath']['path']}," in text


def test_the_cluster_role_allows_only_list_and_watch_of_pods() -> None:
    manifests = render({})

    assert one(manifests, "ClusterRole")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    ]
    [subject] = one(manifests, "ClusterRoleBinding")["subjects"]
    assert subject == {
        "kind": "ServiceAccount",
        "name": pod_of("attach-default")["serviceAccountName"],
        "namespace": "gpu",
    }


def test_all_requested_rights_are_granted() -> None:
    pod = pod_of("attach-all-rights")

    assert pod["hostNetwork"] is True
    assert pod["dnsPolicy"] == "ClusterFirstWithHostNet"
    [container] = pod["containers"]
    assert container["securityContext"]["capabilities"]["add"] == ["SYS_PTRACE"]
    assert container["ports"] == [{"name": "metrics", "containerPort": 19847, "protocol": "TCP"}]
    paths = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    assert paths == {
        "pod-resources": "/data/kubelet/pod-resources",
        "steps": "/var/lib/disagg-node/pods",
        "hpc-jobs": "/var/lib/dcgm-jobs",
    }
    [text] = node_files(render(values_of("attach-all-rights"))).values()
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert yaml.safe_load(text)["bridges"] == {"hpc_job_dir": mounts["hpc-jobs"]}
