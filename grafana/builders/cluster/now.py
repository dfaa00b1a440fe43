"""The first screen of the Cluster dashboard: where GPU time goes, and what to do about it."""

from __future__ import annotations

from grafana.builders.cluster.queries import BOTH, OBSERVED, C, foreign_share, price_of_tokens
from grafana.builders.panels.annotations import firing
from grafana.builders.panels.board import ENGINE_LINK, MODEL_LINK, NODE_LINK, Row
from grafana.builders.panels.charts import lines, numbers
from grafana.builders.panels.frame import FULL
from grafana.builders.panels.limits import (
    FOREIGN_SHARE,
    FULLNESS,
    ITL_SECONDS,
    TTFT_SECONDS,
    limit,
)
from grafana.builders.panels.palette import PHASES, ROLES, VERDICTS
from grafana.builders.panels.queries import Ask, each
from grafana.builders.panels.tables import Column, coloured_words, rows

from disagg_cluster.planner.diagnose.verdict.values import Cause

_MODEL = "cluster, engine_namespace, model_name"
_CAUSES = tuple((cause.value, cause.value.replace("_", " "), "text") for cause in Cause)
"""Causes, worded as in the alert on them."""


def verdicts() -> Row:
    """What all GPUs do, and a verdict on each model; no header."""
    used = "cluster_role_model_namespace:disagg_capacity_used:ratio"
    seconds = "cluster_role_model_gpu:disagg_phase_gpu_seconds:rate5m"
    planned = f'{C}, horizon="1h", quantile="0.9"'
    return "", [
        lines(
            "What the GPUs do",
            "All GPUs by what they do, 5 minutes. Good: mostly blue and orange. Grey waits for "
            "requests or KV (reasons below). Yellow was busy with work that no engine reported, "
            "violet was not observed: both should be thin.",
            [
                *each(OBSERVED, f'sum ({seconds}{{{C}, phase="%s"}})'),
                Ask(f"sum (rate(disagg_node_unobserved_seconds_total{{{C}}}[5m]))", "unobserved"),
            ],
            decimals=1,
            width=FULL,
            height=6,
            stacked=True,
            colours=PHASES,
            none="no node of these clusters is scraped: see docs/prometheus.md",
        ),
        rows(
            "Models",
            "A verdict on each model in words, from how full its pools are within their latency "
            "targets, never from how busy they are: a decode GPU with one request is busy all the "
            "time. *Short of GPUs* is what the planner finds missing in an hour to meet them in "
            "90 % of the futures; *Held back by* is the diagnosis' costliest finding. Both are "
            "empty without a planner. No row: nothing is learned about its engines yet. Click a "
            "model, engine or node.",
            [
                Ask(
                    f"max by ({_MODEL}, verdict) (cluster_model_namespace:disagg_fullest_pool:ratio"
                    f"{{{C}}})"
                ),
                Ask(f'sum by ({_MODEL}) ({used}{{{C}, role="prefill"}})'),
                Ask(f'sum by ({_MODEL}) ({used}{{{C}, role="decode"}})'),
                Ask(f'sum by ({_MODEL}) ({used}{{{C}, role="mixed"}})'),
                Ask(
                    f"sum by ({_MODEL}) (max by ({_MODEL}, gpu_name, role)"
                    f" (disagg_plan_shortfall_gpus{{{planned}}}))"
                ),
                Ask(
                    f"topk by ({_MODEL}) (1, max by ({_MODEL}, cause, node, engine)"
                    f" (disagg_bottleneck_ttft_cost_seconds{{{C}}}))"
                ),
            ],
            [
                Column("cluster", "Cluster", width=90),
                Column("model_name", "Model", link=MODEL_LINK),
                Column("verdict", "Verdict", texts=coloured_words(VERDICTS), width=270),
                Column("B", "Prefill used", bar="green", steps=FULLNESS, width=108),
                Column("C", "Decode used", bar="green", steps=FULLNESS, width=108),
                Column("D", "Mixed used", bar="green", steps=FULLNESS, width=108),
                Column("E", "Short of GPUs", decimals=0, width=105),
                Column("cause", "Held back by", texts=_CAUSES, width=145),
                Column("engine", "Engine", link=ENGINE_LINK, width=105),
                Column("node", "Node", link=NODE_LINK, width=95),
                Column("F", "TTFT cost", unit="s", decimals=2, width=85),
            ],
            sort="TTFT cost",
            height=6,
            none="no capacity is known yet: engines need some minutes of load",
            runbooks=("DisaggImbalance", "DisaggPoolFull", "DisaggPoolFilling"),
        ),
    ]


