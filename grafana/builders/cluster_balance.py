"""Rows of the Cluster dashboard: the split of GPU time, now and over time."""

from __future__ import annotations

from grafana.builders.board import Row
from grafana.builders.cluster_queries import BOTH, C, foreign_share, ratio, share
from grafana.builders.palette import PHASES, ROLES
from grafana.builders.panels import Ask, each, lines, numbers


def now() -> Row:
    """The figures of this moment; no header."""
    fast, slow = "cluster:disagg_busy_gpus:sum", "cluster:disagg_phase_gpu_seconds:rate5m"
    pools, others = "cluster_role:disagg_role_gpus:sum", f'{C}, role!~"prefill|decode"'
    return "", [
        numbers(
            "P:D of this moment",
            "GPU time in prefill over GPU time in decode within the last seconds; provisional. It "
            "swings with each burst: judge the split by the 5-minute figure beside it. Empty while "
            "nothing decodes.",
            [Ask(ratio(fast, C))],
            decimals=2,
        ),
        numbers(
            "P:D, 5 minutes",
            "GPU-seconds of prefill over those of decode, all models. Good: near the ratio of the "
            "pools' sizes (here to the right), so that both pools are busy alike. Far above it "
            "prefill is short of GPUs, far below it decode is.",
            [Ask(ratio(slow, C))],
            decimals=2,
        ),
        numbers(
            "Prefill share, 5 minutes",
            "Prefill's part of all working GPU time, from 0 (all decode) to 1 (all prefill). "
            "Unlike the ratio it exists while one phase rests.",
            [Ask(share(slow, C))],
            unit="percentunit",
            decimals=0,
        ),
        numbers(
            "Busy GPUs now",
            "GPUs' worth of work in the last seconds, by phase. Bad: one of them stands at the "
            "size of its pool while the other pool rests.",
            each(BOTH, f'sum ({fast}{{{C}, phase="%s"}})'),
            decimals=1,
            colours=PHASES,
        ),
        numbers(
            "GPUs by role",
            "How many GPUs each pool has now. `none` is a GPU without an engine that is ready: "
            "paid for and of no use.",
            [
                *each(BOTH, f'sum ({pools}{{{C}, role="%s"}})'),
                Ask(f"sum by (role) ({pools}{{{others}}}) > 0", "{{role}}"),
            ],
            decimals=0,
            colours=ROLES,
        ),
        numbers(
            "Decode leakage, 5 min",
            "Share of the decode pool's working time that was prefill. Good: 0 to 1 %. More means "
            "that prompts are computed on decode GPUs: KV transfers fail or requests come past the "
            "prefill pool, and every running stream stutters.",
            [Ask(foreign_share("decode", "prefill", "rate5m"))],
            unit="percentunit",
            decimals=1,
            steps=((None, "green"), (0.01, "yellow"), (0.05, "red")),
            none="no decode work",
        ),
    ]


def balance() -> Row:
    """The ratio and the share over time, against those of the pools."""
    ratios = "cluster:disagg_prefill_decode_ratio"
    shares = "cluster:disagg_prefill_share"
    pools = "cluster_role:disagg_role_gpus:sum"
    of_pools = (
        f'sum by (cluster) ({pools}{{{C}, role="prefill"}})'
        f' / (sum by (cluster) ({pools}{{{C}, role=~"prefill|decode"}}) > 0)'
    )
    return "Balance", [
        lines(
            "Prefill : decode, GPU time",
            "GPU-seconds of prefill over GPU-seconds of decode, on an axis where twice and half "
            "are equally far from 1. Good: steady, near the dashed ratio of the pools. Bad: a "
            "lasting distance from it, which is a split that no longer fits the load.",
            [
                Ask(f"{ratios}:rate1m{{{C}}}", "{{cluster}} 1 min"),
                Ask(f"{ratios}:rate5m{{{C}}}", "{{cluster}} 5 min"),
                Ask(
                    f'sum by (cluster) ({pools}{{{C}, role="prefill"}})'
                    f' / (sum by (cluster) ({pools}{{{C}, role="decode"}}) > 0)',
                    "{{cluster}} pools",
                ),
            ],
            decimals=2,
            filled=0,
            log=2,
            dashed=".*pools$",
        ),
        lines(
            "Prefill share of GPU time",
            "The same split as a share. Good: near the dashed share that the prefill pool has of "
            "the GPUs. Above it prefill works harder than decode, below it decode does.",
            [
                Ask(f"{shares}:rate1m{{{C}}}", "{{cluster}} 1 min"),
                Ask(f"{shares}:rate5m{{{C}}}", "{{cluster}} 5 min"),
                Ask(of_pools, "{{cluster}} pools"),
            ],
            unit="percentunit",
            decimals=0,
            filled=0,
            top=1,
            dashed=".*pools$",
        ),
    ]
