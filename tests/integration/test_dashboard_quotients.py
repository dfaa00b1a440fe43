"""What the dashboards divide by: those of whom both parts are known, before the real promtool."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.dashboards import CHOICES
from support.panel_values import check

pytestmark = pytest.mark.prometheus

_PHASE = 'role="decode",phase="decode",model_name="m"'
_MODEL = 'cluster="c",engine_namespace="n",phase="decode",model_name='
_PRICE = "cluster_model_namespace:disagg_cost_per_million_tokens:rate1h"
_POOL = 'role="prefill",unit="tensor",cluster='
_GPU = 'cluster="c",node="demo-node",role="prefill",gpu='
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
    # A GPU whose driver tells activity, and a MIG instance.
    f'disagg_gpu_activity_seconds_total{{{_GPU}"a",unit="tensor"}}': "0+9x40",
    f'disagg_gpu_phase_seconds_total{{{_GPU}"a",phase="prefill"}}': "0+15x40",
    f'disagg_gpu_phase_seconds_total{{{_GPU}"b",phase="prefill"}}': "0+15x40",
}
EXPECTED = {
    "GPU-seconds per million tokens": [('{phase="decode"}', 5000.0)],
    "Energy per million tokens": [('{phase="decode"}', 1e6)],
    "Cost of a million tokens": [('{phase="decode",currency="EUR"}', 2.5)],
    "Cost an hour and a million tokens": [('{phase="decode",currency="EUR"}', 2.5)],
    "Activity of the pools": [('{role="prefill",unit="tensor"}', 0.5)],
    "Activity by role": [('{role="prefill",unit="tensor"}', 0.6)],
    "Work by model": [('{model_name="m"}', 5000.0)],
}


def test_a_quotient_counts_only_nodes_that_report_both_of_its_parts(tmp_path: Path) -> None:
    """Energy: 200 W for 5000 GPU-seconds. Cost: by tokens. Activity: by the GPUs that report it."""
    check(tmp_path, SERIES, EXPECTED)


def test_the_error_rate_counts_engine_errors_only_without_a_frontend(tmp_path: Path) -> None:
    """An error reported only by engines counts only where no frontend counts requests."""
    ends = 'disagg_request_ends_total{engine_namespace="n",cluster="c"'
    told = {
        f'{ends},model_name="m",source="frontend",reason="stop"}}': "0+150x40",
        f'{ends},model_name="m",source="engine",reason="stop"}}': "0+75x40",
        f'{ends},model_name="m",source="engine",reason="error"}}': "0+75x40",
        f'{ends},model_name="o",source="engine",reason="stop"}}': "0+135x40",
        f'{ends},model_name="o",source="engine",reason="error"}}': "0+15x40",
    }

    check(tmp_path, told, {"Error rate": [('{reason="error"}', 1 / 20)]})


def test_wasted_and_missing_gpus_are_those_of_the_chosen_namespace(tmp_path: Path) -> None:
    of = 'role="decode",model_name="m",cluster="c",engine_namespace='
    short = 'disagg_plan_shortfall_gpus{gpu_name="H",horizon="1h",quantile="0.9"'
    told = {
        f'disagg_plan_wasted_gpus{{{of}"a"}}': "2x40",
        f'disagg_plan_wasted_gpus{{{of}"b"}}': "3x40",
        f'{short},{of}"a"}}': "1x40",
        f'{short},{of}"b"}}': "4x40",
    }
    kind = '{role="decode",gpu_name="H",horizon="1h",order="decode b01"}'

    check(
        tmp_path,
        told,
        {"GPUs not needed lately": [('{role="decode"}', 3.0)], "The plan": [(kind, 4.0)]},
        CHOICES | {"cluster": "c", "model": "m", "namespace": "b"},
    )
