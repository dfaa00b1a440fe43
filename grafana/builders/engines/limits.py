"""Row of the Engines dashboard: how full each engine is, of what, and what bounds it."""

from __future__ import annotations

from grafana.builders.engines.queries import BY, NAMED, E, R
from grafana.builders.panels.board import Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.palette import BOUNDS, FULLNESS
from grafana.builders.panels.queries import Ask
from grafana.builders.panels.tables import Column, rows
from grafana.builders.panels.timelines import coded, states


def limits() -> Row:
    """Capacity used, what bounds it, and the limits that were learned."""
    most = f"max {BY[4:]}"
    bounds = coded(f"disagg_engine_bound_info{{{E}, %s}}", "bound", BOUNDS, "node, engine")
    info = f"disagg_engine_capacity_info{{{E}}}"
    return "Capacity", [
        lines(
            "Capacity used by engine",
            "What each engine serves over what it could serve within its latency target, the last "
            "minute. Yellow is where it may soon be full, red where it is. Good: engines of one "
            "role alike. No value until its limits are learned.",
            [Ask(f"max by (node, engine) (disagg_engine_capacity_used_ratio{{{R}}})", NAMED)],
            unit="percentunit",
            width=7,
            height=9,
            at_least=1,
            filled=0,
            steps=FULLNESS,
            runbooks=("DisaggPoolFull",),
        ),
        states(
            "What bounds each engine",
            "What keeps an engine from doing more. `none`: it has room. `compute` and `bandwidth` "
            "are how prefill and decode should end. `kv`: its cache is full, so the batch cannot "
            "grow. `host`: the time between steps, not the GPU. `unknown`: full, and nothing shows "
            "of what.",
            [Ask(bounds, NAMED)],
            BOUNDS,
            width=8,
            height=9,
        ),
        rows(
            "Learned limits",
            "Prefill: the smallest step that gives nine tenths of the best rate, and that rate. "
            "Decode: the batch that just meets the inter-token target. `both_sides`: smaller and "
            "larger loads were seen; `one_side`: concluded; `unreachable`: no batch meets the "
            "target.",
            [
                Ask(f"{most[:-1]}, phase, confidence) ({info})"),
                Ask(f"{most} (disagg_engine_prefill_knee_tokens{{{E}}})"),
                Ask(f"{most} (disagg_engine_prefill_knee_tokens_per_second{{{E}}})"),
                Ask(f"{most} (disagg_engine_decode_target_batch{{{E}}})"),
                Ask(f"{most} (disagg_engine_kv_cache_tokens{{{E}}})"),
            ],
            [
                Column("engine", "Engine"),
                Column("confidence", "Known from", width=105),
                Column("B", "Knee", unit="locale", decimals=0, width=70),
                Column("C", "Knee tok/s", unit="locale", decimals=0, width=90),
                Column("D", "Batch", unit="locale", decimals=0, width=65),
                Column("E", "KV tokens", unit="locale", decimals=0, width=90),
            ],
            sort="Engine",
            ascending=True,
            width=9,
            height=9,
        ),
    ]
