"""Kubernetes manifests: patched as by kustomize, and their files and environments on this host."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]

# The keys by which Kubernetes merges the lists of a pod; all others are replaced.
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}


def documents(path: Path) -> list[Manifest]:
    """Return the manifests of a file."""
    return [
        each for each in yaml.load_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader) if each
    ]


def merged(base: Any, patch: Any, key: str = "") -> Any:
    """Apply a strategic merge patch."""
    if isinstance(base, dict) and isinstance(patch, dict):
        both = {name: merged(base.get(name), value, name) for name, value in patch.items()}
        return {**base, **both}
    if key in _MERGE_KEYS and isinstance(base, list):
        by = _MERGE_KEYS[key]
        found = {item[by]: item for item in base}
        for item in patch:
            found[item[by]] = merged(found.get(item[by]), item)
        return list(found.values())
    return copy.deepcopy(patch)


def added(base: Manifest, operations: Sequence[Mapping[str, Any]]) -> Manifest:
    """Apply a JSON patch of additions."""
    # Values shared by YAML's anchors become separate, as with kustomize.
    whole: Manifest = json.loads(json.dumps(base))
    for operation in operations:
        assert operation["op"] == "add"
        *way, last = operation["path"].strip("/").split("/")
        place: Any = whole
        for part in way:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if last == "-":
            place.append(operation["value"])
        else:
            place[last] = operation["value"]
    return whole


def in_order(manifest: Any, key: str = "") -> Any:
    """Return the manifest with all lists sorted whose order has no meaning."""
    if isinstance(manifest, dict):
        return {name: in_order(value, name) for name, value in manifest.items()}
    if isinstance(manifest, list):
        items = [in_order(item) for item in manifest]
        by = _MERGE_KEYS.get(key)
        return items if by is None else sorted(items, key=lambda item: str(item[by]))
    return manifest


@dataclass(frozen=True)
class Stage:
    """A pod on this machine: its folders below `root`, hostPaths below `host`."""

    pod: Manifest
    uid: str
    root: Path
    host: Path

    def container(self, name: str) -> Manifest:
        """Return a container or an init container."""
        spec = self.pod["spec"]
        both = (*spec["containers"], *spec.get("initContainers", ()))
        return next(each for each in both if each["name"] == name)

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment of a container, with paths of this machine."""
        found: dict[str, str] = {}
        for variable in self.container(name).get("env", ()):
            source = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            if source is None:
                found[variable["name"]] = self.here(name, variable["value"])
            else:
                found[variable["name"]] = {"metadata.uid": self.uid, "status.podIP": "10.0.0.7"}[
                    source
                ]
        return found

    def here(self, name: str, path: str) -> str:
        """Return where a container's path is on this machine."""
        for mount in self.container(name).get("volumeMounts", ()):
            if path == mount["mountPath"] or path.startswith(mount["mountPath"] + "/"):
                return str(self._folder(mount)) + path.removeprefix(mount["mountPath"])
        return path

    def _folder(self, mount: Mapping[str, Any]) -> Path:
        volumes = {volume["name"]: volume for volume in self.pod["spec"]["volumes"]}
        volume = volumes[mount["name"]]
        expression = mount.get("subPathExpr", "")
        assert expression in ("", "$(DISAGG_POD_UID)")
        if "hostPath" in volume:
            whole = self.host / volume["hostPath"]["path"].lstrip("/")
        else:
            whole = self.root / volume["name"]
        folder = whole / self.uid if expression else whole
        folder.mkdir(parents=True, exist_ok=True)
        return folder
