"""Rows of the Engines dashboard: the ranking, requests, steps and tokens."""

from __future__ import annotations

from grafana.builders.engines.queries import (
    BY,
    EACH,
    OTHERS,
    E,
    R,
    rate,
    rate_now,
    top_of_counter,
    top_of_gauge,
)
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
from grafana.builders.panels.queries import Ask, once
from grafana.builders.panels.tables import Column, coloured_words, rows

HEALTH = (("0", "down", "red"), ("1", "up", "green"), ("2", "asleep", "blue"))


def ranking() -> Row:
    """One row per engine; no header."""
    gpus = f"count by (cluster, node, engine) ({once('disagg_gpu_assignment_info', E)})"
    busy = f"{BY} ({rate_now('disagg_engine_gpu_seconds_total')})"
    time = f"{BY} ({rate_now('disagg_engine_step_seconds_total')})"
    steps = f"{BY} ({rate_now('disagg_engine_steps_total')})"
    asleep = f"({EACH} (disagg_engine_asleep{{{E}}}) == 1) * 2"

    def requests(state: str) -> Ask:
        return Ask(f'{EACH} (disagg_engine_requests{{{R}, state="{state}"}})')

    def tokens(phase: str) -> Ask:
        matchers = f'{R}, phase="{phase}"'
        return Ask(f"{BY} ({rate_now('disagg_engine_phase_tokens_total', matchers)})")

    return "", [
        rows(
            "Engines, the fullest first",
            "One row per engine; rates are over 1 minute, or over 5 where nodes are scraped once a "
            "minute. Good: engines of one role alike, below 70 % used, nothing waiting. Bad: one "
            "is full while another is not (uneven routing), KV near 100 % (requests will be "
            "preempted), deferred only grows (KV does not arrive). Bound by `none` means there is "
            "room; the other values are explained below. Click a node for its GPUs.",
            [
                Ask(f"{EACH[:-1]}, role, model_name) (disagg_engine_info{{{R}}})"),
                Ask(f"{asleep} or {EACH} (disagg_engine_up{{{E}}})"),
                Ask(f"{EACH} (disagg_engine_capacity_used_ratio{{{R}}})"),
                Ask(f"{EACH[:-1]}, bound) (disagg_engine_bound_info{{{E}}})"),
                Ask(f"{busy} / {gpus}"),
                Ask(f"{EACH} (disagg_engine_kv_cache_usage_ratio{{{R}}})"),
                requests("running"),
                requests("waiting"),
                requests("deferred"),
                Ask(f"{time} / ({steps} > 0)"),
                tokens("prefill"),
                tokens("decode"),
            ],
            [
                Column("engine", "Engine", width=120),
                Column("cluster", "Cluster", width=80),
                Column("node", "Node", link=NODE_LINK, width=110),
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
            "requests wait, and running ones are preempted and computed again.",
            top_of_gauge("disagg_engine_kv_cache_usage_ratio"),
            unit="percentunit",
            top=1,
            width=THIRD,
            filled=0,
            tones=ROLE_TONES,
            dashed=OTHERS,
            none="no engine here reports its KV cache",
        ),
        lines(
            "Steps a second by kind",
            "Steps of the chosen engines: context computes prompts, generation writes tokens, "
            "mixed does both. Good on split pools: hardly any mixed. `dummy` steps serve no "
            "request.",
            [Ask(f"sum by (kind) ({rate('disagg_engine_steps_total')})", "{{kind}}")],
            decimals=1,
            width=THIRD,
            colours=STEP_KINDS,
            none="no engine here reports its steps: install our plugin, or use Dynamo",
        ),
        lines(
            "Mean time of a step by kind",
            "Mean seconds per step. A stream waits one generation step for its next token, so it "
            "must stay below your inter-token limit. With async scheduling and an older plugin, "
            "these are only waiting times.",
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
            none="no engine here reports its steps: install our plugin, or use Dynamo",
        ),
        lines(
            "Tokens a second by phase",
            "Tokens computed by the chosen engines, each phase on its own axis; excludes cached "
            "and transferred tokens. Good: follows demand. Bad: flat while requests wait.",
            [Ask(f"sum by (phase) ({rate('disagg_engine_phase_tokens_total')})", "{{phase}}")],
            width=THIRD,
            right="decode",
            colours=PHASES,
            none="no engine here counts tokens",
        ),
        lines(
            "Tokens a second by engine",
            "Good: engines of one role alike. An engine with fewer tokens at the same number of "
            "requests has a slower GPU, longer contexts or a throttled device: compare with the "
            "median.",
            top_of_counter("disagg_engine_phase_tokens_total"),
            width=THIRD,
            filled=0,
            tones=ROLE_TONES,
            dashed=OTHERS,
            none="no engine here counts tokens",
        ),
        lines(
            "Busy GPUs by engine",
            "GPUs' worth of work of each engine; an engine on two GPUs can reach 2. Good: engines "
            "of one role alike.",
            top_of_counter("disagg_engine_gpu_seconds_total"),
            decimals=2,
            width=THIRD,
            filled=0,
            tones=ROLE_TONES,
            dashed=OTHERS,
            none="no engine here",
        ),
    ]
