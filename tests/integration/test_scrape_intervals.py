"""The recorded figures against a truth that is known, however often nodes are scraped."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from support.alert_rules import ALERTS, groups_read_by
from support.scraped_fleet import (
    NODES,
    SECONDS,
    busy,
    price,
    scraped,
    seconds_per_million_tokens,
)

pytestmark = pytest.mark.prometheus

RULE_FILES = [
    ALERTS / "rules" / f"disagg-recording{part}.yaml" for part in ("", "-pools", "-fleet")
]
P, D = busy("prefill"), busy("decode")
M, S = 'model_name="m"', 'model_name="s"'
TOKEN_RULES = "cluster_model_namespace:disagg_{}_per_million_tokens:rate1h"
SECONDS_DECODE = seconds_per_million_tokens("m", "decode")
COST = sum(n.gpus * (n.price or 0) * (1 - 0.1 * (1 - n.prefill - n.decode)) for n in NODES)

GPUS = {
    **{f'cluster:disagg_phase_gpu_seconds:rate{w}{{phase="prefill"}}': P for w in ("1m", "5m")},
    **{f'cluster:disagg_phase_gpu_seconds:rate{w}{{phase="decode"}}': D for w in ("1m", "5m")},
    'cluster_gpu:disagg_phase_gpu_seconds:rate5m{gpu_name="A100",phase="decode"}': 3.6,
    'node:disagg_phase_gpu_seconds:rate1m{node="g0",phase="decode"}': 1.2,
    "cluster:disagg_gpus:sum": sum(node.gpus for node in NODES),
}
TOKENS = sum(node.tokens or 0.0 for node in NODES if node.role == "prefill")
WATTS = sum((node.watts or 0.0) * (node.busy("prefill") + node.busy("decode")) for node in NODES)
YOUNG = {
    'cluster:disagg_phase_gpu_seconds:rate5m{phase="prefill"}': P,
    'cluster:disagg_phase_gpu_seconds:rate5m{phase="decode"}': D,
    **{
        f"cluster_model_namespace:disagg_{figure}:rate{window}{whose}": truth
        for window in ("5m", "1h")
        for figure, whose, truth in (
            ("cost_per_hour", "", COST),
            ("phase_tokens", '{phase="prefill"}', TOKENS),
            ("energy_watts", "", WATTS),
        )
    },
    f'{TOKEN_RULES.format("gpu_seconds")}{{{M},phase="prefill"}}': 100.0,
    f'{TOKEN_RULES.format("joules")}{{{M},phase="prefill"}}': 600 * 100.0,
    f'{TOKEN_RULES.format("cost")}{{{M},phase="prefill"}}': 2.0 * 100 / 3600,
}
"""What holds of a fleet that is some minutes old, too."""
RATIOS = {
    **{f"cluster:disagg_prefill_decode_ratio:ratio_rate{window}": P / D for window in ("1m", "5m")},
    **{f"cluster:disagg_prefill_share:ratio_rate{window}": P / (P + D) for window in ("1m", "5m")},
    f"cluster_model:disagg_prefill_decode_ratio:ratio_rate5m{{{M}}}": 4.8 / 8.6,
    f"cluster_model:disagg_prefill_decode_ratio:ratio_rate5m{{{S}}}": (0.3 + 0.2) / (1.2 + 0.5),
    'cluster_role:disagg_occupancy:ratio_rate5m{role="decode"}': 8.6 / (14 - 0.54),
    # Of the H100s, which tell it.
    'cluster_role_unit:disagg_activity:ratio_rate5m{role="prefill",unit="sm"}': 0.8,
    'cluster_role_unit:disagg_activity:ratio_rate5m{role="decode",unit="sm"}': 0.3,
    f'{TOKEN_RULES.format("gpu_seconds")}{{{M},phase="decode"}}': SECONDS_DECODE,
    f'{TOKEN_RULES.format("gpu_seconds")}{{{M},phase="prefill"}}': 100.0,
    f'{TOKEN_RULES.format("joules")}{{{M},phase="decode"}}': 300 * SECONDS_DECODE,
    # The slices beside it have tokens, and tell no energy.
    f'{TOKEN_RULES.format("joules")}{{{S},phase="decode"}}': 400
    * seconds_per_million_tokens("s", "decode"),
    f'{TOKEN_RULES.format("cost")}{{{M},phase="decode"}}': price("m", "decode")
    * SECONDS_DECODE
    / 3600,
    f'{TOKEN_RULES.format("cost")}{{{M},phase="prefill"}}': 2.0 * 100 / 3600,
    "cluster_model_namespace:disagg_cost_per_hour:rate1h": COST,
}


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("scrape_seconds", [15, 30, 60])
def test_recorded_ratios_are_within_1_percent_and_gpu_counts_within_2(
    scrape_seconds: int, order: int, tmp_path: Path
) -> None:
    """In the order of the files, and in reverse: Prometheus evaluates groups at different times."""
    bounds = {**dict.fromkeys(GPUS, 0.02), **dict.fromkeys(RATIOS, 0.01)}
    # At every moment of the last twenty minutes; an absent figure is a failure, too.
    checks: list[dict[str, object]] = [
        {
            "expr": f"max_over_time(abs(sum({figure}) / {truth} - 1)[20m:30s]) > {bounds[figure]}"
            f" or absent(sum({figure}))",
            "eval_time": f"{SECONDS}s",
            "exp_samples": [],
        }
        for figure, truth in {**GPUS, **RATIOS}.items()
    ]
    checks += [
        {
            "expr": f"abs(sum({figure}) / {truth} - 1) > 0.02 or absent(sum({figure}))",
            "eval_time": age,
            "exp_samples": [],
        }
        for figure, truth in YOUNG.items()
        for age in ("2m30s", "4m", "11m")
    ]
    figures = [*GPUS, *RATIOS, *YOUNG]
    judge(figures, checks, scraped(scrape_seconds, seed=7), scrape_seconds, tmp_path, order)


@pytest.mark.parametrize("scrape_seconds", [15, 60])
@pytest.mark.parametrize("minutes", [2, 3, 6])
def test_gpus_and_tokens_are_right_within_2_percent_after_a_prometheus_was_away(
    scrape_seconds: int, minutes: int, tmp_path: Path
) -> None:
    """Samples from before it then leave the window while those from after it do not fill it."""
    back = 2400 + 60 * minutes
    figures = {
        "sum(cluster:disagg_phase_gpu_seconds:rate1m)": P + D,
        "sum(cluster:disagg_phase_gpu_seconds:rate5m)": P + D,
        'sum(cluster_model_namespace:disagg_phase_tokens:rate5m{phase="prefill"})': TOKENS,
        "sum(cluster_model_namespace:disagg_cost_per_hour:rate5m)": COST,
    }
    checks: list[dict[str, object]] = [
        {
            "expr": f"abs({figure} / {truth} - 1) > 0.02 or absent({figure})",
            "eval_time": f"{back + after}s",
            "exp_samples": [],
        }
        for figure, truth in figures.items()
        for after in range(120, 540, 30)
    ]
    series = scraped(scrape_seconds, seed=7, missed=range(2400, back))

    judge(figures, checks, series, scrape_seconds, tmp_path)


def judge(
    figures: Iterable[str],
    checks: list[dict[str, object]],
    series: list[dict[str, str]],
    scrape_seconds: int,
    folder: Path,
    order: int = 1,
) -> None:
    binary = shutil.which("promtool")
    if binary is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    # The others would take as long again; test_rules.py has all evaluated on a fleet.
    groups = groups_read_by(figures, RULE_FILES)
    rules = folder / "rules.yaml"
    rules.write_text(json.dumps({"groups": groups}), encoding="utf-8")
    test = {
        "rule_files": [str(rules)],
        "evaluation_interval": "30s",
        "group_eval_order": [group["name"] for group in groups][::order],
        "tests": [
            {
                "interval": f"{scrape_seconds}s",
                "input_series": series,
                "promql_expr_test": checks,
            }
        ],
    }
    path = folder / "scraped_test.yaml"
    path.write_text(json.dumps(test), encoding="utf-8")

    done = subprocess.run([binary, "test", "rules", str(path)], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
