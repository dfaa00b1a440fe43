"""examples/compose.yaml: all mounted files exist, and the services find each other."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from support.dockerfile import ROOT, stages

EXAMPLES = ROOT / "examples"
COMPOSE: dict[str, Any] = yaml.safe_load((EXAMPLES / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]


def mounts(service: str) -> dict[PurePosixPath, Path]:
    """Return the mounted files of a service, by their paths in it."""
    words = (volume.split(":") for volume in SERVICES[service].get("volumes", []))
    return {PurePosixPath(target): EXAMPLES / source for source, target, _ in words}


def seen(service: str, path: str) -> Path:
    """Return our file at a path in a service."""
    for target, source in mounts(service).items():
        if PurePosixPath(path).is_relative_to(target):
            return (source / PurePosixPath(path).relative_to(target)).resolve()
    raise AssertionError(f"{service} has nothing at {path}")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def listening(service: str) -> str:
    """Return a service's address for the others."""
    [port] = SERVICES[service]["ports"]
    return f"{service}:{port.rpartition(':')[2]}"


@pytest.mark.parametrize("service", SERVICES)
def test_mounted_files_exist_and_are_read_only(service: str) -> None:
    assert [path for path in mounts(service).values() if not path.exists()] == []
    assert all(volume.endswith(":ro") for volume in SERVICES[service].get("volumes", []))


@pytest.mark.parametrize("service", SERVICES)
def test_ports_are_local_and_images_are_pinned(service: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[service]["ports"])
    assert SERVICES[service]["image"].rpartition(":")[2][-1].isdigit()


def test_the_demo_is_built_from_our_dockerfile_and_listens_at_its_scrape_target() -> None:
    demo = SERVICES["demo"]
    assert demo["build"]["target"] in stages()
    assert (EXAMPLES / demo["build"]["context"] / "Dockerfile").is_file()
    assert demo["command"][0] == "demo"
    assert f"0.0.0.0:{listening('demo').rpartition(':')[2]}" in demo["command"]


def test_prometheus_scrapes_the_demo_loads_our_rules_and_sends_to_alertmanager() -> None:
    config = load(seen("prometheus", "/etc/prometheus/prometheus.yml"))
    [job] = config["scrape_configs"]
    [static] = job["static_configs"]
    [pattern] = config["rule_files"]
    [alertmanagers] = config["alerting"]["alertmanagers"]

    assert static["targets"] == [listening("demo")]
    assert {"cluster", "node"} <= static["labels"].keys()
    assert alertmanagers["static_configs"] == [{"targets": [listening("alertmanager")]}]
    folder = seen("prometheus", str(PurePosixPath(pattern).parent))
    assert set(folder.glob("*.yaml")) == set((ROOT / "alerts" / "rules").glob("*.yaml"))


def test_grafana_shows_our_dashboards_from_that_prometheus() -> None:
    provisioning = "/etc/grafana/provisioning"
    [source] = load(seen("grafana", f"{provisioning}/datasources/disagg-node.yaml"))["datasources"]
    [provider] = load(seen("grafana", f"{provisioning}/dashboards/disagg-node.yaml"))["providers"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]

    assert source["url"] == f"http://{listening('prometheus')}"
    assert seen("grafana", provider["options"]["path"]) == ROOT / "grafana" / "dashboards"
    assert seen("grafana", home).is_file()


@pytest.mark.prometheus
def test_promtool_and_amtool_accept_the_mounted_files(tmp_path: Path) -> None:
    config = seen("prometheus", "/etc/prometheus/prometheus.yml").read_text(encoding="utf-8")
    here = tmp_path / "prometheus.yml"
    rules = seen("prometheus", "/etc/prometheus/rules")
    here.write_text(config.replace("/etc/prometheus/rules", str(rules)), encoding="utf-8")
    alertmanager = seen("alertmanager", "/etc/alertmanager/alertmanager.yml")

    for command in (f"promtool check config {here}", f"amtool check-config {alertmanager}"):
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
