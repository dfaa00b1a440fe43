"""Fleet: every cluster behind one Prometheus or central store, each a row."""

from __future__ import annotations

from typing import Any

from grafana.builders.panels import annotations as marks
from grafana.builders.panels.alerts import alerts
from grafana.builders.panels.annotations import firing
from grafana.builders.panels.board import CLUSTER, CLUSTER_LINK, Row, board
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
    """The dashboard of whoever has more than one cluster."""
    return board(
        "fleet",
        "disagg-node / Fleet",
        "Every cluster in a row: its fullest model in words, its GPUs, how long its users wait, "
        "what it costs, and what fires there.",
        variables=[CLUSTER],
        rows=[_clusters(), _over_time()],
        folded=[alerts(C)],
        marks=[marks.alerts(C), marks.pool_moves(C), marks.restarts(C, shown=False)],
    )


def _of_either_name(record: str) -> str:
    """A quantile, of clusters whose rules record it by its name without the unit, too."""
    before = record.replace("_seconds:p95_", "_p95:")
    return f"{record}{{{C}}} or {before}{{{C}}}"


def _clusters() -> Row:
    pages = f'ALERTS{{{firing(C)}, severity=~"page|critical"}}'
    return "", [
        rows(
            "Clusters",
            "One row a cluster, the fullest first; its verdict is that of its fullest model. "
            "*Observed* is how many of the GPUs that should be there are: below 100 % nodes or "
            "daemons are gone, empty means that nothing says how many should be there. A cluster "
            "that is missing here sends nothing. Click one for its dashboard.",
            [
                Ask(
                    "topk by (cluster) (1, max by (cluster, model_name, verdict)"
                    f" (cluster_model_namespace:disagg_fullest_pool:ratio{{{C}}}))"
                ),
                Ask(f"max by (cluster) (cluster:disagg_gpus:sum{{{C}}})"),
                Ask(f"max by (cluster) (cluster:disagg_observed_gpus:ratio{{{C}}})"),
                Ask(f'max by (cluster) ({_USED}{{{C}, role="prefill"}})'),
                Ask(f'max by (cluster) ({_USED}{{{C}, role="decode"}})'),
                Ask(f"max by (cluster) ({_of_either_name(_FIRST)})"),
                Ask(f"max by (cluster) ({_of_either_name(_BETWEEN)})"),
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
            none="what engines can take is not learned in any cluster yet",
            height=10,
        ),
    ]


def _over_time() -> Row:
    busy = "cluster:disagg_phase_gpu_seconds:rate5m"
    return "Clusters over time", [
        lines(
            "Fullest pool of each cluster",
            "What the fullest pool of any model serves over what it could serve within its latency "
            "targets. The yellow line is where a pool may soon be full, the red one where it is.",
            [Ask(f"max by (cluster) ({_USED}{{{C}}})", "{{cluster}}")],
            unit="percentunit",
            at_least=1,
            filled=0,
            steps=FULLNESS,
            none="no limit is learned yet: it takes load",
            runbooks=("DisaggPoolFull", "DisaggPoolFilling"),
        ),
        lines(
            "Users' time to first token (TTFT) p95",
            "What 95 of 100 requests keep, end to end as far as it is seen, 5 minutes. The dashed "
            "line is the alerts' target.",
            [Ask(_of_either_name(_FIRST), "{{cluster}}")],
            unit="s",
            filled=0,
            steps=limit(TTFT_SECONDS),
            none="no first token in this time, or nobody tells users' waits",
            runbooks=("DisaggTtftBurnFast", "DisaggTtftBurnSlow"),
        ),
        lines(
            "Working GPUs",
            "GPUs' worth of prefill and decode in each cluster, 5 minutes; one on the other, so "
            "that the top is what the fleet works.",
            [
                Ask(
                    f'sum by (cluster) ({busy}{{{C}, phase=~"prefill|decode"}})',
                    "{{cluster}}",
                )
            ],
            decimals=1,
            stacked=True,
            none="no work in this time",
        ),
        lines(
            "Cost of an hour of each cluster",
            "What all GPU time of the last hour cost, idle or not, where node files name a price.",
            [Ask(f"sum by (cluster, currency) ({_COST}{{{C}}})", "{{cluster}} {{currency}}")],
            decimals=2,
            stacked=True,
            none="no node names a price: gpu_price in the node file",
        ),
    ]
