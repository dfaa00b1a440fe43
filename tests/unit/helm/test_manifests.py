"""What every value set renders: right for Kubernetes, Helm and the daemon."""

from __future__ import annotations

import base64
import copy
import gzip
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from helm_python import Chart, lint, package

from disagg_cluster.nodefile import parse
from disagg_cluster.nodefile.draft import Host
from support.chart import (
    ATTACH,
    CASES,
    CHART,
    LAUNCH,
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


def test_there_are_value_sets_for_both_profiles() -> None:
    assert len(CASES) >= 12
    assert ATTACH
    assert LAUNCH


@every_case
def test_helm_lint_reports_nothing(case: str) -> None:
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


def test_a_field_unknown_to_kubernetes_is_refused() -> None:
    daemon_set = one(render({}), "DaemonSet")
    daemon_set["spec"]["template"]["spec"]["hostPid"] = True

    with pytest.raises(kubernetes_validate.ValidationError, match="hostPid"):
        validate(daemon_set, VERSIONS[0])


@every_case
def test_names_are_short_enough_and_nothing_is_rendered_twice(case: str) -> None:
    """Also for a release with the longest name that Helm allows."""
    manifests = render(values_of(case), release="r" * 53)

    names = [(m["kind"], m["metadata"]["name"]) for m in manifests]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 for _, name in names)


@pytest.mark.parametrize("release", ["2026.1", "a--" + "-" * 29 + "b", "r" * 31 + ".b"])
def test_names_of_any_release_are_those_of_a_service(release: str) -> None:
    """A release may have dots in its name, and be cut off before any letter."""
    [name] = [m["metadata"]["name"] for m in render({}, release) if m["kind"] == "Service"]

    assert re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)


@pytest.mark.parametrize("case", ["operator", "launch-eight-gpus"])
def test_labels_stay_text_whatever_they_look_like(case: str) -> None:
    """YAML reads some names of releases and groups as numbers or truth values."""
    values = copy.deepcopy(values_of(case))
    if case in LAUNCH:
        values["launch"]["groups"] = {"8": values["launch"]["groups"]["h100"]}

    for manifest in render(values, "1e3"):
        assert manifest["metadata"]["labels"]["app.kubernetes.io/instance"] == "1e3"
        validate_labels(manifest)


def validate_labels(manifest: Manifest) -> None:
    template = manifest.get("spec", {}).get("template", {"metadata": {}})
    for metadata in (manifest["metadata"], template["metadata"]):
        assert all(isinstance(value, str) for value in metadata.get("labels", {}).values())


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
def test_every_container_drops_unneeded_privileges(case: str) -> None:
    for pod in pods(render(values_of(case))).values():
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(pod):
            rights = container["securityContext"]
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["capabilities"]["drop"] == ["ALL"]
            assert "privileged" not in rights


@every_case
def test_rendered_node_files_are_valid(case: str, tmp_path: Path) -> None:
    """As the daemon reads them: filled in by the pod's init container, if it has one."""
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


def test_an_ipv6_address_is_filled_in_with_brackets_in_urls_only(tmp_path: Path) -> None:
    file = {
        "dcgm": {"url": "http://$(HOST_IP):9400"},
        "frontends": [{"url": "https://$(POD_IP)"}],
        "attach": {"endpoints": [{"url": "http://$(NODE_NAME):8000"}]},
        "node": "$(POD_IP)",
    }
    manifests = render({"attach": {"nodeFile": file}})
    [pod], [text] = pods(manifests).values(), node_files(manifests).values()

    where = WHERE | {"POD_IP": "fd00::7", "HOST_IP": "fd00::1"}
    filled = fill_in(pod["initContainers"][0]["command"], text, tmp_path, where)

    found = yaml.safe_load(filled)
    assert {key: found[key] for key in file} == {
        "dcgm": {"url": "http://[fd00::1]:9400"},
        "frontends": [{"url": "https://[fd00::7]"}],
        "attach": {"endpoints": [{"url": "http://gpu-7:8000"}]},
        "node": "fd00::7",
    }


WHERE = {"POD_IP": "10.0.0.7", "HOST_IP": "10.0.0.1", "NODE_NAME": "gpu-7"}


