"""Rows of the Engines dashboard: latency and KV transfers."""

from __future__ import annotations

from grafana.builders.engines.queries import BY_ROLE, OTHERS, N, R, rate, top, top_of_counter
from grafana.builders.panels.board import Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.frame import QUARTER, THIRD
from grafana.builders.panels.limits import ITL_SECONDS, TTFT_SECONDS, limit
from grafana.builders.panels.palette import LINKS, ROLE_TONES, STAGES, TRANSFER_FAILURES
from grafana.builders.panels.queries import Ask


def latency() -> Row:
    """First tokens, their parts, and next tokens."""

    def p95(histogram: str) -> list[Ask]:
        buckets = f"{BY_ROLE[:-1]}, le) ({rate(f'{histogram}_bucket')})"
        return top(f"histogram_quantile(0.95, {buckets})")

    parts = "disagg_engine_ttft_component"
    return "Latency: the slowest engines of each role, and the median of the others", [
        lines(
            "TTFT at decode and mixed engines, p95",
            "95th percentile of the time from a request's arrival at a decode or mixed engine to "
            "its first token there. The dashed line is the alerts' target. Good: engines alike. A "
            "slower one has a longer queue or waits for KV.",
            p95("disagg_engine_time_to_first_token_seconds"),
            unit="s",
            width=THIRD,
            filled=0,
            steps=limit(TTFT_SECONDS),
            tones=ROLE_TONES,
            dashed=OTHERS,
            none="no first tokens in this time range",
            runbooks=("DisaggTtftBurnFast", "DisaggTtftBurnSlow"),
        ),
        lines(
            "Parts of the first token",
            "Mean seconds of each stage at the chosen engines, stacked. A thick `queue` on "
            "prefill needs more prefill GPUs; on decode it includes the wait for KV, unless "
            "engines report `kv_transfer` separately.",
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
            none="no engine here reports the parts of a first token",
        ),
        lines(
            "Time between tokens (ITL), p95",
            "95th percentile of a running stream's wait for its next token. The dashed line is "
            "the alerts' target. Good: engines alike. It rises with batch size, and when prompts "
            "are computed on decode GPUs.",
            p95("disagg_engine_inter_token_latency_seconds"),
            unit="s",
            width=THIRD,
            filled=0,
            steps=limit(ITL_SECONDS),
            tones=ROLE_TONES,
            dashed=OTHERS,
            none="no tokens in this time range",
            runbooks=("DisaggItlBurnFast", "DisaggItlBurnSlow"),
        ),
    ]


def transfers() -> Row:
    """KV transfers from prefill to decode, and traffic on the GPUs' links."""
    none = "no engine here counts KV transfers"
    links = rate("disagg_gpu_link_bytes_total", N)
    served = f"on (cluster, node, gpu) disagg_gpu_assignment_info{{{R}}}"
    return "KV transfers: the highest engines of each role, and the median of the others", [
        lines(
            "KV transfers a second",
            "Transfers that each engine counts, as the puller or as the sender. Good: as many as "
            "requests. 0 if the connector counts none.",
            top_of_counter("disagg_engine_kv_transfers_total"),
            decimals=1,
            width=QUARTER,
            at_least=1,
            filled=0,
            tones=ROLE_TONES,
            dashed=OTHERS,
            none=none,
        ),
        lines(
            "KV bytes a second",
            "KV bytes that each engine moves. Compare with the bandwidth of the network and the "
            "link traffic beside: near the limit, decode waits.",
            top_of_counter("disagg_engine_kv_transfer_bytes_total"),
            unit="Bps",
            decimals=0,
            width=QUARTER,
            at_least=1000,
            filled=0,
            tones=ROLE_TONES,
            dashed=OTHERS,
            none=none,
            runbooks=("DisaggKvTransferSlow",),
        ),
        lines(
            "NVLink and PCIe traffic",
            "Bytes per second over the links of the GPUs that serve the chosen engines, summed. "
            "KV leaves a GPU by one of them: PCIe traffic where NVLink is expected means that "
            "transfers take the slow path. Reported by Hopper and later, or by dcgm-exporter.",
            [Ask(f"sum by (link, direction) ({links} and {served})", "{{link}} {{direction}}")],
            unit="Bps",
            decimals=0,
            width=QUARTER,
            at_least=1000,
            filled=0,
            colours=LINKS,
            none="these GPUs do not report the traffic of their links",
        ),
        lines(
            "Failed KV transfers a second",
            "By reason; the alert names the engine. Good: none. Failed prompts are computed again "
            "on the decode engine, or the request ends. `expired`: KV that was never fetched, "
            "counted where it was held.",
            [
                Ask(
                    f"sum by (reason) ({rate('disagg_engine_kv_transfer_failures_total')})",
                    "{{reason}}",
                )
            ],
            decimals=2,
            width=QUARTER,
            at_least=1,
            filled=0,
            colours=TRANSFER_FAILURES,
            none=none,
            runbooks=("DisaggKvTransferFailing",),
        ),
    ]
