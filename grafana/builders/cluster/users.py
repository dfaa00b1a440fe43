"""Row of the Cluster dashboard: how long users wait for first and next tokens."""

from __future__ import annotations

from grafana.builders.cluster.queries import C
from grafana.builders.panels.board import Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.frame import QUARTER
from grafana.builders.panels.limits import ITL_SECONDS, SLOW_SHARE, TTFT_SECONDS, limit
from grafana.builders.panels.palette import SPREAD, STAGES
from grafana.builders.panels.queries import Ask


def users() -> Row:
    """First tokens and their parts, next tokens, and the share that is late."""

    def spread(bucket: str) -> list[Ask]:
        return [
            Ask(f"histogram_quantile({share}, sum by (le) ({bucket}{{{C}}}))", name)
            for share, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
        ]

    slow = {
        "first tokens": "cluster_model_namespace:disagg_ttft_slow:ratio_rate5m",
        "next tokens": "cluster_model_namespace:disagg_itl_slow:ratio_rate5m",
    }
    return "What users wait for", [
        lines(
            "Time to first token (TTFT), end to end",
            "How long users wait for the first token, 5 minutes: measured by frontends or routers "
            "if there are any, else combined from both pools. The dashed line is the alerts' "
            "target for 95 of 100 requests. The Engines dashboard shows what each engine measures "
            "itself.",
            spread("cluster:disagg_request_time_to_first_token_seconds_bucket:rate5m"),
            unit="s",
            width=QUARTER,
            filled=0,
            steps=limit(TTFT_SECONDS),
            none="no first tokens in this time range, or no source reports users' waits",
            colours=SPREAD,
            runbooks=("DisaggTtftBurnFast", "DisaggTtftBurnSlow"),
        ),
        lines(
            "Parts of the first token",
            "Mean seconds of each stage before the first token, stacked: queueing for room, "
            "prefill, KV transfer (where engines report it; else part of the decode engine's "
            "queue), first decode step. Work on the thickest stage. With several clusters, the "
            "slowest value of each stage.",
            [
                Ask(
                    "max by (component)"
                    f" (cluster_component:disagg_ttft_component_seconds:rate5m{{{C}}})",
                    "{{component}}",
                )
            ],
            unit="s",
            width=QUARTER,
            stacked=True,
            none="no engine reports the parts of a first token",
            colours=STAGES,
            runbooks=("DisaggPoolStarving", "DisaggKvTransferSlow"),
        ),
        lines(
            "Time between tokens (ITL)",
            "How long a running stream waits for its next token, 5 minutes. The dashed line is "
            "the alerts' target for 95 of 100 tokens. It rises with batch size, with long "
            "contexts, and when prompts are computed on decode GPUs.",
            spread("cluster:disagg_inter_token_latency_seconds_bucket:rate5m"),
            unit="s",
            width=QUARTER,
            filled=0,
            steps=limit(ITL_SECONDS),
            none="no tokens in this time range",
            colours=SPREAD,
            runbooks=("DisaggItlBurnFast", "DisaggItlBurnSlow"),
        ),
        lines(
            "Late tokens (TTFT, ITL)",
            "Share of first tokens later than 0.5 s and of next tokens later than 0.05 s, 5 "
            "minutes, of the model with the most. The dashed line is the allowed share. Ten times "
            "that for an hour pages somebody.",
            [Ask(f"max ({metric}{{{C}}})", name) for name, metric in slow.items()],
            unit="percentunit",
            width=QUARTER,
            at_least=0.1,
            filled=0,
            steps=limit(SLOW_SHARE),
            none="no tokens in this time range",
            colours={"first tokens": "#8AB8FF", "next tokens": "#FFB357"},
            runbooks=("DisaggTtftBurnFast", "DisaggItlBurnFast"),
        ),
    ]
