"""TLS and passwords of the page, and the probes that go with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from disagg_cluster.nodefile.web.reading import read, understand
from support.chart import (
    CASES,
    one,
    pod_of,
    pods,
    render,
    values_of,
)

every_case = pytest.mark.parametrize("case", CASES)
PROBED = ("/healthz", "/readyz")


def probes_of(case: str) -> list[dict[str, Any]]:
    """All probes of a value set's pods; what they ask, without how often."""
    found = [
        container[key]
        for pod in pods(render(values_of(case))).values()
        for container in pod["containers"]
        for key in container
        if key.endswith("Probe")
    ]
    timing = {"periodSeconds", "timeoutSeconds", "failureThreshold"}
    return [{key: probe[key] for key in probe.keys() - timing} for probe in found]


@every_case
def test_probes_match_how_the_page_is_served(case: str) -> None:
    web = values_of(case).get("web", {})
    if "basicAuthUsers" in web or "existingSecret" in web:
        # The page asks for a password on every path, and the kubelet has none.
        allowed = [{"tcpSocket": {"port": "metrics"}}]
    else:
        scheme = "HTTPS" if "tlsSecret" in web else "HTTP"
        asked = [{"path": path, "port": "metrics", "scheme": scheme} for path in PROBED]
        allowed = [{"httpGet": one} for one in asked]

    assert probes_of(case)
    assert all(probe in allowed for probe in probes_of(case))


def test_the_kind_of_probes_is_configurable() -> None:
    web = values_of("own-web-config")["web"] | {"probes": "http"}

    [container] = pods(render({"web": web}))["rel-disagg-node"]["containers"]
    assert container["readinessProbe"]["httpGet"] == {
        "path": "/readyz",
        "port": "metrics",
        "scheme": "HTTPS",
    }


def test_tls_and_users_are_in_a_secret_and_nowhere_else(tmp_path: Path) -> None:
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
    # The daemon accepts it, except for the certificates that a Secret provides.
    text = secret["stringData"]["web-config.yaml"].replace("/etc/disagg-web", str(tmp_path))
    (tmp_path / "web.yaml").write_text(text, encoding="utf-8")
    _, findings, _ = understand(read(tmp_path / "web.yaml"))
    assert {finding.path for finding in findings} == {
        ("tls_server_config", "cert_file"),
        ("tls_server_config", "key_file"),
    }
    others = json.dumps([m for m in manifests if m["kind"] != "Secret"])
    assert users["prometheus"] not in others
    [container] = pods(manifests)["rel-disagg-node"]["containers"]
    assert "--web-config=/etc/disagg-web/web-config.yaml" in container["args"]


def test_an_existing_secret_with_a_web_config_is_mounted() -> None:
    manifests = render(values_of("own-web-config"))

    assert not [manifest for manifest in manifests if manifest["kind"] == "Secret"]
    [volume] = [v for v in pods(manifests)["rel-disagg-node"]["volumes"] if v["name"] == "web"]
    assert volume["secret"] == {"secretName": "my-web-config"}


def test_without_a_web_config_none_is_passed() -> None:
    [container] = pod_of("attach-default")["containers"]

    assert not [argument for argument in container["args"] if "web-config" in argument]