def fill_in(command: list[str], text: str, folder: Path, where: Mapping[str, str] = WHERE) -> str:
    """Run the script that fills in a node file, in a folder in place of /etc."""
    (folder / "node-file").mkdir(exist_ok=True)
    (folder / "disagg-node").mkdir(exist_ok=True)
    (folder / "node-file" / "node.yaml").write_text(text, encoding="utf-8")
    assert command[:2] == ["python", "-c"]
    script = command[2].replace("/etc/", f"{folder}/")
    subprocess.run([sys.executable, "-c", script], env={**os.environ, **where}, check=True)
    return (folder / "disagg-node" / "node.yaml").read_text(encoding="utf-8")


def test_a_packaged_chart_renders_the_same_and_excludes_the_value_sets(
    tmp_path: Path,
) -> None:
    archive = Path(package(CHART, destination=tmp_path))
    with tarfile.open(archive) as packed:
        names = packed.getnames()

    assert "disagg-node/files/dashboards/cluster.json" in names
    assert not [name for name in names if name.startswith("disagg-node/ci")]
    asked = {"name": "rel", "namespace": "gpu"}
    assert Chart.load(archive).render({}, **asked) == Chart.load(CHART).render({}, **asked)


def test_a_release_fits_into_the_release_secret_of_helm() -> None:
    """Helm stores chart and manifest compressed in one Secret of at most 1 MiB."""
    manifests: list[Manifest] = render(values_of("operator"))
    files = [path.read_bytes() for path in CHART.rglob("*") if path.is_file()]
    stored = json.dumps(manifests).encode() + base64.b64encode(b"".join(files))

    assert len(base64.b64encode(gzip.compress(stored))) < 700_000


@pytest.mark.parametrize("case", ["attach-default", "launch-eight-gpus", "own-web-config"])
def test_the_notes_show_how_to_check_the_installation(case: str) -> None:
    told = notes(values_of(case))

    scheme = "https" if case == "own-web-config" else "http"
    assert f"{scheme}://127.0.0.1:9847/metrics" in told
    assert "kubectl -n gpu rollout status" in told or "kubectl -n gpu get daemonset" in told
    assert "{{" not in told


def test_the_notes_ask_a_guarded_page_as_a_user_and_show_that_of_the_planner() -> None:
    users = {"web": {"tlsSecret": "tls", "basicAuthUsers": {"ops": f"$2b$10${'a' * 53}"}}}
    told = notes(values_of("planner") | users)

    assert "curl --insecure --user ops https://127.0.0.1:9847/metrics" in told
    assert "port-forward deployment/rel-disagg-node-planner 9848" in told
    assert "curl --insecure --user ops https://127.0.0.1:9848/" in told
    assert "planner" not in notes(values_of("attach-default"))


@pytest.mark.parametrize(
    ("case", "needs"),
    [
        ("attach-default", "hostPID, hostPath volumes:"),
        ("launch-pools", "hostNetwork, IPC_LOCK:"),
        ("attach-least-rights", None),
        ("launch-openshift", None),
    ],
)
def test_the_notes_name_what_the_namespace_must_allow(case: str, needs: str | None) -> None:
    told = notes(values_of(case))

    assert ("pod-security.kubernetes.io/enforce=privileged" in told) == (needs is not None)
    if needs is not None:
        assert f"NOTE: the namespace must allow {needs}" in told


def test_the_notes_name_the_volume_that_shows_gpus_to_unprivileged_pods() -> None:
    values = values_of("attach-least-rights")
    told = notes(values | {"attach": values["attach"] | {"gpus": {"from": "volume-mounts"}}})

    assert "NOTE: the namespace must allow hostPath volumes:" in told


@pytest.mark.parametrize("monitor", ["podMonitor", "serviceMonitor"])
def test_the_notes_name_objects_that_a_prometheus_operator_may_not_choose(monitor: str) -> None:
    made = {"podMonitor": {"enabled": False}, "prometheusRule": {"enabled": True}}
    bare = notes({**made, monitor: {"enabled": True}})
    labels = {"labels": {"release": "kube-prometheus-stack"}}
    chosen = notes({**made, monitor: {"enabled": True, **labels}, "prometheusRule": labels})

    assert f"NOTE: there are no labels in {monitor}.labels, prometheusRule.labels." in bare
    assert "no labels" not in chosen


def test_one_worker_is_singular_in_the_notes() -> None:
    assert ", 1 worker on nodes with " in notes(values_of("launch-pools"))


@pytest.mark.parametrize("case", ["attach-default", "launch-eight-gpus"])
def test_the_notes_warn_of_a_cluster_without_a_name(case: str) -> None:
    values = values_of(case)

    assert "NOTE: `cluster` is empty." in notes(values | {"cluster": ""})
    assert "is empty" not in notes(values | {"cluster": "east"})
