"""What the rows of the Cluster dashboard ask, over the cluster and the models chosen."""

from __future__ import annotations

C = 'cluster=~"$cluster"'
M = f'{C}, model_name=~"$model"'
BOTH = ("prefill", "decode")
OBSERVED = (*BOTH, "idle", "unattributed")


def ratio(metric: str, matchers: str, by: str = "") -> str:
    """Prefill over decode of a recorded metric, where decode is above 0."""
    total = f"sum{f' by ({by})' if by else ''}"
    return (
        f'{total} ({metric}{{{matchers}, phase="prefill"}})'
        f' / ({total} ({metric}{{{matchers}, phase="decode"}}) > 0)'
    )


def share(metric: str, matchers: str, by: str = "") -> str:
    """Prefill's share of both phases, where there is any work."""
    total = f"sum{f' by ({by})' if by else ''}"
    return (
        f'{total} ({metric}{{{matchers}, phase="prefill"}})'
        f' / ({total} ({metric}{{{matchers}, phase=~"prefill|decode"}}) > 0)'
    )


def foreign_share(role: str, phase: str, window: str) -> str:
    """The share of a pool's work that is the other phase's."""
    metric = f"cluster_role_model_gpu:disagg_phase_gpu_seconds:{window}"
    return (
        f'sum ({metric}{{{C}, role="{role}", phase="{phase}"}})'
        f' / (sum ({metric}{{{C}, role="{role}", phase=~"prefill|decode"}}) > 0)'
    )
