"""Rows of the Cluster dashboard: the split of GPU time, and how full the pools are."""

from __future__ import annotations

from grafana.builders.cluster.queries import C, ratio, ratio_of_this_moment, share
from grafana.builders.panels.board import Row
from grafana.builders.panels.charts import lines, numbers
from grafana.builders.panels.frame import THIRD
from grafana.builders.panels.limits import FULLNESS, IMBALANCE_LOG2
from grafana.builders.panels.palette import ROLES, SPLITS
from grafana.builders.panels.queries import Ask


def split() -> Row:
    """Prefill : decode ratio of GPU time (now and over time) and of utilisation; prefill share."""
    ratios = "cluster:disagg_prefill_decode_ratio"
    shares = "cluster:disagg_prefill_share"
    slow = "cluster:disagg_phase_gpu_seconds:rate5m"
    pools = "cluster_role:disagg_role_gpus:sum"
    prefill = f'sum by (cluster) ({pools}{{{C}, role="prefill"}})'
    return "The split of GPU time: what it went to, not which pool is short", [
        numbers(
            "P:D now",
            "GPU time in prefill over GPU time in decode, over the last seconds; provisional. It "
            "swings with each burst: judge the split by the 5-minute figure beside it. Empty "
            "while nothing decodes, or with less than one GPU-second of work.",
            [Ask(ratio_of_this_moment())],
            decimals=2,
            width=THIRD,
            none="no decode work",
        ),
        numbers(
            "P:D, 5 minutes",
            "GPU-seconds of prefill over GPU-seconds of decode, all models: what the load costs "
            "in each phase, for showback and for sizing pools. It does not say which pool is "
            "short: busy is not full, and a decode GPU with one request is busy all the time. See "
            "the verdicts above for that.",
            [Ask(ratio(slow, C))],
            decimals=2,
            width=THIRD,
            none="no decode work",
        ),
        numbers(
            "Prefill share, 5 minutes",
            "Prefill's share of all working GPU time, from 0 (all decode) to 1 (all prefill). "
            "Unlike the ratio, it is defined while one phase is idle.",
            [Ask(share(slow, C))],
            unit="percentunit",
            decimals=0,
            width=THIRD,
            none="no work",
        ),
        lines(
            "Prefill : decode, GPU time",
            "GPU-seconds of prefill over GPU-seconds of decode, on an axis where twice and half "
            "are equally far from 1. Good: steady, near the dashed ratio of the pool sizes. Bad: "
            "a lasting distance from it; the split no longer fits the load.",
            [
                Ask(f"{ratios}:ratio_rate1m{{{C}}} > 0", "{{cluster}} 1 min"),
                Ask(f"{ratios}:ratio_rate5m{{{C}}} > 0", "{{cluster}} 5 min"),
                Ask(
                    f'{prefill} / (sum by (cluster) ({pools}{{{C}, role="decode"}}) > 0) > 0',
                    "{{cluster}} pools",
                ),
            ],
            decimals=2,
            width=THIRD,
            filled=0,
            log=2,
            tones=SPLITS,
            dashed=".*pools$",
            none="one phase does no work, so there is no ratio to draw",
        ),
        lines(
            "Prefill : decode, utilisation",
            "How busy the prefill pool's multiprocessors are over how busy the decode pool's "
            "memory is, 5 minutes: each pool by the resource that bounds it. Compare with the "
            "ratio of GPU time: if time is balanced and this is not, one pool uses its GPU time "
            "less well than the other. Absent where drivers do not report activity.",
            [Ask(f"cluster:disagg_utilisation_ratio:ratio_rate5m{{{C}}} > 0", "{{cluster}} 5 min")],
            decimals=2,
            width=THIRD,
            filled=0,
            at_least=1,
            log=2,
            none="no prefill or no decode pool, or the drivers do not report activity",
        ),
        lines(
            "Prefill share of GPU time",
            "The split of GPU time as a share. Good: near the dashed line, the prefill pool's "
            "share of the GPUs. Above it prefill works harder than decode, below it decode does.",
            [
                Ask(f"{shares}:ratio_rate1m{{{C}}}", "{{cluster}} 1 min"),
                Ask(f"{shares}:ratio_rate5m{{{C}}}", "{{cluster}} 5 min"),
                Ask(
                    f'{prefill} / (sum by (cluster) ({pools}{{{C}, role=~"prefill|decode"}}) > 0)',
                    "{{cluster}} pools",
                ),
            ],
            unit="percentunit",
            width=THIRD,
            filled=0,
            top=1,
            tones=SPLITS,
            dashed=".*pools$",
            none="no work",
        ),
    ]


def fullness() -> Row:
    """Capacity used, pool against pool: the basis of every decision."""
    return "How full the pools are", [
        lines(
            "Capacity used by pool",
            "Load that each pool serves over what it could serve within its latency target. From "
            "the yellow line on a pool may soon be full; from the red line on it is full. Good: "
            "both pools alike, below yellow. A much fuller pool lacks GPUs. With several "
            "clusters, the fullest one.",
            [Ask(f"max by (role) (cluster_role:disagg_capacity_used:ratio{{{C}}})", "{{role}}")],
            unit="percentunit",
            width=THIRD,
            at_least=1,
            steps=FULLNESS,
            colours=ROLES,
            none="no capacity limit is known yet: engines need some minutes of load",
            runbooks=(
                "DisaggPoolFull",
                "DisaggPoolAtCapacity",
                "DisaggPoolFilling",
                "DisaggPoolVanished",
                "DisaggPoolReduced",
            ),
        ),
        lines(
            "Imbalance (log2 of prefill over decode)",
            "0: balanced; 1: prefill is twice as full as decode; -1: decode is twice as full as "
            "prefill. Good: between the dashed lines. Outside, with one pool above 50 %: move "
            "GPUs to the fuller pool. No value until limits are learned, or while a pool is "
            "empty.",
            [Ask(f"cluster:disagg_imbalance:log2{{{C}}}", "{{cluster}}")],
            decimals=1,
            width=THIRD,
            filled=0,
            both_sides=2,
            steps=((None, "orange"), (-IMBALANCE_LOG2, "orange"), (IMBALANCE_LOG2, "blue")),
            none="no capacity limits are known yet, or there is no prefill or no decode pool",
            runbooks=("DisaggImbalance",),
        ),
        lines(
            "GPUs whose capacity is known",
            "Share of each pool's GPUs whose engines have learned their limits. Capacity alerts "
            "need at least half. Good: 100 % a few minutes after a start under load. An engine "
            "that never had a high load stays unknown. With several clusters, the least known "
            "one.",
            [Ask(f"min by (role) (cluster_role:disagg_capacity_known:ratio{{{C}}})", "{{role}}")],
            unit="percentunit",
            width=THIRD,
            top=1,
            filled=0,
            colours=ROLES,
            none="no engine here",
        ),
    ]
