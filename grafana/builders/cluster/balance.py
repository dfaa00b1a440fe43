"""Rows of the Cluster dashboard: the split of GPU time, and how full the pools are, over time."""

from __future__ import annotations

from grafana.builders.cluster.queries import C, ratio, ratio_of_this_moment, share
from grafana.builders.panels.board import Row
from grafana.builders.panels.charts import lines, numbers
from grafana.builders.panels.frame import THIRD
from grafana.builders.panels.limits import FULLNESS, IMBALANCE_LOG2
from grafana.builders.panels.palette import ROLES, SPLITS
from grafana.builders.panels.queries import Ask


def split() -> Row:
    """GPU time by phase: the ratio now and over time, of time and of utilisation, and the share."""
    ratios = "cluster:disagg_prefill_decode_ratio"
    shares = "cluster:disagg_prefill_share"
    slow = "cluster:disagg_phase_gpu_seconds:rate5m"
    pools = "cluster_role:disagg_role_gpus:sum"
    prefill = f'sum by (cluster) ({pools}{{{C}, role="prefill"}})'
    return "The split of GPU time: what it went to, not which pool is short", [
        numbers(
            "P:D now",
            "GPU time in prefill over GPU time in decode within the last seconds; provisional. It "
            "swings with each burst: judge the split by the 5-minute figure beside it. Empty while "
            "nothing decodes, or less than a GPU-second was worked.",
            [Ask(ratio_of_this_moment())],
            decimals=2,
            width=THIRD,
            none="nothing decodes",
        ),
        numbers(
            "P:D, 5 minutes",
            "GPU-seconds of prefill over those of decode, all models: what the load costs in each "
            "phase, for showback and for the sizes of pools to come. It does not say which pool is "
            "short: busy is not full, and a decode GPU with one request is busy all the time. That "
            "is in the verdicts above.",
            [Ask(ratio(slow, C))],
            decimals=2,
            width=THIRD,
            none="nothing decodes",
        ),
        numbers(
            "Prefill share, 5 minutes",
            "Prefill's part of all working GPU time, from 0 (all decode) to 1 (all prefill). "
            "Unlike the ratio it exists while one phase rests.",
            [Ask(share(slow, C))],
            unit="percentunit",
            decimals=0,
            width=THIRD,
            none="no work",
        ),
        lines(
            "Prefill : decode, GPU time",
            "GPU-seconds of prefill over GPU-seconds of decode, on an axis where twice and half "
            "are equally far from 1. Good: steady, near the dashed ratio of the pools. Bad: a "
            "lasting distance from it, which is a split that no longer fits the load.",
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
            "How busy the multiprocessors of the prefill pool are over how busy the memory of the "
            "decode pool is, 5 minutes: each pool by the part that binds it. Read it beside the "
            "ratio of time: where time is balanced and this is not, one pool's GPU time is spent "
            "worse than the other's. Absent where drivers do not report it.",
            [Ask(f"cluster:disagg_utilisation_ratio:ratio_rate5m{{{C}}} > 0", "{{cluster}} 5 min")],
            decimals=2,
            width=THIRD,
            filled=0,
            at_least=1,
            log=2,
            none="not a prefill and a decode pool, or drivers do not tell activity",
        ),
        lines(
            "Prefill share of GPU time",
            "The split of time as a share. Good: near the dashed share that the prefill pool has "
            "of the GPUs. Above it prefill works harder than decode, below it decode does.",
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
    """What decisions are taken by: capacity used, pool against pool."""
    return "How full the pools are", [
        lines(
            "Capacity used by pool",
            "What each pool serves over what it could serve within its latency target. The yellow "
            "line is where a pool may soon be full, the red one where it is. Good: both pools "
            "alike, below yellow. The pool that is much fuller lacks GPUs. Of several clusters the "
            "fullest.",
            [Ask(f"max by (role) (cluster_role:disagg_capacity_used:ratio{{{C}}})", "{{role}}")],
            unit="percentunit",
            width=THIRD,
            at_least=1,
            steps=FULLNESS,
            colours=ROLES,
            none="no limit is learned yet: it takes load",
            runbooks=(
                "DisaggPoolFull",
                "DisaggPoolAtCapacity",
                "DisaggPoolFilling",
                "DisaggPoolVanished",
            ),
        ),
        lines(
            "Imbalance (log2 of prefill over decode)",
            "0 is balanced; 1 means that prefill is twice as full as decode, -1 that decode is. "
            "Good: between the dashed lines. Outside, and one pool above 50 %: move GPUs to the "
            "fuller pool. No value while limits are not learned or a pool is empty.",
            [Ask(f"cluster:disagg_imbalance:log2{{{C}}}", "{{cluster}}")],
            decimals=1,
            width=THIRD,
            filled=0,
            both_sides=2,
            steps=((None, "orange"), (-IMBALANCE_LOG2, "orange"), (IMBALANCE_LOG2, "blue")),
            none="no limits learned, or not a prefill and a decode pool",
            runbooks=("DisaggImbalance",),
        ),
        lines(
            "GPUs whose capacity is known",
            "Share of each pool's GPUs whose engines have learned what they can serve. Alerts on "
            "capacity wait for half. Good: 100 % some minutes after a start under load. An engine "
            "that never saw a large load stays unknown. Of several clusters the least known.",
            [Ask(f"min by (role) (cluster_role:disagg_capacity_known:ratio{{{C}}})", "{{role}}")],
            unit="percentunit",
            width=THIRD,
            top=1,
            filled=0,
            colours=ROLES,
            none="no engine here",
        ),
    ]
