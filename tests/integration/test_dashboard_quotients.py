"""What the dashboards divide by: those of whom both parts are known, before the real promtool."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from support.dashboards import queries

pytestmark = pytest.mark.prometheus

_PHASE = 'role="decode",phase="decode",model_name="m"'
_MODEL = 'cluster="c",engine_namespace="n",phase="decode",model_name='
_PRICE = "cluster_model_namespace:disagg_cost_per_million_tokens:rate1h"
_POOL = 'role="prefill",unit="tensor",cluster='
SERIES = {
    # A node tells its engines' tokens and no energy, another only energy.
    f'disagg_node_phase_tokens_total{{node="a",{_PHASE}}}': "0+1500x40",
    f'disagg_node_token_gpu_seconds_total{{node="a",{_PHASE}}}': "0+7.5x40",
    f'disagg_node_token_gpu_seconds_total{{node="b",{_PHASE}}}': "0x40",
    f'disagg_node_energy_joules_total{{node="b",{_PHASE}}}': "0+3000x40",
    f'disagg_node_energy_gpu_seconds_total{{node="b",{_PHASE}}}': "0+15x40",
    # Two models with a price, one without.
    f'{_PRICE}{{{_MODEL}"m",currency="EUR"}}': "2x40",
    f'{_PRICE}{{{_MODEL}"o",currency="EUR"}}': "4x40",
    f'cluster_model_namespace:disagg_phase_tokens:rate1h{{{_MODEL}"m"}}': "300x40",
    f'cluster_model_namespace:disagg_phase_tokens:rate1h{{{_MODEL}"o"}}': "100x40",
    f'cluster_model_namespace:disagg_phase_tokens:rate1h{{{_MODEL}"free"}}': "9000x40",
    # A cluster whose drivers tell activity, a smaller one, and one whose do not.
    f'cluster_role_unit:disagg_activity:ratio_rate5m{{{_POOL}"c"}}': "0.6x40",
    f'cluster_role_unit:disagg_activity_gpu_seconds:rate5m{{{_POOL}"c"}}': "4x40",
    f'cluster_role_unit:disagg_activity:ratio_rate5m{{{_POOL}"d"}}': "0.3x40",
    f'cluster_role_unit:disagg_activity_gpu_seconds:rate5m{{{_POOL}"d"}}': "2x40",
    f'cluster_role_unit:disagg_activity_gpu_seconds:rate5m{{{_POOL}"e"}}': "0x40",
}
EXPECTED = {
    "GPU-seconds per million tokens": ('{phase="decode"}', 5000.0),
    "Energy per million tokens": ('{phase="decode"}', 1e6),
    "Cost of a million tokens": ('{phase="decode",currency="EUR"}', 2.5),
    "Cost of an hour and of a million tokens": ('{phase="decode",currency="EUR"}', 2.5),
    "Activity of the pools": ('{role="prefill",unit="tensor"}', 0.5),
}


def test_who_tells_half_bends_no_quotient(tmp_path: Path) -> None:
    """Energy: 200 W for 5000 GPU-seconds. Cost: by tokens. Activity: by the GPUs that tell it."""
    asked = {each.panel: each.text for each in queries("cluster") if each.panel in EXPECTED}
    wanted = [
        {
            "expr": asked[panel],
            "eval_time": "10m",
            "exp_samples": [{"labels": labels, "value": value}],
        }
        for panel, (labels, value) in EXPECTED.items()
    ]
    case = {
        "interval": "15s",
        "input_series": [{"series": series, "values": told} for series, told in SERIES.items()],
        "promql_expr_test": wanted,
    }
    path = tmp_path / "quotients.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [], "tests": [case]}), encoding="utf-8")

    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stdout + done.stderr
