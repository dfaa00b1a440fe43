"""Row of the Engines dashboard: capacity used, what bounds each engine, learned limits."""

from __future__ import annotations

from grafana.builders.engines.queries import EACH, OTHERS, E, R, top_of_gauge
from grafana.builders.panels.board import NODE_LINK, Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.limits import FULLNESS
from grafana.builders.panels.palette import BOUNDS, ROLE_TONES
from grafana.builders.panels.queries import Ask
from grafana.builders.panels.tables import HIDDEN_CLUSTER, Column, rows
from grafana.builders.panels.timelines import coded, states

_MOST = 12
"""Number of state bars: more are not legible."""


def limits() -> Row:
    """Capacity used, what bounds it, and the learned limits."""
    most = EACH
    bounds = coded(f"disagg_engine_bound_info{{{E}, %s}}", "bound", BOUNDS, "cluster, node, engine")
    used = f"avg_over_time(disagg_engine_capacity_used_ratio{{{R}}}[$__range] @ end())"
    there = f"last_over_time(disagg_engine_bound_info{{{E}}}[$__range] @ end())"
    fullest = f"topk({_MOST}, {most} ({used}) or 0 * {most} ({there}))"
    # Of the chosen roles: limits have no label for it.
    chosen = f"and on (cluster, node, engine) disagg_engine_info{{{R}}}"
    info = f"disagg_engine_capacity_info{{{E}}} {chosen}"

    def of(phase: str, metric: str) -> Ask:
        """A limit of one phase; an engine that does both has one row per phase."""
        one = f"{most} ({metric}{{{E}}} {chosen})"
        return Ask(f'label_replace({one}, "phase", "{phase}", "", "")')

    return "Capacity", [
        lines(
            "Capacity used by engine",
            "Load that each engine serves over what it could serve within its latency target, "
            "last minute. From yellow on it may soon be full, from red on it is. Good: engines of "
            "one role alike. No value until its limits are learned.",
            top_of_gauge("disagg_engine_capacity_used_ratio"),
            unit="percentunit",
            width=6,
            height=9,
            at_least=1,
            filled=0,
            steps=FULLNESS,
            tones=ROLE_TONES,
            dashed=OTHERS,
            none="no capacity limit is known yet: engines need some minutes of load",
            runbooks=("DisaggPoolFull",),
        ),
        states(
            "What bounds each engine",
            "What keeps an engine from doing more. `none`: it has room. `compute` and `bandwidth` "
            "are the proper limits of prefill and decode. `kv`: the cache is full, so the batch "
            "cannot grow. `host`: the time between steps, not the GPU. `unknown`: full for an "
            f"unknown reason. The {_MOST} fullest over the time shown.",
            [
                Ask(
                    f"{bounds} and on (cluster, node, engine) {fullest}",
                    "{{engine}} {{node}}",
                )
            ],
            BOUNDS,
            width=7,
            height=9,
            none="too little is known of the engines here yet",
        ),
        rows(
            "Learned limits",
            "Prefill: the smallest step that reaches nine tenths of the best rate, and that rate. "
            "Decode: the batch that just meets the inter-token target. `both_sides`: smaller and "
            "larger loads were observed; `one_side`: inferred; `unreachable`: no batch meets "
            "the target.",
            [
                Ask(f"{most[:-1]}, phase, confidence) ({info})"),
                of("prefill", "disagg_engine_prefill_knee_tokens"),
                of("prefill", "disagg_engine_prefill_knee_tokens_per_second"),
                of("decode", "disagg_engine_decode_target_batch"),
                Ask(f"{most} (disagg_engine_kv_cache_tokens{{{E}}} {chosen})"),
            ],
            [
                Column("engine", "Engine", width=120),
                HIDDEN_CLUSTER,
                Column("node", "Node", link=NODE_LINK, width=110),
                Column("phase", "Phase", width=66),
                Column("confidence", "Known from", width=105),
                Column("B", "Knee", unit="locale", decimals=0, width=62),
                Column("C", "Knee tok/s", unit="locale", decimals=0, width=88),
                Column("D", "Batch", unit="locale", decimals=0, width=60),
                Column("E", "KV tokens", unit="locale", decimals=0, width=85),
            ],
            sort="Engine",
            ascending=True,
            width=11,
            height=9,
            none="no capacity limit is known yet: engines need some minutes of load",
        ),
    ]
