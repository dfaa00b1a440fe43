"""Fleet: every cluster behind one Prometheus or central store, one row each."""

from __future__ import annotations

from typing import Any

from grafana.builders.panels import annotations as marks
from grafana.builders.panels.alerts import alerts
from grafana.builders.panels.annotations import firing
from grafana.builders.panels.board import CLUSTER_LINK, RECORDED_CLUSTER, Row, board
from grafana.builders.panels.charts import lines
from grafana.builders.panels.limits import FULLNESS, TTFT_SECONDS, limit
from grafana.builders.panels.palette import BLUE, VERDICTS
from grafana.builders.panels.queries import Ask
from grafana.builders.panels.tables import Column, coloured_words, rows

C = 'cluster=~"$cluster"'
_USED = "cluster_role_model_namespace:disagg_capacity_used:ratio"
_TOKENS = "cluster_model_namespace:disagg_phase_tokens:rate1m"
_FIRST = "cluster:disagg_request_time_to_first_token_seconds:p95_rate5m"
_BETWEEN = "cluster:disagg_inter_token_latency_seconds:p95_rate5m"
_COST = "cluster_model_namespace:disagg_cost_per_hour:rate1h"


def dashboard() -> dict[str, Any]:
    """The dashboard for several clusters."""
    return board(
        "fleet",
        "disagg-node / Fleet",
        "One row per cluster: the verdict on its fullest model, its GPUs, its users' latency, its "
        "cost and its paging alerts.",
        variables=[RECORDED_CLUSTER],
        rows=[_clusters(), _over_time()],
        folded=[alerts(C)],
        marks=[marks.alerts(C), marks.pool_moves(C), marks.restarts(C, shown=False)],
    )


def _clusters() -> Row:
    pages = f'ALERTS{{{firing(C)}, severity=~"page|critical"}}'
    return "", [
        rows(
            "Clusters",
            "One row per cluster, fullest first; the verdict is that of its fullest model. "
            "*Observed* is the share of expected GPUs that are present: below 100 % nodes or "
            "daemons are gone; empty means that the expected number is unknown. A cluster missing "
            "here sends no data. Click one for its dashboard.",
            [
                Ask(
                    "topk by (cluster) (1, max by (cluster, model_name, verdict)"
                    f" (cluster_model_namespace:disagg_fullest_pool:ratio{{{C}}}))"
                ),
                Ask(f"max by (cluster) (cluster:disagg_gpus:sum{{{C}}})"),
                Ask(f"max by (cluster) (cluster:disagg_observed_gpus:ratio{{{C}}})"),
                Ask(f'max by (cluster) ({_USED}{{{C}, role="prefill"}})'),
                Ask(f'max by (cluster) ({_USED}{{{C}, role="decode"}})'),
                Ask(f"max by (cluster) ({_FIRST}{{{C}}})"),
                Ask(f"max by (cluster) ({_BETWEEN}{{{C}}})"),
                Ask(f'sum by (cluster) ({_TOKENS}{{{C}, phase="decode"}})'),
                Ask(f"sum by (cluster, currency) ({_COST}{{{C}}})"),
                Ask(f"count by (cluster) ({pages})"),
            ],
            [
                Column("cluster", "Cluster", link=CLUSTER_LINK),
                Column("J", "Pages", decimals=0, width=70),
                Column("model_name", "Fullest model"),
                Column("verdict", "Verdict", texts=coloured_words(VERDICTS), width=280),
                Column("A", "Used", bar="green", steps=FULLNESS, width=110),
                Column("D", "Prefill", bar="green", steps=FULLNESS, width=110),
                Column("E", "Decode", bar="green", steps=FULLNESS, width=110),
                Column("B", "GPUs", decimals=0, width=70),
                Column("C", "Observed", bar=BLUE, width=110),
                Column("F", "TTFT p95", unit="s", width=90),
                Column("G", "ITL p95", unit="s", width=90),
                Column("H", "Output tok/s", unit="short", decimals=1, width=110),
                Column("I", "Cost / h", decimals=2, width=90),
                Column("currency", "Currency", width=80),
            ],
            sort="Used",
            none="no capacity is known in any cluster yet: engines need some minutes of load",
            height=10,
        ),
    ]


def _over_time() -> Row:
    busy = "cluster:disagg_phase_gpu_seconds:rate5m"
    return "Clusters over time", [
        lines(
            "Fullest pool of each cluster",
            "Load of the fullest pool of any model over what it could serve within its latency "
            "targets. From the yellow line on a pool may soon be full; from the red line on it "
            "is.",
            [Ask(f"max by (cluster) ({_USED}{{{C}}})", "{{cluster}}")],
            unit="percentunit",
            at_least=1,
            filled=0,
            steps=FULLNESS,
            none="no capacity limit is known yet: engines need some minutes of load",
            runbooks=("DisaggPoolFull", "DisaggPoolFilling"),
        ),
        lines(
            "Users' time to first token (TTFT) p95",
            "95th percentile, end to end as far as it is observed, 5 minutes. The dashed line is "
            "the alerts' target.",
            [Ask(f"{_FIRST}{{{C}}}", "{{cluster}}")],
            unit="s",
            filled=0,
            steps=limit(TTFT_SECONDS),
            none="no first tokens in this time range, or no source reports users' waits",
            runbooks=("DisaggTtftBurnFast", "DisaggTtftBurnSlow"),
        ),
        lines(
            "Working GPUs",
            "GPUs' worth of prefill and decode work in each cluster, 5 minutes; stacked, so the "
            "top is the work of the whole fleet.",
            [
                Ask(
                    f'sum by (cluster) ({busy}{{{C}, phase=~"prefill|decode"}})',
                    "{{cluster}}",
                )
            ],
            decimals=1,
            stacked=True,
            none="no work in this time range",
        ),
        lines(
            "Cost of an hour of each cluster",
            "Cost of all GPU time of the last hour, idle included, where node files set a price.",
            [Ask(f"sum by (cluster, currency) ({_COST}{{{C}}})", "{{cluster}} {{currency}}")],
            decimals=2,
            stacked=True,
            none="no node has a price: set gpu_price in the node file",
        ),
    ]
