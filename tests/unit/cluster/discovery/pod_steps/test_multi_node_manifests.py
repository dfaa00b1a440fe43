"""The LeaderWorkerSets in examples/kubernetes: valid, and their engines found in their roles.

Pods are made from them like the controller of LeaderWorkerSet does (pkg/utils/pod at 060ab4d).
"""

from __future__ import annotations

import copy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from disagg_cluster.discovery.finders.pods import pod_observations
from disagg_cluster.discovery.kubernetes.pods import Pod, read_pod
from disagg_cluster.discovery.observations.types import Observation
from disagg_cluster.host.files.package_data import asset_dir
from disagg_exporter.model import Role
from disagg_exporter.roles.judge import explain
from support.fake_api_server import uid_of
from support.manifests import Manifest, added, documents

EXAMPLE = Path(str(asset_dir("examples"))) / "kubernetes" / "lws"
SCHEMA_FILE = Path(__file__).parents[4] / "data" / "kubernetes" / "leaderworkerset-schema.yaml"
PATCH = yaml.safe_load((EXAMPLE / "steps.yaml").read_text(encoding="utf-8"))
PLAIN = {each["metadata"]["name"]: each for each in documents(EXAMPLE / "leaderworkersets.yaml")}
SETS = {name: added(each, PATCH) for name, each in PLAIN.items()}
ROLES = {"deepseek-prefill": Role.PREFILL, "deepseek-decode": Role.DECODE}
LWS = "leaderworkerset.sigs.k8s.io"


def closed(schema: Any) -> Any:
    """The same schema, in which properties that it does not name are errors."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {name: closed(each) for name, each in schema.items()}
    return {"additionalProperties": False, **strict} if "properties" in schema else strict


SCHEMA = closed(yaml.safe_load(SCHEMA_FILE.read_text(encoding="utf-8")))


def group_pod(name: str, index: int) -> Manifest:
    """A pod of the first group of a set: 0 leads, the others are workers."""
    spec = SETS[name]["spec"]["leaderWorkerTemplate"]
    pod = copy.deepcopy(spec["leaderTemplate" if index == 0 else "workerTemplate"])
    pod["metadata"].setdefault("annotations", {})[f"{LWS}/size"] = str(spec["size"])
    pod["metadata"]["name"] = f"{name}-0" if index == 0 else f"{name}-0-{index}"
    labels = {f"{LWS}/name": name, f"{LWS}/group-index": "0", f"{LWS}/worker-index": str(index)}
    pod["metadata"]["labels"] |= labels
    first = {
        "LWS_LEADER_ADDRESS": f"{name}-0.{name}.llm",
        "LWS_GROUP_SIZE": str(spec["size"]),
        "LWS_WORKER_INDEX": str(index),
    }
    for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
        given = [{"name": key, "value": value} for key, value in first.items()]
        container["env"] = given + container.get("env", [])
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def seen(name: str, index: int) -> tuple[Pod, Observation]:
    manifest = group_pod(name, index)
    told = {"uid": uid_of(f"{name}-{index}"), "namespace": "llm", **manifest["metadata"]}
    status = {"phase": "Running", "podIP": f"10.0.0.{7 + index}"}
    pod = read_pod({"metadata": told, "spec": manifest["spec"], "status": status})
    assert pod is not None
    [engine] = pod_observations(pod)
    return pod, engine


@pytest.mark.parametrize("name", sorted(SETS))
def test_the_set_matches_the_schema_of_its_kind(name: str) -> None:
    jsonschema.validate(SETS[name], SCHEMA)


@pytest.mark.parametrize("wrong", [{"leaderWorkerTemplat": {}}, {"replicas": "two"}])
def test_a_set_with_a_mistake_is_refused(wrong: Manifest) -> None:
    mistaken = {**SETS["deepseek-prefill"], "spec": SETS["deepseek-prefill"]["spec"] | wrong}

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(mistaken, SCHEMA)


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("name", sorted(SETS))
def test_the_pods_of_the_set_are_valid_for_kubernetes(name: str, index: int, version: str) -> None:
    kubernetes_validate.validate(group_pod(name, index), version, strict=True)


@pytest.mark.parametrize("name", sorted(SETS))
def test_all_gpus_of_the_group_are_ranks_of_its_engine(name: str) -> None:
    template = SETS[name]["spec"]["leaderWorkerTemplate"]
    for part in ("leaderTemplate", "workerTemplate"):
        [container] = template[part]["spec"]["containers"]
        gpus = int(container["resources"]["limits"]["nvidia.com/gpu"])

        assert f"--tensor-parallel-size={template['size'] * gpus}" in container["args"]
        assert f"--nnodes={template['size']}" in container["args"]


@pytest.mark.parametrize("name", sorted(SETS))
def test_the_leader_is_an_engine_of_its_role_and_requests_steps(name: str) -> None:
    pod, engine = seen(name, 0)

    assert explain(engine.markers).role is ROLES[name]
    assert [endpoint.port for endpoint in engine.endpoints] == [8000]
    assert engine.part is None or not engine.part.follows
    assert pod.annotations["disagg-node/steps"] == "true"


@pytest.mark.parametrize("name", sorted(SETS))
def test_the_worker_is_a_follower_in_the_same_role_without_endpoints_or_steps(name: str) -> None:
    pod, engine = seen(name, 1)

    assert explain(engine.markers).role is ROLES[name]
    assert engine.part is not None
    assert engine.part.follows
    assert (engine.part.rank, engine.part.head) == (1, f"{name}-0.{name}.llm:29501")
    assert engine.endpoints == ()
    assert "disagg-node/steps" not in pod.annotations


KUBECTL = shutil.which("kubectl")


@pytest.mark.skipif(KUBECTL is None, reason="our own patching is held against kubectl's")
def test_kustomize_makes_the_same_of_the_example() -> None:
    argv = [KUBECTL or "", "kustomize", str(EXAMPLE)]
    made = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout

    assert {each["metadata"]["name"]: each for each in yaml.safe_load_all(made)} == SETS
