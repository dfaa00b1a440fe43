"""The rules that the chart renders, before the real promtool."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.chart import defaults, one, render

pytestmark = pytest.mark.prometheus
TUNED = {
    name: {
        key: value
        if key == "severity"
        else "1h30m"
        if key == "for"
        else True
        if isinstance(value, bool)
        else 7
        for key, value in values.items()
    }
    for name, values in defaults()["alerts"].items()
}


@pytest.mark.parametrize("alerts", [{}, TUNED], ids=["default", "every value changed"])
def test_promtool_accepts_the_rendered_rules(alerts: dict[str, Any], tmp_path: Path) -> None:
    rule = one(render({"prometheusRule": {"enabled": True}, "alerts": alerts}), "PrometheusRule")
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(rule["spec"]), encoding="utf-8")

    answer = subprocess.run(
        ["promtool", "check", "rules", file], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    count = sum(len(group["rules"]) for group in rule["spec"]["groups"])
    assert f"SUCCESS: {count} rules found" in answer.stdout
