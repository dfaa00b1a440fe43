"""Recording rules and scrape config before the real promtool."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from disagg_cluster.prometheus import Target, scrape_config

pytestmark = pytest.mark.prometheus

ALERTS = Path(__file__).parents[2] / "alerts"
RULE_FILES = sorted((ALERTS / "rules").glob("*.yaml"))
TEST_FILES = sorted((ALERTS / "tests").glob("*_test.yaml"))


def promtool(*arguments: str) -> None:
    """Run promtool; a complaint of its is the failure's text."""
    binary = shutil.which("promtool")
    if binary is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    done = subprocess.run([binary, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.name)
def test_the_rules_are_rules(path: Path) -> None:
    promtool("check", "rules", str(path))


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.name)
def test_the_rules_give_the_numbers_worked_out_by_hand(path: Path) -> None:
    promtool("test", "rules", str(path))


def test_every_rule_file_has_a_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in TEST_FILES)

    assert RULE_FILES
    assert [path.name for path in RULE_FILES if f"../rules/{path.name}" not in tests] == []


def test_the_scrape_config_is_one_with_our_rules(tmp_path: Path) -> None:
    targets = [Target("127.0.0.1:9847", "gpu-7", "east"), Target("[::1]:9847", "gpu-8")]
    config = tmp_path / "prometheus.yaml"
    config.write_text(
        scrape_config(targets, interval_seconds=0.5, rule_files=[str(ALERTS / "rules" / "*.yaml")]),
        encoding="utf-8",
    )

    promtool("check", "config", str(config))
