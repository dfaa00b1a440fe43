"""The chart rendered by the real Helm engine, validated by Kubernetes' own schemas."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from helm_python import Chart

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "disagg-node"
CASES = {
    path.name.removesuffix("-values.yaml"): path
    for path in sorted((CHART / "ci").glob("*-values.yaml"))
}
"""The value sets that are rendered, by name."""

VERSIONS = ("1.28", "1.33", "1.37")
"""The oldest Kubernetes that the chart supports, one between, and the newest known."""

OF_THE_OPERATOR = {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
"""Kinds for which Kubernetes itself has no schema."""

Manifest = dict[str, Any]


@functools.cache
def _chart() -> Chart:
    return Chart.load(CHART)


def documented_blocks(page: str) -> list[str]:
    """Return the YAML blocks of a page of docs/."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```yaml\n(.+?)^```$", text, re.MULTILINE | re.DOTALL)


def values_of(case: str) -> dict[str, Any]:
    """Return the values of a value set."""
    return dict(yaml.load(CASES[case].read_text(encoding="utf-8"), yaml.CSafeLoader))


LAUNCH = [case for case in CASES if values_of(case).get("profile") == "launch"]
ATTACH = [case for case in CASES if case not in LAUNCH]


@functools.cache
def defaults() -> dict[str, Any]:
    """Return the content of values.yaml; not to be changed."""
    return dict(yaml.load((CHART / "values.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader))


def render(values: Mapping[str, Any], release: str = "rel") -> list[Manifest]:
    """Return every manifest rendered from the values."""
    return json.loads(_rendered(json.dumps(values), release)[0])  # type: ignore[no-any-return]


def notes(values: Mapping[str, Any]) -> str:
    """Return the notes printed after an installation with the values."""
    return _rendered(json.dumps(values), "rel")[1]


@functools.cache
def _rendered(values: str, release: str) -> tuple[str, str]:
    """Return the manifests as JSON, and the notes; cached, as the dashboards take a while."""
    texts = _chart().render(json.loads(values), name=release, namespace="gpu")
    notes = texts.pop("disagg-node/templates/NOTES.txt")
    manifests = (
        manifest
        for text in texts.values()
        for manifest in yaml.load_all(text, Loader=yaml.CSafeLoader)
        if manifest
    )
    return json.dumps(list(manifests)), notes


def one(manifests: list[Manifest], kind: str) -> Manifest:
    """Return the only manifest of a kind."""
    [found] = [manifest for manifest in manifests if manifest["kind"] == kind]
    return found


def pods(manifests: list[Manifest]) -> dict[str, dict[str, Any]]:
    """Return the pod specs of the DaemonSets, by the name of the DaemonSet."""
    return {
        manifest["metadata"]["name"]: manifest["spec"]["template"]["spec"]
        for manifest in manifests
        if manifest["kind"] == "DaemonSet"
    }


def containers(pod: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all containers of a pod, init containers first."""
    yield from pod.get("initContainers", ())
    yield from pod["containers"]


def node_files(manifests: list[Manifest]) -> dict[str, str]:
    """Return the node file of each DaemonSet's pods, by the name of the DaemonSet."""
    return {
        name: manifest["data"]["node.yaml"] for name, manifest in node_file_maps(manifests).items()
    }


def node_file_maps(manifests: list[Manifest]) -> dict[str, Manifest]:
    """Return the ConfigMap with each DaemonSet's node file, by the name of the DaemonSet."""
    held = {
        manifest["metadata"]["name"]: manifest
        for manifest in manifests
        if manifest["kind"] == "ConfigMap" and "node.yaml" in manifest["data"]
    }
    return {
        name: held[file]
        for name, pod in pods(manifests).items()
        for volume in pod["volumes"]
        if (file := volume.get("configMap", {}).get("name")) in held
    }


def planner_file(manifests: list[Manifest]) -> str:
    """Return the planner file that the planner's pod gets."""
    [text] = [
        manifest["data"]["planner.yaml"]
        for manifest in manifests
        if manifest["kind"] == "ConfigMap" and "planner.yaml" in manifest["data"]
    ]
    return str(text)


def pod_of(case: str) -> dict[str, Any]:
    """Return the pod spec of the only DaemonSet of a value set."""
    [pod] = pods(render(values_of(case))).values()
    return pod


def env_of(container: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of a container; empty for a value from elsewhere."""
    return {variable["name"]: variable.get("value", "") for variable in container.get("env", ())}


def validate(manifest: Manifest, version: str) -> None:
    """Validate a manifest by the schema of one Kubernetes, which refuses unknown fields.

    Raises:
        kubernetes_validate.ValidationError: It is invalid.
    """
    # Cached: the same service account is in every value set, and validating it takes 10 ms.
    _validate_text(json.dumps(manifest, sort_keys=True), version)


@functools.cache
def _validate_text(text: str, version: str) -> None:
    kubernetes_validate.validate(json.loads(text), version, strict=True)
