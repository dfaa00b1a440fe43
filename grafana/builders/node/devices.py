"""Rows of the Node dashboard: the devices' own readings, and the engines they serve."""

from __future__ import annotations

from grafana.builders.node.queries import (
    BY_ROLE,
    OBSERVED,
    G,
    by_role,
    in_phase,
    mean,
    rate,
)
from grafana.builders.panels.board import ENGINE_OF_CHOSEN_NODE_LINK, Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.frame import QUARTER, THIRD
from grafana.builders.panels.palette import PHASES, ROLE_TONES, THROTTLING, UNITS
from grafana.builders.panels.queries import Ask, age, each, once
from grafana.builders.panels.tables import Column, rows


def devices() -> Row:
    """The driver's own readings."""
    return "Devices", [
        lines(
            "Utilisation",
            "The driver's own figure: share of time in which any kernel ran, mean of samples. "
            "Busy, not full: one small endless kernel shows 100 %. Bad: high on a GPU whose row "
            "above is grey.",
            [Ask(mean("disagg_gpu_utilization_ratio"), BY_ROLE)],
            unit="percentunit",
            top=1,
            width=QUARTER,
            height=9,
            filled=0,
            tones=ROLE_TONES,
            none="no device here reports it",
        ),
        lines(
            "Power",
            "Watts drawn, mean of samples. Prefill runs near the GPU's limit, decode well below "
            "it. Bad: a busy GPU that draws much less than others of its role; it is throttled, "
            "or waits inside kernels.",
            [Ask(mean("disagg_gpu_power_watts"), BY_ROLE)],
            unit="watt",
            decimals=0,
            width=QUARTER,
            height=9,
            filled=0,
            tones=ROLE_TONES,
            none="no device here reports it",
        ),
        lines(
            "Temperature",
            "Degrees Celsius of each GPU, and of its memory if it has a sensor, mean of samples. "
            "Good: GPUs of one role alike. Bad: one far above its neighbours, or rising at the "
            "same work: check whether it is throttled (`thermal`).",
            [
                Ask(mean("disagg_gpu_temperature_celsius", sensor), f"{BY_ROLE}{name}")
                for sensor, name in (("gpu", ""), ("memory", ", memory"))
            ],
            unit="celsius",
            decimals=0,
            width=QUARTER,
            height=9,
            filled=0,
            tones=ROLE_TONES,
            none="no device here has such a sensor",
            runbooks=("DisaggGpuThrottled",),
        ),
        lines(
            "Memory in use",
            "Share of device memory in use by any program. Engines allocate theirs at the start, "
            "so flat is good. Bad: growth after the start, or memory in use on a GPU without an "
            "engine.",
            [
                Ask(
                    by_role(
                        f"{once('disagg_gpu_memory_used_bytes', G)}"
                        f" / on (gpu) ({once('disagg_gpu_memory_total_bytes', G)} > 0)"
                    ),
                    BY_ROLE,
                )
            ],
            unit="percentunit",
            top=1,
            width=QUARTER,
            height=9,
            filled=0,
            tones=ROLE_TONES,
            none="no device here reports it",
        ),
    ]


def activity() -> Row:
    """Activity of the GPUs' parts, power by phase, and throttling."""
    told = rate("disagg_gpu_activity_seconds_total", f'{G}, role!="none", unit!="graphics"')
    units = f"sum by (cluster, node, gpu, role, unit) ({told})"
    observed = rate("disagg_gpu_phase_seconds_total", G)
    # Only GPUs that report the unit: MIG instances do not.
    seconds = (
        f"{units} ^ 0 * on (cluster, node, gpu, role) group_left ()"
        f" sum by (cluster, node, gpu, role) ({observed})"
    )
    joules = "disagg_gpu_phase_energy_joules_total"
    return "Activity and energy", [
        lines(
            "Activity by role",
            "Mean activity of multiprocessors (sm), tensor cores and memory (dram), by the GPU's "
            "role. Good: prefill high on tensor (compute-bound), decode high on dram "
            "(bandwidth-bound). Bad: busy above but low here; time is lost inside steps. Absent "
            "where the driver does not report it.",
            [
                Ask(
                    f"sum by (role, unit) ({units}) / (sum by (role, unit) ({seconds}) > 0)",
                    "{{role}} {{unit}}",
                )
            ],
            unit="percentunit",
            width=THIRD,
            height=9,
            top=1,
            filled=0,
            colours=UNITS,
            none="the drivers do not report the activity of these GPUs",
        ),
        lines(
            "Power by phase",
            "Watts by what the GPU time was spent on. Good: mostly blue and orange. Grey is power "
            "for GPUs that wait.",
            each(OBSERVED, f"sum ({rate(joules, in_phase('%s'))})"),
            unit="watt",
            decimals=1,
            width=THIRD,
            height=9,
            stacked=True,
            colours=PHASES,
            none="devices report no energy",
        ),
        lines(
            "Throttled GPUs by reason",
            "GPUs' worth of time with clocks held back; several reasons may apply at once. Good: "
            "none, or `power_cap` under full prefill. Bad: `thermal` (cooling) and `hw_slowdown` "
            "(power supply or heat; clocks halved or worse).",
            [
                Ask(
                    f"sum by (reason) ({rate('disagg_gpu_throttle_seconds_total', G)})",
                    "{{reason}}",
                )
            ],
            decimals=2,
            width=THIRD,
            height=9,
            at_least=1,
            colours=THROTTLING,
            none="the drivers do not report throttling",
            runbooks=("DisaggGpuThrottled",),
        ),
    ]


def assignments() -> Row:
    """Which engine each GPU serves."""
    pairs = f"max by (gpu, engine, role, source, confidence) (disagg_gpu_assignment_info{{{G}}})"
    return "Who serves on which GPU", [
        rows(
            "Assignments",
            "Which engine each GPU serves, and how that is known. Good: source `config`, "
            "confidence `certain`. A GPU missing here has no engine.",
            [
                Ask(pairs),
                Ask(f"max by (gpu, index, gpu_name) (disagg_gpu_info{{{G}}})"),
                Ask(f"max by (gpu) (disagg_gpu_memory_used_bytes{{{G}}})"),
                Ask(f"max by (gpu) {age('disagg_gpu_watermark_timestamp_seconds', G)}"),
            ],
            [
                Column("index", "GPU", width=60),
                Column("gpu", "UUID"),
                Column("gpu_name", "Kind"),
                Column("engine", "Engine", link=ENGINE_OF_CHOSEN_NODE_LINK),
                Column("role", "Role"),
                Column("source", "Source"),
                Column("confidence", "Confidence"),
                Column("C", "Memory", unit="bytes", decimals=1),
                Column("D", "Watermark lag", unit="s", decimals=1),
            ],
            sort="GPU",
            none="no engine on the GPUs of this node",
            ascending=True,
            height=10,
            runbooks=("DisaggGpuUnassigned",),
        )
    ]
