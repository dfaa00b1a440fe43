"""Rows of the Exporter dashboard: lag, methods and coverage of the accounting."""

from __future__ import annotations

from grafana.builders.panels.board import Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.frame import THIRD
from grafana.builders.panels.limits import WATERMARK_SECONDS, limit
from grafana.builders.panels.palette import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    REASONS,
    RED,
    TEAL,
    VIOLET,
    YELLOW,
)
from grafana.builders.panels.queries import Ask, age, once

MOST = 5
"""Number of nodes or engines with their own line: more are not legible."""
N = 'cluster=~"$cluster", node=~"$node"'
J = f'{N}, job=~"$job"'
METHODS = {
    "steps, model": GREEN,
    "steps, tokens": "#96D98D",
    "steps, none": "#96D98D",
    "fpm, model": GREEN,
    "fpm, tokens": "#96D98D",
    "fpm, none": "#96D98D",
    "engine_timers, none": TEAL,
    "page, none": PINK,
    "page_cpu, none": PINK,
    "follower, none": PINK,
    "role, none": PINK,
    "none, none": RED,
}


def accounting() -> Row:
    """Watermark lag, attribution methods, and missing or unexplained time."""
    # A collector's name is its kind, or kind:engine.
    kinds = (
        f'label_replace(disagg_collector_duration_seconds{{{N}}}, "kind", "$1", "collector",'
        ' "([^:]*).*")'
    )

    def lag(metric: str) -> str:
        behind = f"bottomk({MOST}, min by (cluster, node) ({metric}{{{N}}} @ end()))"
        return f"max by (cluster, node) {age(metric, N)} and on (cluster, node) {behind}"

    cut = f"sum by (cluster, node, engine) (rate(disagg_span_cut_seconds_total{{{N}}}%s))"
    most_cut = f"topk({MOST}, {cut % '[$__range] @ end()'})"
    return "Accounting", [
        lines(
            "Watermark lag by kind",
            "Age of the oldest committed second of GPUs and of engines, on the five nodes "
            "furthest behind at the end of the time shown. Good: some seconds, flat. A climbing "
            "line is a device or engine whose time cannot be committed.",
            [
                Ask(lag("disagg_gpu_watermark_timestamp_seconds"), "GPUs of {{node}}"),
                Ask(lag("disagg_engine_watermark_timestamp_seconds"), "engines of {{node}}"),
            ],
            none="no GPU is visible",
            unit="s",
            decimals=1,
            width=THIRD,
            filled=0,
            tones={"^GPUs.*": TEAL, "^engines.*": PINK},
            steps=limit(WATERMARK_SECONDS),
            runbooks=("DisaggWatermarkLag",),
        ),
        lines(
            "How GPU-seconds were found",
            "Engines by attribution method, and by what divides steps that do both phases. Good: "
            "all `steps`; `model` is learned and better than `tokens`. `page_cpu`, `follower` and "
            "`role` are estimates; `none`: the GPUs' busy time is attributed to no engine.",
            [
                Ask(
                    f"count by (method, split) ({once('disagg_attribution_info', N)})",
                    "{{method}}, {{split}}",
                )
            ],
            none="no engine here",
            decimals=0,
            width=THIRD,
            stacked=True,
            colours=METHODS,
        ),
        lines(
            "Unexplained time",
            "GPUs' worth of unattributed and unobserved time. Good: both near 0. The Node "
            "dashboard shows the reasons.",
            [
                Ask(
                    "sum (rate(disagg_node_phase_seconds_total"
                    f'{{{N}, phase="unattributed"}}[$__rate_interval]))',
                    "unattributed",
                ),
                Ask(
                    f"sum (rate(disagg_node_unobserved_seconds_total{{{N}}}[$__rate_interval]))",
                    "unobserved",
                ),
            ],
            none="no GPU is visible",
            decimals=2,
            width=THIRD,
            at_least=1,
            colours={"unattributed": YELLOW, "unobserved": VIOLET},
            runbooks=("DisaggGpuUnattributed",),
        ),
        lines(
            "Step records lost and late",
            "Records per second that never arrived, and that arrived after their time was "
            "committed. Good: 0. Lost records: an engine sends faster than the daemon reads.",
            [
                Ask(f"sum (rate(disagg_lost_records_total{{{N}}}[$__rate_interval]))", "lost"),
                Ask(f"sum (rate(disagg_late_records_total{{{N}}}[$__rate_interval]))", "late"),
            ],
            none="no engine here reports steps",
            decimals=2,
            width=THIRD,
            at_least=1,
            colours={"lost": RED, "late": ORANGE},
            runbooks=("DisaggRecordsLost",),
        ),
        lines(
            "Step time cut",
            "Step seconds per second that fit nowhere in the engine's time, even late, and are in "
            "no other counter; the five engines with the most. Good: 0. More: an engine's clock "
            "or records are wrong.",
            [
                Ask(
                    f"{cut % '[$__rate_interval]'} and on (cluster, node, engine) {most_cut}",
                    "{{engine}} {{node}}",
                )
            ],
            none="no engine here reports steps",
            unit="s",
            width=THIRD,
            at_least=1,
            filled=0,
            runbooks=("DisaggStepTimeCut",),
        ),
        lines(
            "Time of a collector's round",
            "The slowest round of each kind of collector on the chosen nodes. Good: far below the "
            "interval between rounds. A slow device collector means driver trouble.",
            [Ask(f"max by (kind) ({kinds})", "{{kind}}")],
            none="no node is scraped",
            unit="s",
            decimals=1,
            width=THIRD,
            filled=0,
        ),
    ]


