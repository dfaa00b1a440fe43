"""Rows of the Engines dashboard: what requests wait for, and KV on its way."""

from __future__ import annotations

from grafana.builders.engines.queries import NAMED, rate
from grafana.builders.panels.board import Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.frame import THIRD
from grafana.builders.panels.palette import STAGES
from grafana.builders.panels.queries import Ask


def latency() -> Row:
    """First tokens, what they are made of, next tokens."""

    def p95(histogram: str) -> Ask:
        buckets = f"sum by (node, engine, le) ({rate(f'{histogram}_bucket')})"
        return Ask(f"histogram_quantile(0.95, {buckets})", NAMED)

    parts = "disagg_engine_ttft_component"
    return "Latency", [
        lines(
            "Time to first token, p95",
            "What 95 of 100 requests keep, from the arrival at a decode or mixed engine to the "
            "first token there. The dashed line is the alerts' target. Good: engines alike; one "
            "that is slower has a longer queue or waits for KV.",
            [p95("disagg_engine_time_to_first_token_seconds")],
            unit="s",
            width=THIRD,
            filled=0,
            steps=((None, "transparent"), (0.5, "red")),
            runbooks=("DisaggTtftBurnFast", "DisaggTtftBurnSlow"),
        ),
        lines(
            "Parts of the first token",
            "Mean seconds of each stage at the chosen engines, one on the other. A thick `queue` "
            "on prefill wants more prefill GPUs; on decode it holds the wait for KV, unless "
            "engines report `kv_transfer` by itself.",
            [
                Ask(
                    f"sum by (component) ({rate(f'{parts}_seconds_total')})"
                    f" / (sum by (component) ({rate(f'{parts}_requests_total')}) > 0)",
                    "{{component}}",
                )
            ],
            unit="s",
            width=THIRD,
            stacked=True,
            colours=STAGES,
        ),
        lines(
            "Time between tokens, p95",
            "How long a running stream waits for its next token, in 95 of 100 cases. The dashed "
            "line is the alerts' target. Good: engines alike. It climbs with the batch, and where "
            "prompts are computed on decode GPUs.",
            [p95("disagg_engine_inter_token_latency_seconds")],
            unit="s",
            width=THIRD,
            filled=0,
            steps=((None, "transparent"), (0.05, "red")),
            runbooks=("DisaggItlBurnFast", "DisaggItlBurnSlow"),
        ),
    ]


def transfers() -> Row:
    """KV on its way from prefill to decode; engines count it where their connector does."""
    return "KV transfers", [
        lines(
            "KV transfers a second",
            "Transfers that each engine counts: the one that pulls, or the one that sends. Good: "
            "as many as requests. 0 where the connector counts none.",
            [Ask(f"sum by (node, engine) ({rate('disagg_engine_kv_transfers_total')})", NAMED)],
            decimals=1,
            width=THIRD,
            at_least=1,
            filled=0,
        ),
        lines(
            "KV bytes a second",
            "Bytes of KV that each engine moves. Hold it against the network's rate: near it, "
            "decode waits.",
            [
                Ask(
                    f"sum by (node, engine) ({rate('disagg_engine_kv_transfer_bytes_total')})",
                    NAMED,
                )
            ],
            unit="Bps",
            decimals=0,
            width=THIRD,
            at_least=1000,
            filled=0,
            runbooks=("DisaggKvTransferSlow",),
        ),
        lines(
            "Failed KV transfers a second",
            "By reason; the alert names the engine. Good: none. What fails is computed again on "
            "the decode engine, or the request ends. `expired`: KV that nobody fetched, counted "
            "where it was held.",
            [
                Ask(
                    f"sum by (reason) ({rate('disagg_engine_kv_transfer_failures_total')})",
                    "{{reason}}",
                )
            ],
            decimals=2,
            width=THIRD,
            at_least=1,
            filled=0,
            runbooks=("DisaggKvTransferFailing",),
        ),
    ]
