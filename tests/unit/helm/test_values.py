"""The chart's values: documented, in the schema, and wrong ones refused in words that help."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from helm.generator.chart import generated
from helm.generator.values_table import Value, documented, table
from helm_python import HelmError

from support.chart import CHART, defaults, documented_blocks, render

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
WORKER = {"name": "a", "role": "prefill", "gpus": 1, "model": "m", "port": 8100}
DOCUMENTED = [block for block in documented_blocks("kubernetes.md") if "apiVersion" not in block]
GROUP = {"gpus": 8, "nodeFile": {"workers": [WORKER]}}


def launch(**values: Any) -> dict[str, Any]:
    return {"profile": "launch", "launch": {"groups": {"a": GROUP}} | values}


def planner(**config: Any) -> dict[str, Any]:
    config = {"prometheus": {"url": "http://prometheus:9090"}} | config
    return {"planner": {"enabled": True, "config": config}}


def one_worker(worker: Mapping[str, Any], **node_file: Any) -> dict[str, Any]:
    """Return a group with a worker that has these values, and these in its node file."""
    return {"gpus": 8, "nodeFile": {"workers": [WORKER | worker], **node_file}}


def test_the_generated_chart_files_are_committed() -> None:
    written = generated()

    assert {name: (CHART / name).read_text(encoding="utf-8") for name in written} == written
    for folder in ("files/rules", "files/dashboards"):
        committed = {f"{folder}/{path.name}" for path in (CHART / folder).iterdir()}
        assert committed == {name for name in written if name.startswith(folder)}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a profile that there is not": ({"profile": "watch"}, "/profile.*attach.*launch"),
    "a misspelt value": ({"tolerations": [], "toleration": []}, "toleration"),
    "a misspelt value deep down": ({"attach": {"hostPid": False}}, "/attach.*hostPid"),
    "a text for a switch": ({"attach": {"hostPID": "yes"}}, "/attach/hostPID.*boolean"),
    "a number for a text": ({"cluster": 7}, "/cluster.*string"),
    "a port too high": ({"port": 98470}, "/port.*65535|/port.*65,?535"),
    "a GPU way unknown": ({"attach": {"gpus": {"from": "env"}}}, "/attach/gpus/from.*environment"),
    "a digest that is none": ({"image": {"digest": "sha256:1"}}, "/image/digest"),
    "no repository": ({"image": {"repository": ""}}, "/image/repository"),
    "a password in clear text": (
        {"web": {"basicAuthUsers": {"a": "secret"}}},
        "password of a is no bcrypt hash",
    ),
    "an unknown scheme": ({"web": {"scheme": "ftp"}}, "/web/scheme.*https"),
    "an interval without a unit": ({"scrape": {"interval": "15"}}, "/scrape/interval"),
    "neither yes nor no": ({"podMonitor": {"enabled": "maybe"}}, "/podMonitor/enabled.*auto"),
    "an alert that there is not": ({"alerts": {"DisaggNodeUp": {}}}, "/alerts.*DisaggNodeUp"),
    "an alert's unknown severity": (
        {"alerts": {"DisaggNodeDown": {"severity": "critical"}}},
        "/alerts/DisaggNodeDown/severity.*page",
    ),
    "an alert's duration in words": (
        {"alerts": {"DisaggNodeDown": {"for": "five minutes"}}},
        "/alerts/DisaggNodeDown/for",
    ),
    "a threshold that the alert has not": (
        {"alerts": {"DisaggNodeDown": {"threshold": 1}}},
        "/alerts/DisaggNodeDown.*threshold",
    ),
    "a threshold as a text": (
        {"alerts": {"DisaggWatermarkLag": {"threshold": "120s"}}},
        "/alerts/DisaggWatermarkLag/threshold.*number",
    ),
    "a target that is no bucket": (
        {"prometheusRule": {"targets": {"firstToken": "0.7"}}},
        "/prometheusRule/targets/firstToken.*'0.5'",
    ),
    "a threshold so high that the alert could never fire": (
        {"alerts": {"DisaggItlBurnSlow": {"threshold": 20}}},
        "DisaggItlBurnSlow.*alerts.DisaggItlBurnSlow.threshold",
    ),
    "a group's name as no label may be": (
        launch(groups={"H100_nodes": GROUP}),
        "H100_nodes",
    ),
    "a group without GPUs": (launch(groups={"a": {"nodeFile": {}}}), "/launch/groups/a.*gpus"),
    "a misspelt key of a node file": (
        launch(groups={"a": GROUP | {"nodeFile": {"worker": []}}}),
        "/launch/groups/a/nodeFile.*worker",
    ),
    "a worker without a model": (
        launch(groups={"a": {"gpus": 1, "nodeFile": {"workers": [{"name": "a"}]}}}),
        "/launch/groups/a/nodeFile/workers/0.*model",
    ),
    "root as the engines' user": (launch(runAsUser=0), "/launch/runAsUser"),
    "two volumes for the models": (
        launch(models={"volume": {"emptyDir": {}, "hostPath": {"path": "/models"}}}),
        "/launch/models/volume",
    ),
    "steering where nothing is launched": (
        {"launch": {"grpc": {"enabled": True, "tlsSecret": "t", "tokenSecret": "s"}}},
        "launch.grpc.enabled needs profile launch",
    ),
    "steering without TLS": (
        launch(grpc={"enabled": True, "tokenSecret": "s"}),
        "needs launch.grpc.tlsSecret",
    ),
    "steering by everybody": (
        launch(grpc={"enabled": True, "tlsSecret": "t"}),
        "needs launch.grpc.clientCaSecret or launch.grpc.tokenSecret",
    ),
    "names of certificates that nobody is asked for": (
        launch(
            grpc={"enabled": True, "tlsSecret": "t", "tokenSecret": "s", "clientAllowedSans": ["a"]}
        ),
        "needs launch.grpc.clientCaSecret",
    ),
    "steering on a worker's port": (
        launch(grpc={"enabled": True, "tlsSecret": "t", "tokenSecret": "s", "port": 8100}),
        "a and launch.grpc both listen on port 8100",
    ),
    "steering on the port of the page": (
        launch(grpc={"enabled": True, "tlsSecret": "t", "tokenSecret": "s", "port": 9847}),
        "launch.grpc.port: 9847 is the port of the metrics page",
    ),
    "engines to start where nothing is launched": (
        {"attach": {"nodeFile": {"workers": [WORKER]}}},
        "attach.nodeFile: workers and router are started by profile launch",
    ),
    "a router to start where nothing is launched": (
        {"attach": {"nodeFile": {"router": {}}}},
        "attach.nodeFile: workers and router are started by profile launch",
    ),
    "launch without a group": ({"profile": "launch"}, "launch.groups"),
    "two groups on the same nodes": (
        launch(groups={"a": GROUP, "b": GROUP}),
        "a and b may select the same nodes",
    ),
    "two groups that overlap": (
        launch(
            groups={
                "a": GROUP | {"nodeSelector": {"gpu": "h100"}},
                "b": GROUP | {"nodeSelector": {"zone": "east"}},
            }
        ),
        "a and b may select the same nodes",
    ),
    "a group within another": (
        launch(groups={"a": GROUP, "b": GROUP | {"nodeSelector": {"zone": "east"}}}),
        "a and b may select the same nodes",
    ),
    "more GPUs than are requested": (
        launch(groups={"a": GROUP | {"gpus": 1, "nodeFile": {"workers": [WORKER | {"gpus": 2}]}}}),
        "launch.groups.a: its workers need 2 GPUs and it requests 1",
    ),
    "more listed GPUs than are requested": (
        launch(groups={"a": {"gpus": 2, "nodeFile": {"workers": [WORKER | {"gpus": [0, 1, 2]}]}}}),
        "its workers need 3 GPUs and it requests 2",
    ),
    "a GPU that the pod does not get": (
        launch(groups={"a": {"gpus": 2, "nodeFile": {"workers": [WORKER | {"gpus": [0, 2]}]}}}),
        r"launch.groups.a.nodeFile.workers.0..gpus: expected indices from 0 to 1, .* GPUs, not 2",
    ),
    "a misspelt key of the planner file": (
        planner(history={"dayz": 14}),
        "at '/planner/config/history': additional properties 'dayz' not allowed",
    ),
    "a planner file with text for a number": (
        planner(every_seconds="5m"),
        "at '/planner/config/every_seconds': got string, want number",
    ),
    "a planner file with a worker of no role": (
        planner(models=[{"workers": [{"gpu_name": "NVIDIA H200"}]}]),
        "at '/planner/config/models/0/workers/0': missing property 'role'",
    ),
    "a lock for planners of one machine": (
        planner(lock_file="/run/disagg-planner/lock"),
        "planner.config.lock_file: leave it out",
    ),
    "a planner that is to move engines of other machines": (
        planner(rebalance={"mode": "act", "run_dir": "/run/disagg-node"}),
        "planner.config.rebalance.mode: act asks a daemon on the planner's own machine",
    ),
    "a default taken away": (
        {"scrape": {"interval": None}},
        "/scrape.*missing property 'interval'",
    ),
    "a section taken away": ({"image": None}, "missing property 'image'"),
    "an alert newer than the values in use": (
        {"alerts": {"DisaggNodeDown": None}},
        "/alerts.*missing property 'DisaggNodeDown'",
    ),
    "a threshold newer than the values in use": (
        {"alerts": {"DisaggWatermarkLag": {"threshold": None}}},
        "/alerts/DisaggWatermarkLag.*missing property 'threshold'",
    ),
    "no label by which dashboards are chosen": (
        {"dashboards": {"labels": None}},
        "/dashboards.*missing property 'labels'",
    ),
    "a name as no object may have": ({"fullnameOverride": "GPU_seconds"}, "/fullnameOverride"),
    "a name that no Service may have": ({"nameOverride": "gpu.seconds"}, "/nameOverride"),
    "a label by which the pods are chosen": (
        {"podLabels": {"app.kubernetes.io/component": "monitoring"}},
        "app.kubernetes.io/component",
    ),
    "a label by which Helm knows its objects": (
        {"commonLabels": {"app.kubernetes.io/managed-by": "us"}},
        "app.kubernetes.io/managed-by",
    ),
    "two workers on one port": (
        launch(
            groups={"a": {"gpus": 8, "nodeFile": {"workers": [WORKER, WORKER | {"name": "b"}]}}}
        ),
        "launch.groups.a: a and b both listen on port 8100",
    ),
    "a router on a worker's port": (
        launch(
            groups={"a": {"gpus": 8, "nodeFile": {"workers": [WORKER], "router": {"port": 8100}}}}
        ),
        "launch.groups.a: a and the router both listen on port 8100",
    ),
    "a worker on the port that a router has by default": (
        launch(groups={"a": one_worker({"port": 8000}, router={"host": "0.0.0.0"})}),
        "launch.groups.a: a and the router both listen on port 8000",
    ),
    "a worker on the port of a router's page": (
        launch(groups={"a": one_worker({"port": 29000}, router={})}),
        "launch.groups.a: a and the router's metrics page both listen on port 29000",
    ),
    "engines that nothing would drain": (
        launch(groups={"a": one_worker({}, on_sigterm="leave")}),
        "launch.groups.a.nodeFile: with on_sigterm: leave a deleted pod cuts off the requests",
    ),
    "a longer drain than the kubelet waits": (
        launch(groups={"a": one_worker({"deadlines": {"drain_seconds": 110.5}})}),
        "launch.groups.a: its deadlines allow 120.5 s.*after 120 s.*terminationGracePeriodSeconds",
    ),
    "a router and then engines that take too long together": (
        launch(groups={"a": one_worker({"deadlines": {"drain_seconds": 90}}, router={})}),
        "launch.groups.a: its deadlines allow 140 s",
    ),
    "a worker on the port of the page": (
        launch(groups={"a": {"gpus": 8, "nodeFile": {"workers": [WORKER | {"port": 9847}]}}}),
        "launch.groups.a: the metrics page and a both listen on port 9847",
    ),
    "a scrape that may take longer than the interval": (
        {"scrape": {"interval": "10s", "timeout": "10s"}},
        r"scrape.timeout \(10s\) must be shorter than scrape.interval \(10s\)",
    ),
    "scrapes too rare for the rules": (
        {"scrape": {"interval": "1m", "timeout": "10s"}},
        "scrape.interval: with 1m the rules.*prometheusRule.rareScrapes: true",
    ),
    "scrapes a little too rare for the rules": (
        {"scrape": {"interval": "31s", "timeout": "10s"}},
        "scrape.interval: with 31s the rules",
    ),
    "scrapes too rare for any rule": (
        {
            "scrape": {"interval": "61s", "timeout": "10s"},
            "prometheusRule": {"rareScrapes": True},
        },
        "scrape.interval: with 61s the rules.*prometheusRule.enabled: false",
    ),
    "a scrape that takes longer than the interval": (
        {"scrape": {"interval": "10s", "timeout": "1m"}},
        r"scrape.timeout \(1m\) must be shorter",
    ),
    "an alert that could never fire": (
        {"prometheusRule": {"targets": {"slowShare": 0.1}}},
        "/prometheusRule/targets/slowShare",
    ),
    "a severity that there is not": (
        {"prometheusRule": {"severities": {"warn": "warning"}}},
        "/prometheusRule/severities.*warn",
    ),
    "a dashboard without a scheme": (
        {"prometheusRule": {"dashboardUrl": "grafana/d/disagg-cluster"}},
        "/prometheusRule/dashboardUrl",
    ),
    "two monitors": (
        {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}},
        "scraped twice",
    ),
    "a ServiceMonitor without a service": (
        {"serviceMonitor": {"enabled": True}, "service": {"enabled": False}},
        "needs service.enabled",
    ),
    "two web configs": (
        {"web": {"existingSecret": "a", "tlsSecret": "b", "scheme": "https"}},
        "leave web.tlsSecret and web.basicAuthUsers empty",
    ),
    "a web config of unknown scheme": ({"web": {"existingSecret": "a"}}, "web.scheme"),
}


@pytest.mark.parametrize(("values", "words"), REFUSED.values(), ids=REFUSED)
def test_invalid_values_are_refused_with_their_path(values: dict[str, Any], words: str) -> None:
    with pytest.raises(HelmError, match=words):
        render(values)


ACCEPTED: dict[str, dict[str, Any]] = {
    "rare scrapes without the rules": {
        "scrape": {"interval": "1m", "timeout": "59s"},
        "prometheusRule": {"enabled": False},
    },
    "a scrape a minute where that will do": {
        "scrape": {"interval": "1m", "timeout": "10s"},
        "prometheusRule": {"rareScrapes": True},
    },
    "the longest interval that needs no leave": {"scrape": {"interval": "30s"}},
    "durations of several parts": {"scrape": {"interval": "29s1000ms", "timeout": "1s500ms"}},
    "two workers that share listed GPUs": launch(
        groups={
            "a": {
                "gpus": 1,
                "nodeFile": {
                    "workers": [
                        WORKER | {"gpus": [0]},
                        WORKER | {"name": "b", "port": 8101, "gpus": [0]},
                    ]
                },
            }
        }
    ),
    "a planner that moves nothing, as YAML reads `off`": planner(rebalance={"mode": False}),
    "GPUs by UUID": launch(
        groups={"a": {"gpus": 1, "nodeFile": {"workers": [WORKER | {"gpus": ["GPU-8f2a"]}]}}}
    ),
    "a drain as long as the kubelet waits": launch(
        groups={"a": one_worker({"deadlines": {"drain_seconds": 3600, "stop_seconds": 30}})},
        terminationGracePeriodSeconds=3630,
    ),
    "lists and maps taken away": {
        "commonLabels": None,
        "extraEnv": None,
        "tolerations": None,
        "nodeSelector": None,
        "podAnnotations": None,
        "attach": {"nodeFile": None, "resources": None, "podSecurityContext": None},
        "podMonitor": {"enabled": True, "labels": None},
        "prometheusRule": {"enabled": True, "alertLabels": None, "alertAnnotations": None},
    },
    "maps of launch taken away": launch(resources=None, podSecurityContext=None)
    | {"nodeSelector": None},
    "groups apart by one label of several": launch(
        groups={
            "a": GROUP | {"nodeSelector": {"gpu": "h100", "zone": "east"}},
            "b": GROUP | {"nodeSelector": {"gpu": "h100", "zone": "west"}},
        }
    ),
}


@pytest.mark.parametrize("values", ACCEPTED.values(), ids=ACCEPTED)
def test_unusual_but_valid_values_are_rendered(values: dict[str, Any]) -> None:
    assert render(values)


@pytest.mark.parametrize("block", DOCUMENTED)
def test_documented_examples_are_valid_values(block: str) -> None:
    hash_of_bcrypt = "$2y$10$" + "a" * 53

    assert render(yaml.safe_load(block.replace("$2y$10$…", hash_of_bcrypt)))


def test_global_values_of_a_parent_chart_are_accepted() -> None:
    """As a dependency, the chart also receives the parent's `global` values."""
    assert render({"global": {"team": "inference"}})


