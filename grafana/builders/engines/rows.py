"""Rows of the Engines dashboard: the ranking, requests, steps and tokens."""

from __future__ import annotations

from grafana.builders.engines.queries import BY, OTHERS, E, R, rate, top_of_counter, top_of_gauge
from grafana.builders.panels.board import NODE_LINK, Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.frame import THIRD
from grafana.builders.panels.limits import FULLNESS
from grafana.builders.panels.palette import (
    BOUNDS,
    GREEN,
    GREY,
    ORANGE,
    PHASES,
    ROLE_TONES,
    STEP_KINDS,
)
from grafana.builders.panels.queries import Ask
from grafana.builders.panels.tables import Column, coloured_words, rows

HEALTH = (("0", "down", "red"), ("1", "up", "green"), ("2", "asleep", "blue"))


def ranking() -> Row:
    """One row for each engine; no header."""
    gpus = f"count by (cluster, node, engine) (disagg_gpu_assignment_info{{{E}}})"
    busy = f"{BY} ({rate('disagg_engine_gpu_seconds_total', R, '1m')})"
    time = f"{BY} ({rate('disagg_engine_step_seconds_total', R, '1m')})"
    steps = f"{BY} ({rate('disagg_engine_steps_total', R, '1m')})"
    asleep = f"(max {BY[4:]} (disagg_engine_asleep{{{E}}}) == 1) * 2"

    def requests(state: str) -> Ask:
        return Ask(f'{BY} (disagg_engine_requests{{{R}, state="{state}"}})')

    def tokens(phase: str) -> Ask:
        matchers = f'{R}, phase="{phase}"'
        return Ask(f"{BY} ({rate('disagg_engine_phase_tokens_total', matchers, '1m')})")

    return "", [
        rows(
            "Engines, the fullest first",
            "One row for each engine; rates are over 1 minute. Good: engines of one role alike, "
            "below 70 % used, nobody waiting. Bad: one that is full beside one that is not (the "
            "router sends unevenly), KV near 100 % (requests will be pushed out), deferred that "
            "only grows (KV does not arrive). What bounds it: `none` has room, see below. Click "
            "a node for its GPUs.",
            [
                Ask(f"{BY[:-1]}, role, model_name) (disagg_engine_info{{{R}}})"),
                Ask(f"{asleep} or {BY} (disagg_engine_up{{{E}}})"),
                Ask(f"max {BY[4:]} (disagg_engine_capacity_used_ratio{{{R}}})"),
                Ask(f"{BY[:-1]}, bound) (disagg_engine_bound_info{{{E}}})"),
                Ask(f"{busy} / {gpus}"),
                Ask(f"{BY} (disagg_engine_kv_cache_usage_ratio{{{R}}})"),
                requests("running"),
                requests("waiting"),
                requests("deferred"),
                Ask(f"{time} / ({steps} > 0)"),
                tokens("prefill"),
                tokens("decode"),
            ],
            [
                Column("engine", "Engine"),
                Column("node", "Node", link=NODE_LINK),
                Column("role", "Role", width=70),
                Column("model_name", "Model"),
                Column("B", "Health", width=70, texts=HEALTH),
                Column("C", "Capacity used", width=130, bar=GREEN, steps=FULLNESS),
                Column("bound", "Bound by", width=90, texts=coloured_words(BOUNDS)),
                Column("E", "Busy", bar=GREY, width=105),
                Column("F", "KV in use", bar=ORANGE, width=105),
                Column("G", "Running", decimals=0, width=75),
                Column("H", "Waiting", decimals=0, width=75),
                Column("I", "Deferred", decimals=0, width=80),
                Column("J", "Step", unit="s", decimals=1, width=85),
                Column("K", "Prefill tok/s", unit="short", decimals=1, width=100),
                Column("L", "Decode tok/s", unit="short", decimals=1, width=105),
            ],
            sort="Capacity used",
            height=9,
            none="no engine here",
            runbooks=("DisaggEngineStalled", "DisaggImbalance"),
        )
    ]


def work() -> Row:
    """KV, steps, tokens and GPU time."""
    return "Work: the highest engines of each role, and the median of the others", [
        lines(
            "KV cache in use",
            "Share of each engine's KV cache that holds requests. Good: below 90 %. At 100 % new "
            "requests wait and running ones are pushed out and computed again.",
            top_of_gauge("disagg_engine_kv_cache_usage_ratio"),
            unit="percentunit",
            top=1,
            width=THIRD,
            filled=0,
            tones=ROLE_TONES,
            dashed=OTHERS,
            none="no engine here tells its KV cache",
        ),
        lines(
            "Steps a second by kind",
            "Steps of the chosen engines: context computes prompts, generation writes tokens, "
            "mixed does both. Good on split pools: hardly any mixed. `dummy` is a step for nobody.",
            [Ask(f"sum by (kind) ({rate('disagg_engine_steps_total')})", "{{kind}}")],
            decimals=1,
            width=THIRD,
            colours=STEP_KINDS,
            none="no engine here reports its steps; it takes our plugin, or Dynamo",
        ),
        lines(
            "Mean time of a step by kind",
            "Seconds of a step. A generation step is what a stream waits for its next token: it "
            "must stay below your limit for inter-token latency. With async scheduling and an "
            "older plugin these are mere waits.",
            [
                Ask(
                    f"sum by (kind) ({rate('disagg_engine_step_seconds_total')})"
                    f" / (sum by (kind) ({rate('disagg_engine_steps_total')}) > 0)",
                    "{{kind}}",
                )
            ],
            unit="s",
            decimals=1,
            width=THIRD,
            filled=0,
            colours=STEP_KINDS,
            none="no engine here reports its steps; it takes our plugin, or Dynamo",
        ),
        lines(
            "Tokens a second by phase",
            "Tokens that the chosen engines computed, each phase on its own axis; cached and "
            "transferred ones are not in it. Good: follows the demand. Bad: flat while "
            "requests wait.",
            [Ask(f"sum by (phase) ({rate('disagg_engine_phase_tokens_total')})", "{{phase}}")],
            width=THIRD,
            right="decode",
            colours=PHASES,
            none="no engine here counts tokens",
        ),
        lines(
            "Tokens a second by engine",
            "Good: engines of one role alike. One that gives less at the same number of requests "
            "has a slower GPU, longer contexts or a throttled device: hold it against the median.",
            top_of_counter("disagg_engine_phase_tokens_total"),
            width=THIRD,
            filled=0,
            tones=ROLE_TONES,
            dashed=OTHERS,
            none="no engine here counts tokens",
        ),
        lines(
            "Busy GPUs by engine",
            "GPUs' worth of work of each engine; an engine on two GPUs reaches 2. Good: engines of "
            "one role alike.",
            top_of_counter("disagg_engine_gpu_seconds_total"),
            decimals=2,
            width=THIRD,
            filled=0,
            tones=ROLE_TONES,
            dashed=OTHERS,
            none="no engine here",
        ),
    ]
