"""The figures of this moment at the head of the Cluster dashboard."""

from __future__ import annotations

from grafana.builders.cluster.queries import (
    BOTH,
    C,
    foreign_share,
    ratio,
    ratio_of_this_moment,
    share,
)
from grafana.builders.panels.annotations import firing
from grafana.builders.panels.board import Row
from grafana.builders.panels.charts import numbers
from grafana.builders.panels.palette import FULLNESS, PHASES, ROLES
from grafana.builders.panels.queries import Ask, each


def time() -> Row:
    """How GPU time is split; no header."""
    fast, slow = "cluster:disagg_busy_gpus:sum", "cluster:disagg_phase_gpu_seconds:rate5m"
    pools, others = "cluster_role:disagg_role_gpus:sum", f'{C}, role!~"prefill|decode"'
    return "", [
        numbers(
            "P:D now",
            "GPU time in prefill over GPU time in decode within the last seconds; provisional. It "
            "swings with each burst: judge the split by the 5-minute figure beside it. Empty while "
            "nothing decodes, or less than a GPU-second was worked.",
            [Ask(ratio_of_this_moment())],
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
            "Alerts now",
            "How many of our alerts fire now; the last row of this page names them, with a link to "
            "what to do. Good: no page, no ticket.",
            [
                Ask(f'count (ALERTS{{{firing(C)}, severity=~"{words}"}}) or vector(0)', name)
                for name, words in (("page", "page|critical"), ("ticket", "ticket|warning"))
            ],
            decimals=0,
            steps=((None, "green"), (1, "red")),
        ),
    ]


def pools() -> Row:
    """How full the pools are, how long users wait, and what is wasted; no header."""
    used = "cluster_role:disagg_capacity_used:ratio"
    return "", [
        numbers(
            "Capacity used",
            "How full each pool is: what it serves over what it could serve within its latency "
            "target. Full, not busy. Good: below 70 %. From 95 % on requests wait. Of several "
            "clusters the fullest; no value until limits are learned.",
            each(BOTH, f'max ({used}{{{C}, role="%s"}})'),
            unit="percentunit",
            decimals=0,
            steps=FULLNESS,
            none="not learned",
            runbooks=("DisaggPoolFull", "DisaggPoolFilling"),
        ),
        numbers(
            "Imbalance (log2)",
            "How many times prefill is fuller than decode, as a power of two: 0 is balanced, 1 "
            "means twice as full, -1 half. Beyond 1 either way GPUs of the emptier pool would "
            "serve more in the other, if the fuller one is above 50 %. Of several clusters the "
            "furthest from 0.",
            [
                Ask(
                    f"topk (1, abs(cluster:disagg_imbalance:log2{{{C}}}))"
                    f" * sgn(cluster:disagg_imbalance:log2{{{C}}})"
                )
            ],
            decimals=1,
            steps=((None, "orange"), (-1, "green"), (1, "blue")),
            none="not learned",
            runbooks=("DisaggImbalance",),
        ),
        numbers(
            "First token, p95",
            "Time to first token that 95 of 100 requests keep, 5 minutes, of the slowest cluster. "
            "The alerts' target is 0.5 s. The parts it is made of are below.",
            [Ask(f"max (cluster:disagg_time_to_first_token_p95:rate5m{{{C}}})")],
            unit="s",
            steps=((None, "green"), (0.5, "red")),
            none="no request",
            runbooks=("DisaggTtftBurnFast", "DisaggTtftBurnSlow"),
        ),
        numbers(
            "Next token, p95",
            "Time between two tokens of a request that 95 of 100 keep, 5 minutes, of the slowest "
            "cluster. The alerts' target is 0.05 s.",
            [Ask(f"max (cluster:disagg_inter_token_latency_p95:rate5m{{{C}}})")],
            unit="s",
            steps=((None, "green"), (0.05, "red")),
            none="no request",
            runbooks=("DisaggItlBurnFast", "DisaggItlBurnSlow"),
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
            runbooks=("DisaggDecodeLeakage",),
        ),
        numbers(
            "Cost of idle GPUs, last hour",
            "What GPU time without work has cost in the last hour, in each currency that nodes "
            "name (`gpu_price` of the node file). Time without a daemon is not in it.",
            [
                Ask(
                    "sum by (currency)"
                    f' (cluster_model_namespace:disagg_cost_per_hour:rate1h{{{C}, phase="idle"}})',
                    "{{currency}}",
                )
            ],
            decimals=2,
            none="no price",
        ),
    ]
