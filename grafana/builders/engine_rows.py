"""Rows of the Engines dashboard: the ranking, requests, steps and tokens."""

from __future__ import annotations

from typing import Any

from grafana.builders.board import NODE_LINK, Row
from grafana.builders.engine_queries import BY, NAMED, E, R, rate
from grafana.builders.palette import GREEN, ORANGE, PHASES, STEP_KINDS
from grafana.builders.panels import THIRD, Ask, lines
from grafana.builders.tables import Column, rows


def ranking() -> Row:
    """One row for each engine; no header."""
    gpus = f"count by (cluster, node, engine) (disagg_gpu_assignment_info{{{E}}})"
    busy = f"{BY} ({rate('disagg_engine_gpu_seconds_total', R, '1m')})"
    time = f"{BY} ({rate('disagg_engine_step_seconds_total', R, '1m')})"
    steps = f"{BY} ({rate('disagg_engine_steps_total', R, '1m')})"

    def requests(state: str) -> Ask:
        return Ask(f'{BY} (disagg_engine_requests{{{R}, state="{state}"}})')

    def tokens(phase: str) -> Ask:
        matchers = f'{R}, phase="{phase}"'
        return Ask(f"{BY} ({rate('disagg_engine_phase_tokens_total', matchers, '1m')})")

    return "", [
        rows(
            "Engines, the ones with most waiting first",
            "One row for each engine; rates are over 1 minute. Good: engines of one role alike, "
            "nobody waiting. Bad: one with many waiting beside one that is idle (the router sends "
            "unevenly), KV near 100 % (requests will be pushed out), deferred that only grows (KV "
            "does not arrive), a step time far above the others' of its role.",
            [
                Ask(f"{BY[:-1]}, role, model_name) (disagg_engine_info{{{R}}})"),
                Ask(f"{BY} (disagg_engine_up{{{E}}})"),
                Ask(gpus),
                Ask(f"{busy} / {gpus}"),
                requests("running"),
                requests("waiting"),
                requests("deferred"),
                Ask(f"{BY} (disagg_engine_kv_cache_usage_ratio{{{R}}})"),
                Ask(f"{time} / ({steps} > 0)"),
                tokens("prefill"),
                tokens("decode"),
            ],
            [
                Column("engine", "Engine"),
                Column("node", "Node", link=NODE_LINK),
                Column("role", "Role", width=75),
                Column("model_name", "Model"),
                Column(
                    "B",
                    "Health",
                    width=75,
                    texts=(("1", "up", "green"), ("0", "down", "red")),
                ),
                Column("C", "GPUs", decimals=0, width=65),
                Column("D", "Busy", bar=GREEN),
                Column("E", "Running", decimals=0, width=85),
                Column("F", "Waiting", decimals=0, width=85),
                Column("G", "Deferred", decimals=0, width=85),
                Column("H", "KV in use", bar=ORANGE),
                Column("I", "Step", unit="s", decimals=1, width=85),
                Column("J", "Prefill tok/s", unit="short", decimals=0, width=105),
                Column("K", "Decode tok/s", unit="short", decimals=0, width=110),
            ],
            sort="Waiting",
            height=9,
        )
    ]


def queues() -> Row:
    """Who has requests, and what they wait for."""

    def requests(state: str, good: str) -> Any:
        expr = f'sum by (node, engine) (disagg_engine_requests{{{R}, state="{state}"}})'
        return lines(
            f"Requests {state}",
            good,
            [Ask(expr, NAMED)],
            decimals=0,
            width=THIRD,
            at_least=3,
            filled=0,
        )

    return "Requests", [
        requests(
            "running",
            "Requests in the batch of each engine. Good: engines of one role alike. On decode more "
            "is cheaper for each token, until the step time suffers.",
        ),
        requests(
            "waiting",
            "Requests that wait for room in an engine. Good: 0, or short peaks on prefill. Bad: a "
            "line that stays up; its pool is too small, or the router sends unevenly.",
        ),
        requests(
            "deferred",
            "Requests that wait for something else than room, such as their KV. Good: few and "
            "soon gone. Bad: growing on decode engines, which is a transfer that is slow or stuck.",
        ),
    ]


def work() -> Row:
    """KV, steps, tokens and GPU time."""
    return "Work", [
        lines(
            "KV cache in use",
            "Share of each engine's KV cache that holds requests. Good: below 90 %. At 100 % new "
            "requests wait and running ones are pushed out and computed again.",
            [Ask(f"sum by (node, engine) (disagg_engine_kv_cache_usage_ratio{{{R}}})", NAMED)],
            unit="percentunit",
            decimals=0,
            top=1,
            width=THIRD,
            filled=0,
        ),
        lines(
            "Steps a second by kind",
            "Steps of the chosen engines: context computes prompts, generation writes tokens, "
            "mixed does both. Good on split pools: hardly any mixed. `dummy` is a step for nobody.",
            [Ask(f"sum by (kind) ({rate('disagg_engine_steps_total')})", "{{kind}}")],
            decimals=1,
            width=THIRD,
            colours=STEP_KINDS,
        ),
        lines(
            "Mean time of a step by kind",
            "Seconds of a step. A generation step is what a stream waits for its next token: it "
            "must stay below your limit for inter-token latency. With async scheduling these are "
            "mere waits.",
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
        ),
        lines(
            "Tokens a second by engine",
            "Good: engines of one role alike. One that gives less at the same number of requests "
            "has a slower GPU, longer contexts or a throttled device.",
            [Ask(f"sum by (node, engine) ({rate('disagg_engine_phase_tokens_total')})", NAMED)],
            width=THIRD,
            filled=0,
        ),
        lines(
            "Busy GPUs by engine",
            "GPUs' worth of work of each engine; an engine on two GPUs reaches 2. Good: engines of "
            "one role alike.",
            [Ask(f"sum by (node, engine) ({rate('disagg_engine_gpu_seconds_total')})", NAMED)],
            decimals=2,
            width=THIRD,
            filled=0,
        ),
    ]
