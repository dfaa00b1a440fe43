"""Row of the Exporter dashboard: the sources of what is known about each engine."""

from __future__ import annotations

from grafana.builders.exporter.gpu_seconds import MOST, N
from grafana.builders.panels.board import ENGINE_LINK, NODE_LINK, Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.frame import THIRD
from grafana.builders.panels.limits import RESIDUAL_RATIO, limit
from grafana.builders.panels.palette import GREEN, PINK, RED, TEAL
from grafana.builders.panels.queries import Ask, once
from grafana.builders.panels.tables import Column, coloured_words, rows

METHODS = {
    "steps": GREEN,
    "fpm": GREEN,
    "engine_timers": TEAL,
    "page": PINK,
    "page_cpu": PINK,
    "follower": PINK,
    "role": PINK,
    "none": RED,
}
"""Attribution methods with their colours, from best to none."""


def known_by() -> Row:
    """Method, error, version and role of each engine."""
    by = "max by (cluster, node, engine"
    off = f"disagg_attribution_residual_ratio{{{N}}}"
    error = f"by (cluster, node, engine) ({off})"
    worst = f"topk({MOST}, max by (cluster, node, engine) (max_over_time({off}[$__range] @ end())))"
    roles = once("disagg_gpu_assignment_info", N)
    return "How it is known", [
        rows(
            "Attribution of each engine",
            "The source of GPU-seconds, how steps that do both phases are divided, what a step's "
            "length means, and the mean error of the cost model's step prediction. Good: `steps` "
            "or `fpm`, `model`, an error below 10 %. `page`, `page_cpu`, `follower` and `role` "
            "are estimates from outside; `none`: busy time of no engine. Above 25 % error, steps "
            "are divided by token count. *Shares* is the confidence in the phases' shares: "
            "`high`, `medium` or `low`.",
            [
                Ask(f"{by}, method, split, confidence) (disagg_attribution_info{{{N}}})"),
                Ask(f"{by}) (disagg_attribution_residual_ratio{{{N}}})"),
                Ask(f"{by}) (disagg_attribution_fitted_steps{{{N}}})"),
                Ask(f"{by}, clock) (disagg_engine_step_clock_info{{{N}}})"),
                Ask(f"{by}, kind, version) (disagg_engine_info{{{N}}})"),
            ],
            [
                Column("engine", "Engine", link=ENGINE_LINK),
                Column("cluster", "Cluster"),
                Column("node", "Node", link=NODE_LINK),
                Column("kind", "Kind", width=100),
                Column("version", "Version", width=100),
                Column("method", "Method", width=120, texts=coloured_words(METHODS)),
                Column("split", "Mixed steps by", width=120),
                Column("confidence", "Shares", width=90),
                Column("clock", "A step's length", width=150),
                Column("B", "Residual", unit="percentunit", decimals=1, width=90),
                Column("C", "Learned from steps", unit="short", decimals=1, width=150),
            ],
            none="no engine here",
            sort="Residual",
            height=9,
            runbooks=("DisaggAttributionInexact", "DisaggAttributionUncertain"),
        ),
        lines(
            "Error of the cost model",
            "Mean error of the predicted step length, over the actual length; the five worst "
            "engines of the time shown. The dashed line is the alert's threshold. Good: below 10 "
            "%, and falling after a start.",
            [
                Ask(
                    f"max {error} and on (cluster, node, engine) {worst}",
                    "{{engine}} {{node}}",
                )
            ],
            none="no engine here reports steps that do both phases",
            unit="percentunit",
            width=THIRD,
            at_least=0.3,
            filled=0,
            steps=limit(RESIDUAL_RATIO),
            runbooks=("DisaggAttributionUncertain",),
        ),
        rows(
            "How roles are known",
            "GPUs by the source of their engine's role and its confidence. `config` is the node "
            "file. A source below `certain` may be wrong; then the time is counted in the wrong "
            "pool.",
            [Ask(f"count by (source, confidence, role) ({roles})")],
            [
                Column("source", "Source"),
                Column("confidence", "Confidence"),
                Column("role", "Role", width=90),
                Column("A", "GPUs", decimals=0, width=80),
            ],
            none="no engine has a GPU here",
            sort="GPUs",
            width=THIRD,
            height=8,
        ),
        rows(
            "Engines by kind and version",
            "How many engines run each version. Good: few rows. On a version that we have not "
            "checked, a metric name may mean something else: *Unknown versions* above counts "
            "those.",
            [Ask(f"count by (kind, version) ({once('disagg_engine_info', N)})")],
            [
                Column("kind", "Kind"),
                Column("version", "Version"),
                Column("A", "Engines", decimals=0, width=90),
            ],
            none="no engine here",
            sort="Engines",
            width=THIRD,
            height=8,
            runbooks=("DisaggEngineVersionUnknown",),
        ),
    ]
