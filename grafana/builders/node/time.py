"""Rows of the Node dashboard: how the GPUs spent their time."""

from __future__ import annotations

from typing import Any

from grafana.builders.node.queries import (
    BOTH,
    NAMED,
    OBSERVED,
    SHORT,
    G,
    N,
    in_phase,
    main_use,
    rate,
)
from grafana.builders.panels.board import ENGINE_OF_CHOSEN_NODE_LINK, Row
from grafana.builders.panels.charts import lines, numbers
from grafana.builders.panels.frame import THIRD
from grafana.builders.panels.limits import UNATTRIBUTED_SHARE, WATERMARK_SECONDS
from grafana.builders.panels.palette import BLUE, GREY, ORANGE, PHASES, REASONS, ROLES
from grafana.builders.panels.queries import Ask, age, each, once
from grafana.builders.panels.tables import Column, rows
from grafana.builders.panels.timelines import states


def now() -> Row:
    """Current figures; no header."""
    gpus_by_role, others = "disagg_node_role_gpus", f'{N}, role!~"prefill|decode"'
    in_phase_here, one_role = f'{N}, phase="%s"', f'{N}, role="%s"'
    phases, unexplained = "disagg_node_phase_seconds_total", f'{N}, phase="unattributed"'
    return "", [
        numbers(
            "P:D, 1 minute",
            "GPU-seconds of prefill over GPU-seconds of decode on this node. A node with one role "
            "correctly shows 0 or nothing.",
            [Ask(f"node:disagg_prefill_decode_ratio:ratio_rate1m{{{N}}}")],
            decimals=2,
            none="one phase only",
        ),
        numbers(
            "Prefill share, 1 minute",
            "Prefill's share of this node's working GPU time. Compare it with nodes of the same "
            "layout: a node that differs gets different requests.",
            [Ask(f"node:disagg_prefill_share:ratio_rate1m{{{N}}}")],
            unit="percentunit",
            decimals=0,
            none="no work",
        ),
        numbers(
            "Busy GPUs now",
            "GPUs' worth of work over the last seconds, by phase; provisional.",
            each(BOTH, f"sum ({once('disagg_node_busy_gpus', in_phase_here)})"),
            decimals=1,
            colours=PHASES,
            none="not scraped",
        ),
        numbers(
            "GPUs by role",
            "How many GPUs have each role now. `none`: no engine that is ready.",
            [
                *each(BOTH, f"sum ({once(gpus_by_role, one_role)})"),
                Ask(f"sum by (role) ({once(gpus_by_role, others)}) > 0", "{{role}}"),
            ],
            decimals=0,
            colours=ROLES,
            none="not scraped",
        ),
        numbers(
            "Unattributed, 5 min",
            "Share of observed GPU time that was busy with work that no engine reported. Good: "
            "below 1 %. More: another program uses the GPUs, or an engine does not report its "
            "steps.",
            [
                Ask(
                    f"sum ({rate(phases, unexplained, '5m')})"
                    f" / (sum ({rate(phases, N, '5m')}) >= 1 / 300)"
                )
            ],
            unit="percentunit",
            decimals=1,
            steps=((None, "green"), (0.01, "yellow"), (UNATTRIBUTED_SHARE, "red")),
            none="no time observed",
            runbooks=("DisaggGpuUnattributed",),
        ),
        numbers(
            "Watermark lag",
            "Age of the oldest committed GPU-second. Good: some seconds. More than a minute: an "
            "engine is silent or a device cannot be read, and the rates above lag equally.",
            [Ask(f"max {age('disagg_gpu_watermark_timestamp_seconds', G)}")],
            unit="s",
            decimals=1,
            steps=((None, "green"), (30, "yellow"), (WATERMARK_SECONDS, "red")),
            none="not scraped",
            runbooks=("DisaggWatermarkLag",),
        ),
    ]


