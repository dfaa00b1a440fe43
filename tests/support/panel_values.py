"""What panels show of given series, as promtool evaluates their queries."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from support.dashboards import CHOICES, NAMES, filled, queries

Sample = tuple[str, float]


def check(
    folder: Path,
    told: Mapping[str, str],
    wanted: Mapping[str, Sequence[Sample]],
    choices: Mapping[str, str] = CHOICES,
    scrape: str = "15s",
    at: str = "10m",
) -> None:
    """Have promtool ask what panels ask, the last query of each, and compare their samples."""
    asked = {each.panel: filled(each.expr, choices) for name in NAMES for each in queries(name)}
    evaluate(folder, told, {asked[panel]: samples for panel, samples in wanted.items()}, scrape, at)


def evaluate(
    folder: Path,
    told: Mapping[str, str],
    wanted: Mapping[str, Sequence[Sample]],
    scrape: str = "15s",
    at: str = "10m",
) -> None:
    """Have promtool evaluate expressions on series scraped so often, and compare their samples."""
    case = {
        "interval": scrape,
        "input_series": [{"series": series, "values": values} for series, values in told.items()],
        "promql_expr_test": [
            {
                "expr": expr,
                "eval_time": at,
                "exp_samples": [{"labels": labels, "value": value} for labels, value in samples],
            }
            for expr, samples in wanted.items()
        ],
    }
    path = folder / "panels.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [], "tests": [case]}), encoding="utf-8")

    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stdout + done.stderr