def keys(value: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, below in value.items():
        yield f"{above}{key}"
        if isinstance(below, dict):
            yield from keys(below, f"{above}{key}.")


def shape(schema: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, below in schema.get("properties", {}).items():
        yield f"{above}{key}"
        yield from shape(below, f"{above}{key}.")


def test_every_value_of_the_schema_is_in_values_yaml() -> None:
    """Helm itself checks the defaults against the schema."""
    assert set(shape(SCHEMA)) - set(keys(defaults())) == {"global"}


def test_every_value_is_documented_or_an_alert() -> None:
    rows = documented((CHART / "values.yaml").read_text(encoding="utf-8"))

    assert [
        row.path for row in rows if not row.comment and not row.path.startswith("alerts.")
    ] == []
    paths = {row.path for row in rows}
    for key in keys(defaults()):
        assert any(
            key == path or key.startswith(f"{path}.") or path.startswith(f"{key}.")
            for path in paths
        )


def test_a_comment_belongs_to_the_value_below_it() -> None:
    text = """
# About the file.
image:
  # -- Where it is,
  # in two lines
  repository: here
  tag: ""
# -- A map with things in it
labels: {a: b}
plain: [1, 2]
braces: {c: 3}
"""

    assert documented(text) == [
        Value("image.repository", "here", "Where it is, in two lines"),
        Value("image.tag", "", ""),
        Value("labels", {"a": "b"}, "A map with things in it"),
        Value("plain", [1, 2], ""),
        Value("braces", {"c": 3}, ""),
    ]


def test_a_pipe_in_a_default_does_not_break_the_table() -> None:
    row = table([Value("a", "x|y", "what")]).splitlines()[-1]

    assert row == '| `a` | `"x\\|y"` | what |'


def test_the_chart_and_the_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))

    import disagg_exporter

    assert chart["appVersion"] == disagg_exporter.__version__
