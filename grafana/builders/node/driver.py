"""Folded row of the Node dashboard: what only a real driver reports."""

from __future__ import annotations

from grafana.builders.node.queries import BY_ROLE, NAMED, SHORT, G, mean
from grafana.builders.panels.board import Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.frame import THIRD
from grafana.builders.panels.palette import RED, ROLE_TONES, TEAL
from grafana.builders.panels.queries import Ask


def driver() -> Row:
    """Folded: simulated and pseudo-devices have no clock and no errors."""
    xids = f"increase(disagg_gpu_xid_errors_total{{{G}}}[1h])"
    ecc = f"increase(disagg_gpu_ecc_errors_total{{{G}}}[1h])"
    return "What only a real driver reports", [
        lines(
            "SM clock",
            "Clock of the streaming multiprocessors. Good: at its maximum while busy. Bad: lower "
            "than on other GPUs of the same kind at the same work; heat or a power limit.",
            [Ask(mean("disagg_gpu_sm_clock_hertz"), BY_ROLE)],
            tones=ROLE_TONES,
            none="no device here reports its clock",
            unit="hertz",
            decimals=2,
            width=THIRD,
            height=9,
            filled=0,
            runbooks=("DisaggGpuThrottled",),
        ),
        lines(
            "Xid errors of an hour",
            "Errors that the driver reported within the last hour, by GPU and NVIDIA's number. "
            "Good: none. 48, 74, 79, 94 and 95 end or harm the work on the GPU; look others up.",
            [
                Ask(
                    "sum by (index, end, xid)"
                    f" (({xids} > 0) * on (gpu) group_left (index, end) {SHORT})",
                    f"{NAMED}: Xid {{{{xid}}}}",
                )
            ],
            decimals=0,
            width=THIRD,
            height=9,
            at_least=1,
            filled=0,
            tones={".*": RED},
            none="no Xid error",
            runbooks=("DisaggGpuXidError", "DisaggGpuLost"),
        ),
        lines(
            "Memory errors of an hour",
            "ECC errors that the driver counted within the last hour, by GPU and kind. A few "
            "`corrected` ones do no harm; any `uncorrected` one may have ended an engine.",
            [
                Ask(
                    "sum by (index, end, kind)"
                    f" (({ecc} > 0) * on (gpu) group_left (index, end) {SHORT})",
                    f"{NAMED}: {{{{kind}}}}",
                )
            ],
            decimals=0,
            width=THIRD,
            height=9,
            at_least=1,
            filled=0,
            tones={".*: corrected": TEAL, ".*: uncorrected": RED},
            none="no memory error",
            runbooks=("DisaggGpuMemoryErrors",),
        ),
    ]