def figures() -> Row:
    """Fullest pool and engine, users' latency, cost, firing alerts; no header."""
    pool = "cluster_role_model_namespace:disagg_capacity_used:ratio"
    first = "cluster_model_namespace:disagg_request_time_to_first_token_seconds:p95_rate5m"
    return "", [
        numbers(
            "Fullest pool",
            "The model and role closest to what they can serve within their latency targets. "
            "Good: below 70 %. From 95 % on, requests wait. No value until limits are learned.",
            [Ask(f"topk (1, {pool}{{{C}}})", "{{model_name}} {{role}}")],
            unit="percentunit",
            decimals=0,
            steps=FULLNESS,
            none="not known yet",
            runbooks=("DisaggPoolFull", "DisaggPoolFilling"),
        ),
        numbers(
            "Fullest engine",
            "The engine closest to what it can serve within its latency targets, and its node. If "
            "it is full while others have room, check the routing. No value until limits are "
            "learned.",
            [Ask(f"topk (1, engine:disagg_capacity_used:top5{{{C}}})", "{{node}} {{engine}}")],
            unit="percentunit",
            decimals=0,
            steps=FULLNESS,
            none="not known yet",
        ),
        numbers(
            "Users' TTFT, p95",
            "95th percentile of the time to first token (TTFT), 5 minutes, of the slowest model; "
            "end to end as far as it is observed. The alerts' target is 0.5 s.",
            [Ask(f"topk (1, {first}{{{C}}})", "{{model_name}}")],
            unit="s",
            steps=limit(TTFT_SECONDS, below="green"),
            none="not reported",
            runbooks=("DisaggTtftBurnFast", "DisaggTtftBurnSlow"),
        ),
        numbers(
            "ITL, p95",
            "95th percentile of the time between two tokens of a request (ITL), 5 minutes, of the "
            "slowest cluster. The alerts' target is 0.05 s.",
            [Ask(f"max (cluster:disagg_inter_token_latency_seconds:p95_rate5m{{{C}}})")],
            unit="s",
            steps=limit(ITL_SECONDS, below="green"),
            width=3,
            none="no requests",
            runbooks=("DisaggItlBurnFast", "DisaggItlBurnSlow"),
        ),
        numbers(
            "Cost an hour and a million tokens",
            "Cost of an hour of all GPU time at the pace of the last, idle included, and cost per "
            "million tokens of each phase, without idle time. Needs `gpu_price` in the node file.",
            [
                Ask(
                    "sum by (currency)"
                    f" (cluster_model_namespace:disagg_cost_per_hour:rate1h{{{C}}})",
                    "{{currency}} an hour",
                ),
                Ask(price_of_tokens(C), "{{phase}} {{currency}} / M"),
            ],
            width=6,
            none="gpu_price not set",
        ),
        numbers(
            "Alerts now",
            "How many disagg-node alerts fire now; the last row of this page lists them with "
            "links to runbooks. Good: no page, no ticket. Empty: our rules record nothing, so "
            "nothing can fire.",
            [
                Ask(
                    f'count (ALERTS{{{firing(C)}, severity=~"{words}"}})'
                    f" or 0 * count (cluster:disagg_gpus:sum{{{C}}})",
                    name,
                )
                for name, words in (("page", "page|critical"), ("ticket", "ticket|warning"))
            ],
            width=3,
            decimals=0,
            steps=((None, "green"), (1, "red")),
            none="no alert rules, or no nodes",
        ),
    ]


def waste() -> Row:
    """GPUs that each pool has and uses, decode leakage, and the cost of idle GPUs."""
    fast, pools = "cluster:disagg_busy_gpus:sum", "cluster_role:disagg_role_gpus:sum"
    others = f'{C}, role!~"prefill|decode"'
    return "GPUs, and what is lost", [
        numbers(
            "GPUs by role",
            "How many GPUs each pool has now. `none`: a GPU without a ready engine, paid for but "
            "unused.",
            [
                *each(BOTH, f'sum ({pools}{{{C}, role="%s"}})'),
                Ask(f"sum by (role) ({pools}{{{others}}}) > 0", "{{role}}"),
            ],
            decimals=0,
            width=6,
            none="no node is scraped",
            colours=ROLES,
        ),
        numbers(
            "Busy GPUs now",
            "GPUs' worth of work over the last seconds, by phase. Bad: one phase is at the size "
            "of its pool while the other pool is idle.",
            each(BOTH, f'sum ({fast}{{{C}, phase="%s"}})'),
            decimals=1,
            width=6,
            none="no node is scraped",
            colours=PHASES,
        ),
        numbers(
            "Decode leakage, 5 min",
            "Share of the decode pool's working time spent on prefill. Good: 0 to 1 %. More means "
            "that prompts are computed on decode GPUs, because KV transfers fail or requests "
            "bypass the prefill pool; every running stream then stutters.",
            [Ask(foreign_share("decode", "prefill", "rate5m"))],
            unit="percentunit",
            decimals=1,
            width=6,
            steps=((None, "green"), (0.01, "yellow"), (FOREIGN_SHARE, "red")),
            none="no decode pool has work",
            runbooks=("DisaggDecodeLeakage",),
        ),
        numbers(
            "Cost of idle GPUs, an hour",
            "Cost of an hour of GPU time without work, at the pace of the last, in each currency "
            "set by nodes (`gpu_price` in the node file). Excludes time without a daemon.",
            [
                Ask(
                    "sum by (currency)"
                    f' (cluster_model_namespace:disagg_cost_per_hour:rate1h{{{C}, phase="idle"}})',
                    "{{currency}}",
                )
            ],
            decimals=2,
            width=6,
            none="gpu_price not set",
        ),
    ]
