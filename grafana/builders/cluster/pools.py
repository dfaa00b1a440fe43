"""Rows of the Cluster dashboard: each pool's work against its size, and why GPUs are idle."""

from __future__ import annotations

from typing import Any

from grafana.builders.cluster.queries import BOTH, C, enough, foreign_share
from grafana.builders.panels.board import Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.frame import HALF, THIRD
from grafana.builders.panels.limits import FOREIGN_SHARE, limit
from grafana.builders.panels.palette import BLUE, GREEN, ORANGE, PHASES, REASONS, ROLES, UNITS
from grafana.builders.panels.queries import Ask, each

POOLS = {"prefill pool": BLUE, "decode pool": ORANGE, "mixed pool": GREEN}


def pools() -> Row:
    """Each pool's work against its size."""
    work = "cluster_role_model_gpu:disagg_phase_gpu_seconds:rate1m"
    units = f'{C}, role=~"prefill|decode|mixed", unit=~"tensor|dram"'
    active = f"cluster_role_unit:disagg_activity:ratio_rate5m{{{units}}}"
    told = f"cluster_role_unit:disagg_activity_gpu_seconds:rate5m{{{units}}}"
    busy = "cluster:disagg_phase_gpu_seconds:rate1m"
    size = "cluster_role:disagg_role_gpus:sum"
    sizes = f'sum by (role) ({size}{{{C}, role=~"prefill|decode|mixed"}})'
    return "Pools", [
        lines(
            "Busy GPUs against pool size",
            "GPUs' worth of work by phase; dashed lines are the number of GPUs in each pool. "
            "Good: both phases below their dashed line with some room. A phase on its line has no "
            "room left: requests queue. A phase far below its line has GPUs to spare. Mixed "
            "engines do both: compare the sum of the phases with their line.",
            [*each(BOTH, f'sum ({busy}{{{C}, phase="%s"}})'), Ask(sizes, "{{role}} pool")],
            decimals=1,
            colours={**PHASES, **POOLS},
            dashed=".*pool$",
            none="no node of these clusters is scraped: see docs/prometheus.md",
        ),
        lines(
            "Pool occupancy",
            "Share of each pool's observed GPU time spent working. This is busy, not full: a "
            "decode GPU with one request is busy all the time. Good: pools alike, below 90 %. "
            "Bad: one near 100 % while another is low.",
            [
                Ask(
                    f'sum by (role) ({work}{{{C}, phase=~"prefill|decode"}})'
                    f' / (sum by (role) ({work}{{{C}, role!="none"}}) {enough("rate1m")})',
                    "{{role}}",
                )
            ],
            unit="percentunit",
            top=1,
            colours=ROLES,
            none="no engine here",
            runbooks=("DisaggPoolIdle",),
        ),
        lines(
            "Activity of the pools",
            "How hard tensor cores and memory (dram) work, 5 minutes. Good: prefill high on "
            "tensor (compute-bound), decode high on dram (bandwidth-bound). Bad: a pool that is "
            "busy in the panel beside and low here; it could do more in the same time. Only GPUs "
            "whose drivers report it.",
            [
                Ask(
                    f"sum by (role, unit) ({active} * {told})"
                    f" / (sum by (role, unit) ({told} and {active}) > 0)",
                    "{{role}} {{unit}}",
                )
            ],
            unit="percentunit",
            width=HALF,
            top=1,
            filled=0,
            colours=UNITS,
            none="the drivers do not report the activity of these GPUs",
        ),
        lines(
            "Work of the other phase",
            "Share of each pool's working time spent on the other phase. Good: both at 0, as a "
            "request's first token belongs to prefill. Prefill on decode GPUs (leakage) makes "
            "running streams stutter; decode on prefill GPUs makes prompts wait.",
            [
                Ask(foreign_share("decode", "prefill", "rate1m"), "prefill in the decode pool"),
                Ask(foreign_share("prefill", "decode", "rate1m"), "decode in the prefill pool"),
            ],
            unit="percentunit",
            decimals=1,
            width=HALF,
            at_least=0.05,
            colours={"prefill in the decode pool": BLUE, "decode in the prefill pool": ORANGE},
            none="no pool of a single phase has work",
            steps=limit(FOREIGN_SHARE),
            runbooks=("DisaggDecodeLeakage", "DisaggPrefillGenerating"),
        ),
    ]


def _idle_of(
    title: str,
    role: str,
    more: str,
    *,
    none: str,
    stacked: bool = True,
    runbook: str = "DisaggPoolIdle",
) -> Any:
    idle = f"cluster_role_reason:disagg_idle_gpu_seconds:rate5m{{{C}, role{role}}}"
    # Only reasons that occurred: a legend full of zeros is no help.
    seen = f"sum by (reason) (max_over_time({idle}[$__range])) > 0"
    by_reason = f"sum by (reason) ({idle}) and {seen}" if stacked else f"sum by (reason) ({idle})"
    return lines(
        title,
        f"GPUs' worth of idle time by reason, 5 minutes. {more}",
        [Ask(by_reason, "{{reason}}")],
        decimals=2,
        width=THIRD,
        at_least=1,
        stacked=stacked,
        colours=REASONS,
        none=none,
        runbooks=(runbook,),
    )


def idle() -> Row:
    """Why GPUs are idle, pool by pool."""
    return "Idle GPUs by role and reason", [
        _idle_of(
            "Idle in the prefill pool",
            '="prefill"',
            "`no_request` is spare capacity. `host_gap` is the pause between steps while requests "
            "are there: the host is too slow. Bad: much idle time here while the decode pool is "
            "full.",
            none="no prefill pool, or it is never idle",
        ),
        _idle_of(
            "Idle in the decode pool",
            '="decode"',
            "`kv_wait` is bad: requests are there, but their KV has not arrived, so prefill or "
            "the network holds decode up. `no_request` is spare capacity.",
            none="no decode pool, or it is never idle",
            runbook="DisaggPoolStarving",
        ),
        _idle_of(
            "Idle outside both pools",
            '!~"prefill|decode"',
            "`no_request` and `host_gap` are from mixed engines; `starting` ends within minutes; "
            "a lasting `no_engine` is a GPU that is paid for and unused.",
            none="every GPU is in the prefill or the decode pool, or no GPU is visible",
            stacked=False,
            runbook="DisaggGpuUnassigned",
        ),
    ]
