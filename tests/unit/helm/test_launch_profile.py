"""Profile launch: the node's GPUs, node files by group, and engines that outlive upgrades."""

from __future__ import annotations

import copy

import pytest
import yaml

from support.chart import (
    LAUNCH,
    containers,
    env_of,
    node_file_maps,
    node_files,
    pods,
    render,
    values_of,
)


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
        assert container["args"][:4] == ["container-init", "--", "disagg-node", "start"]
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


def test_an_empty_router_runs_with_the_images_interpreter() -> None:
    """It is a router with the defaults; the daemon's interpreter has no router."""
    values = values_of("launch-eight-gpus")
    [group] = values["launch"]["groups"].values()
    group["nodeFile"]["router"] = {}

    [text] = node_files(render(values)).values()

    assert yaml.safe_load(text)["router"] == {"python": "/opt/vllm-router/bin/python"}


def test_a_changed_node_file_is_a_new_config_map_and_the_old_one_is_kept() -> None:
    """Under OnDelete, pods outlive an upgrade and their daemons restart with the old file."""
    values = copy.deepcopy(values_of("launch-eight-gpus"))
    [before] = node_file_maps(render(values)).values()
    values["launch"]["groups"]["h100"]["nodeFile"]["workers"][0]["port"] = 8101
    [after] = node_file_maps(render(values)).values()

    assert before["metadata"]["name"] != after["metadata"]["name"]
    assert after["immutable"] is True
    assert after["metadata"]["annotations"] == {
        "helm.sh/resource-policy": "keep",
        "argocd.argoproj.io/sync-options": "Prune=false",
        "argocd.argoproj.io/compare-options": "IgnoreExtraneous",
    }


@pytest.mark.parametrize(
    ("own", "image"),
    [
        ({"tag": "2"}, "common:2"),
        ({"repository": "own"}, "own:1"),
        ({"pullPolicy": "Always"}, f"common@sha256:{'a' * 64}"),
        ({"digest": f"sha256:{'b' * 64}"}, f"common@sha256:{'b' * 64}"),
    ],
)
def test_an_image_of_a_group_is_not_the_common_digest(own: dict[str, str], image: str) -> None:
    values = copy.deepcopy(values_of("launch-eight-gpus"))
    values["image"] = {"repository": "common", "tag": "1", "digest": f"sha256:{'a' * 64}"}
    [group] = values["launch"]["groups"].values()
    group["image"] = own

    [pod] = pods(render(values)).values()
    assert {each["image"] for each in containers(pod)} == {image}


def test_pod_settings_of_a_group_override_the_common_ones() -> None:
    found = pods(render(values_of("launch-openshift")))
    prefill, decode = (found[f"rel-disagg-node-{role}"] for role in ("prefill", "decode"))

    assert prefill["containers"][0]["image"] == "disagg-node:0.1.0-vllm-cu129"
    assert decode["containers"][0]["image"] == "disagg-node:0.1.0-vllm"
    assert [taint["key"] for taint in prefill["tolerations"]] == ["pool"]
    assert [taint["key"] for taint in decode["tolerations"]] == ["nvidia.com/gpu"]
    assert "affinity" in decode
    assert "affinity" not in prefill
    asked = [pod["containers"][0]["resources"] for pod in (prefill, decode)]
    assert [each["requests"]["memory"] for each in asked] == ["128Gi", "8Gi"]
    assert [each["limits"] for each in asked] == [{"nvidia.com/gpu": 4}] * 2


def test_a_group_may_name_its_own_resource_for_gpus() -> None:
    """Such as the MIG instances of one node group beside the whole GPUs of another."""
    values = copy.deepcopy(values_of("launch-pools"))
    values["launch"]["groups"]["decode"]["gpuResource"] = "nvidia.com/mig-3g.40gb"

    found = pods(render(values))
    limits = {name: pod["containers"][0]["resources"]["limits"] for name, pod in found.items()}
    assert limits == {
        "rel-disagg-node-prefill": {"nvidia.com/gpu": 8, "rdma/ib": 8},
        "rel-disagg-node-decode": {"nvidia.com/mig-3g.40gb": 8, "rdma/ib": 8},
    }


@pytest.mark.parametrize("case", LAUNCH)
def test_launch_pods_request_cpu_and_memory(case: str) -> None:
    for pod in pods(render(values_of(case))).values():
        assert pod["containers"][0]["resources"]["requests"].keys() >= {"cpu", "memory"}