def coverage() -> Row:
    """How much of all GPU time is accounted for."""
    covered = f"node:disagg_coverage:ratio_rate5m{{{N}}}"
    least = f"bottomk({MOST}, min_over_time({covered}[$__range] @ end()))"
    return "How much of all GPU time is known", [
        lines(
            "GPU time accounted for",
            "Share of the time of all GPUs present within the last hour that is in a phase, idle "
            "or unattributed, 5 minutes: the five nodes with the least, and the cluster. Good: "
            "100 %. The rest is unobserved (beside) or not counted, because the daemon or node is "
            "down or not scraped. Work done while no daemon ran is counted late, by the next one.",
            [
                Ask(f"{covered} and on (cluster, node) {least}", "{{node}}"),
                Ask(
                    'cluster:disagg_coverage:ratio_rate5m{cluster=~"$cluster"}',
                    "all of {{cluster}}",
                ),
            ],
            none="no GPU is visible",
            unit="percentunit",
            decimals=0,
            width=THIRD,
            top=1,
            filled=0,
            dashed="all of.*",
        ),
        lines(
            "Unobserved GPUs by reason",
            "GPUs' worth of time about which neither engine nor device reported anything. Good: "
            "0. `no_reading`: a device cannot be read; `no_record`: an engine is silent; "
            "`no_daemon`: no daemon ran and no running total says what was done.",
            [
                Ask(
                    "sum by (reason)"
                    f" (rate(disagg_node_unobserved_seconds_total{{{N}}}[$__rate_interval]))",
                    "{{reason}}",
                )
            ],
            none="no GPU is visible",
            decimals=2,
            width=THIRD,
            at_least=1,
            colours=REASONS,
            runbooks=("DisaggGpuUnobserved",),
        ),
        lines(
            "GPUs expected and seen",
            "Sum of the most GPUs that each node had within the last hour, and GPUs that nodes "
            "report now. Good: one line. A gap: a node or its daemon is down or not scraped; it "
            "stops being expected after an hour.",
            [
                Ask(f"sum (node:disagg_expected_gpus:max1h{{{N}}})", "expected"),
                Ask(f"sum (node:disagg_gpus:sum{{{N}}})", "seen"),
            ],
            none="no GPU is visible",
            decimals=0,
            width=THIRD,
            filled=0,
            colours={"expected": GREY, "seen": BLUE},
            dashed="expected",
            runbooks=("DisaggNodeDown",),
        ),
    ]
