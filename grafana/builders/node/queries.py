"""Selectors and expressions of the Node dashboard's queries: the chosen node and GPUs."""

from __future__ import annotations

from grafana.builders.panels.palette import PHASES

N = 'cluster=~"$cluster", node="$node"'
G = f'{N}, gpu=~"$gpu"'
_INDEX = f"topk by (gpu) (1, max by (gpu, index) (disagg_gpu_info{{{G}}}))"
SHORT = f'label_replace({_INDEX}, "end", "$1", "gpu", ".*(.{{4}})")'
"""A GPU's index and the end of its UUID; slices of one GPU share the index."""
BOTH = ("prefill", "decode")
OBSERVED = (*BOTH, "idle", "unattributed")
NAMED = "GPU {{index}} …{{end}}"
BY_ROLE = "{{role}} {{index}} …{{end}}"
_ROLE = (
    f"topk by (gpu) (1, max by (gpu, role) (disagg_gpu_assignment_info{{{G}}}))"
    f' or on (gpu) label_replace(max by (gpu) (disagg_gpu_info{{{G}}}), "role", "none", "", "")'
)


def named(expr: str) -> str:
    """A value per GPU, labelled with the GPU's short name."""
    return f"sum by (index, end) (({expr}) * on (gpu) group_left (index, end) {SHORT})"


def by_role(expr: str) -> str:
    """A value per GPU, labelled with the role of its engine and the GPU's short name."""
    short = f"on (gpu) group_left (index, end) {SHORT}"
    return f"sum by (role, index, end) (({expr}) * {short} * on (gpu) group_left (role) ({_ROLE}))"


def rate(metric: str, matchers: str, window: str = "$__rate_interval") -> str:
    """The rate of a counter; windows follow the width of the panel."""
    return f"rate({metric}{{{matchers}}}[{window}])"


def in_phase(phase: str) -> str:
    """Matchers for one phase of the chosen GPUs."""
    return f'{G}, phase="{phase}"'


def mean(metric: str, sensor: str = "") -> str:
    """The mean of a gauge's samples in each interval of the panel, per GPU."""
    one = f'{G}, sensor="{sensor}"' if sensor else G
    return by_role(f"max by (gpu) (avg_over_time({metric}{{{one}}}[$__rate_interval]))")


def main_use() -> str:
    """The use that took most of each GPU's time: 1 for the first of `PHASES`, and so on."""
    uses = (
        f"sum by (gpu, phase) ({rate('disagg_gpu_phase_seconds_total', G)})"
        f" or label_replace(sum by (gpu) ({rate('disagg_gpu_unobserved_seconds_total', G)}),"
        ' "phase", "unobserved", "", "")'
    )
    codes = " or ".join(
        f'label_replace(vector({number}), "phase", "{phase}", "", "")'
        for number, phase in enumerate(PHASES, start=1)
    )
    winner = f"({uses}) >= on (gpu) group_left () max by (gpu) ({uses})"
    code = f"max by (gpu) (({winner}) * 0 + on (phase) group_left () ({codes}))"
    return named(code)
