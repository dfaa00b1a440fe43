"""Selectors and expressions of the Cluster dashboard's queries: the chosen clusters and models."""

from __future__ import annotations

C = 'cluster=~"$cluster"'
M = f'{C}, model_name=~"$model"'
N = f'{M}, engine_namespace=~"$namespace"'
"""Adds the namespace; series that are recorded by model alone have none."""
BOTH = ("prefill", "decode")
OBSERVED = (*BOTH, "idle", "unattributed")


_ENOUGH = {"rate1m": ">= 1 / 60", "rate5m": ">= 1 / 300"}


def enough(window: str) -> str:
    """The least rate of GPU-seconds that may be a divisor: 1 GPU-second in its window."""
    return _ENOUGH[window]


def ratio(metric: str, matchers: str, by: str = "") -> str:
    """Prefill over decode of recorded GPU-seconds, where decode has at least one."""
    total = f"sum{f' by ({by})' if by else ''}"
    return (
        f'{total} ({metric}{{{matchers}, phase="prefill"}})'
        f' / ({total} ({metric}{{{matchers}, phase="decode"}}) {enough(_window(metric))})'
    )


def share(metric: str, matchers: str, by: str = "") -> str:
    """Prefill's share of both phases' recorded GPU-seconds, where there is at least one."""
    total = f"sum{f' by ({by})' if by else ''}"
    return (
        f'{total} ({metric}{{{matchers}, phase="prefill"}})'
        f' / ({total} ({metric}{{{matchers}, phase=~"prefill|decode"}})'
        f" {enough(_window(metric))})"
    )


def ratio_of_this_moment() -> str:
    """Prefill over decode of the GPUs busy now, where they worked at least one GPU-second."""
    busy = f"cluster:disagg_busy_gpus:sum{{{C}"
    return (
        f'sum ({busy}, phase="prefill"}}) / (sum ({busy}, phase="decode"}}) > 0)'
        f" and (sum (cluster:disagg_busy_gpu_seconds:sum{{{C}}}) >= 1)"
    )


def foreign_share(role: str, phase: str, window: str) -> str:
    """The share of a pool's work that belongs to the other phase."""
    metric = f"cluster_role_model_gpu:disagg_phase_gpu_seconds:{window}"
    return (
        f'sum ({metric}{{{C}, role="{role}", phase="{phase}"}})'
        f' / (sum ({metric}{{{C}, role="{role}", phase=~"prefill|decode"}}) {enough(window)})'
    )


def price_of_tokens(matchers: str) -> str:
    """Cost per million tokens of a phase: the mean of the priced models, weighted by tokens."""
    of = "cluster_model_namespace:disagg"
    price = f"{of}_cost_per_million_tokens:rate1h{{{matchers}}}"
    joined = "* on (cluster, model_name, engine_namespace, phase) group_left ()"
    tokens = f"{joined} {of}_phase_tokens:rate1h{{{matchers}}}"
    by = "sum by (phase, currency)"
    return f"{by} ({price} {tokens}) / ({by} ({price} ^ 0 {tokens}) > 0)"


def _window(metric: str) -> str:
    return metric.rpartition(":")[2]
