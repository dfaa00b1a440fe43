"""Rules, alerts and scrape config before the real promtool, routes before the real amtool."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from bench.alerts.series import Span
from bench.alerts.week import quiet_week

from disagg_cluster.prometheus.local_server import ScrapeTarget, scrape_config
from support.alert_rules import (
    ALERTS,
    OPTIONAL_FILES,
    RULE_FILES,
    TEST_FILES,
    WITHOUT_DAEMON,
    all_alerts,
    groups,
    hasten,
)
from support.chart import defaults

pytestmark = pytest.mark.prometheus

EXAMPLE = str(ALERTS / "alertmanager.yaml")
SEVERITIES = {name: name for name in ("page", "ticket", "info")}
"""What the rule files call them."""
CHART = defaults()["prometheusRule"]["severities"]
"""What the chart calls the severities of the rule files by default."""
PACKAGES = {"promtool": "prometheus", "amtool": "prometheus-alertmanager"}


def check_with(tool: str, *arguments: str) -> None:
    """Run promtool or amtool; a complaint of its is the failure's text."""
    binary = shutil.which(tool)
    if binary is None:
        pytest.skip(f"{tool} is not installed: apt-get install {PACKAGES[tool]}")
    done = subprocess.run([binary, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def promtool(*arguments: str) -> None:
    check_with("promtool", *arguments)


@pytest.mark.parametrize("path", [*RULE_FILES, *OPTIONAL_FILES], ids=lambda path: path.name)
def test_promtool_accepts_the_rules(path: Path) -> None:
    promtool("check", "rules", str(path))


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.name)
def test_the_rules_give_the_numbers_of_their_promtool_tests(path: Path) -> None:
    promtool("test", "rules", str(path))


def test_the_rules_without_a_daemon_give_the_numbers_of_their_promtool_test() -> None:
    promtool("check", "rules", str(WITHOUT_DAEMON / "rules" / "disagg-dcgm.yaml"))
    promtool("test", "rules", str(WITHOUT_DAEMON / "tests" / "dcgm_test.yaml"))


def test_every_rule_file_has_a_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in TEST_FILES)

    assert RULE_FILES
    assert [path.name for path in RULE_FILES if f"../rules/{path.name}" not in tests] == []
    assert [path.name for path in OPTIONAL_FILES if f"/{path.name}" not in tests] == []


def test_promtool_accepts_the_scrape_config_with_our_rules(tmp_path: Path) -> None:
    targets = [ScrapeTarget("127.0.0.1:9847", "gpu-7", "east"), ScrapeTarget("[::1]:9847", "gpu-8")]
    config = tmp_path / "prometheus.yaml"
    config.write_text(
        scrape_config(targets, interval_seconds=0.5, rule_files=[str(ALERTS / "rules" / "*.yaml")]),
        encoding="utf-8",
    )

    promtool("check", "config", str(config))


def test_no_alert_fires_in_a_normal_week_of_a_fleet(tmp_path: Path) -> None:
    """Two days of five hours; `make bench-alerts` has the whole week, at three scrape intervals."""
    week = tmp_path / "quiet_test.yaml"
    test = quiet_week(RULE_FILES, Span(2, 5 * 3600, 60), seed=20261121, evaluation="3m")
    week.write_text(json.dumps(test), encoding="utf-8")  # which is YAML too, and fast

    promtool("test", "rules", str(week))


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.name)
def test_promtool_accepts_hastened_rules(path: Path, tmp_path: Path) -> None:
    hastened = tmp_path / "rules.yaml"
    hastened.write_text(yaml.safe_dump({"groups": hasten(groups(path), 30)}), encoding="utf-8")

    promtool("check", "rules", str(hastened))


def test_amtool_accepts_the_alertmanager_example() -> None:
    check_with("amtool", "check-config", EXAMPLE)


@pytest.mark.parametrize("label", [*SEVERITIES.items(), *CHART.items()], ids="-".join)
def test_an_alert_is_routed_to_the_receiver_of_its_severity(label: tuple[str, str]) -> None:
    severity, written = label
    name = next(n for n, a in all_alerts().items() if a["labels"]["severity"] == severity)

    labels = (f"alertname={name}", f"severity={written}", "cluster=east", "node=a")
    routes = ("config", "routes", "test", "--config.file", EXAMPLE)
    check_with("amtool", *routes, f"--verify.receivers={severity}", *labels)