def gpus() -> Row:
    """What each GPU did, over time and in total."""
    every = f"sum by (gpu) (increase(disagg_gpu_phase_seconds_total{{{G}}}[$__range]))"

    def part(phase: str) -> Ask:
        seconds = f"increase(disagg_gpu_phase_seconds_total{{{in_phase(phase)}}}[$__range])"
        return Ask(f"sum by (gpu) ({seconds}) / ({every} >= 1)")

    return "GPUs over time", [
        states(
            "Main use of each GPU",
            "What took most of each GPU's time. Good: each pool in its own colour, blue for "
            "prefill, orange for decode. Grey rows in a busy pool are GPUs that get no requests; "
            "violet is unobserved.",
            [Ask(main_use(), NAMED)],
            PHASES,
            none="no GPU of this node is visible",
        ),
        lines(
            "What this node's GPUs do",
            "All GPUs of the node by what they do. Good: mostly blue and orange, up to the number "
            "of GPUs.",
            [
                *each(OBSERVED, f"sum ({rate('disagg_gpu_phase_seconds_total', in_phase('%s'))})"),
                Ask(f"sum ({rate('disagg_gpu_unobserved_seconds_total', G)})", "unobserved"),
            ],
            decimals=1,
            stacked=True,
            height=11,
            colours=PHASES,
            none="no GPU of this node is visible",
        ),
        rows(
            "Each GPU over the whole time shown",
            "Share of observed time by use. Good: GPUs of one role alike. A GPU that works less "
            "than its neighbours gets fewer requests; one with much unattributed time is used by "
            "another program.",
            [
                Ask(f"max by (gpu, index, end) ({SHORT})"),
                Ask(f"max by (gpu, engine) (disagg_gpu_assignment_info{{{G}}})"),
                *(part(phase) for phase in ("prefill", "decode", "idle", "unattributed")),
            ],
            [
                Column("index", "GPU", width=60),
                Column("end", "UUID …", width=80),
                Column("engine", "Engine", link=ENGINE_OF_CHOSEN_NODE_LINK),
                Column("C", "Prefill", width=115, bar=BLUE),
                Column("D", "Decode", width=115, bar=ORANGE),
                Column("E", "Idle", width=115, bar=GREY),
                Column("F", "Unattributed", unit="percentunit", decimals=1, width=110),
            ],
            sort="GPU",
            ascending=True,
            width=12,
            height=11,
            none="no GPU of this node is visible",
        ),
    ]


def lost() -> Row:
    """Idle, unattributed and unobserved time by reason."""

    def reasons(title: str, metric: str, good: str, kept: str = "", runbook: str = "") -> Any:
        return lines(
            title,
            good,
            [Ask(f"sum by (reason) ({rate(metric, G)}){kept}", "{{reason}}")],
            decimals=2,
            width=THIRD,
            at_least=1,
            # Unattributed and unobserved time is mostly 0, which a stack would hide.
            stacked=bool(kept),
            colours=REASONS,
            none="none in this time range",
            runbooks=[runbook] if runbook else (),
        )

    return "Time that was not work", [
        reasons(
            "Idle GPUs by reason",
            "disagg_gpu_idle_seconds_total",
            "GPUs' worth of idle time. `no_request` is spare capacity; `kv_wait` is a decode GPU "
            "whose requests wait for their KV; `host_gap` is the pause between steps. The last "
            "two lose time while there is work.",
            f" and sum by (reason) (disagg_gpu_idle_seconds_total{{{G}}}) > 0",
        ),
        reasons(
            "Unattributed GPUs by reason",
            "disagg_gpu_unattributed_seconds_total",
            "GPUs' worth of activity that no engine explains. Good: none. `stranger`: another "
            "program on the GPU; `no_record`: an engine that does not report its steps; `dummy`: "
            "steps that serve no request (warm-up, data-parallel idling).",
            runbook="DisaggGpuUnattributed",
        ),
        reasons(
            "Unobserved GPUs by reason",
            "disagg_gpu_unobserved_seconds_total",
            "GPUs' worth of time about which nothing is known. Good: none. `no_reading`: the "
            "device could not be read; `no_daemon`: the daemon was down.",
            runbook="DisaggGpuUnobserved",
        ),
    ]
