"""What one pod's stream of steps may add to the accounting of a node."""

from __future__ import annotations

import numpy as np
import pytest

from disagg_cluster.discovery.pod_steps.admission import (
    MAX_RANKS,
    MAX_STREAMS,
    STREAMS_AT_ONCE,
    AdmissionControl,
)
from disagg_exporter.model import Step, StepTotals, StreamKey
from disagg_exporter.steps.messages import ControlMessage, MessageKind, StepRecords
from disagg_exporter.steps.rows import rows_of
from support.accounting import ns

NOW = ns(10_000)


def message(incarnation: int = 1, index: int = 0, age_seconds: float = 0.0, **facts: object):  # type: ignore[no-untyped-def]
    t_ns = NOW - ns(age_seconds)
    step = Step(t_ns, ns(0.01), 1)._replace(**facts)  # type: ignore[arg-type]
    return StepRecords(StreamKey("uid", 0, incarnation, index), 0, rows_of([step]))


@pytest.mark.parametrize("age", [0.0, 5.0, 599.0])
def test_steps_of_the_recent_past_pass(age: float) -> None:
    assert AdmissionControl(0).admitted(message(age_seconds=age), NOW) is not None


def test_totals_of_years_are_accepted() -> None:
    years_ns = ns(4 * 365 * 86400)
    told = message(totals=StepTotals(elapsed_ns=(0, years_ns, 0, 0)))

    assert AdmissionControl(0).admitted(told, NOW) is not None


@pytest.mark.parametrize(
    "told",
    [
        message(age_seconds=-1.0),
        message(age_seconds=601.0),
        message(elapsed_ns=ns(601)),
        message(elapsed_ns=1 << 63),
        message(kv_usage_ratio=float("nan")),
        message(kv_usage_ratio=float("inf")),
        message(kv_usage_ratio=-0.1),
        message(sequence=1 << 60),
        message(totals=StepTotals(prefill_tokens=1 << 63)),
        message(totals=StepTotals(elapsed_ns=(1 << 63, 0, 0, 0))),
        message(index=MAX_RANKS),
    ],
)
def test_implausible_records_are_refused_and_counted(told: StepRecords) -> None:
    gate = AdmissionControl(0)

    assert gate.admitted(told, NOW) is None
    assert gate.refused == 1


def test_valid_records_pass_without_invalid_ones() -> None:
    gate, good = AdmissionControl(0), message()
    mixed = good._replace(rows=np.concatenate((good.rows, message(age_seconds=601.0).rows)))

    admitted = gate.admitted(mixed, NOW)

    assert isinstance(admitted, StepRecords)
    assert (admitted.rows.tolist(), gate.refused) == (good.rows.tolist(), 1)


def test_hellos_and_disconnects_obey_the_same_limits() -> None:
    gate, key = AdmissionControl(0), StreamKey("uid", 0, 1, 0)
    hello = ControlMessage(MessageKind.HELLO, key, 0, Step(NOW, 0, 1), NOW)

    assert gate.admitted(hello, NOW) == hello
    gone = ControlMessage(MessageKind.DISCONNECTED, key, 0, None, NOW)
    assert gate.admitted(gone, NOW) == gone
    assert gate.admitted(hello._replace(step=Step(NOW, 0, 1 << 60)), NOW) is None
    assert gate.admitted(gone._replace(t_ns=NOW + ns(1)), NOW) is None


def test_new_streams_are_limited_to_plausible_restarts() -> None:
    gate = AdmissionControl(NOW)

    def admitted(now_ns: int, days: float) -> int:
        told = (message(incarnation=at, age_seconds=-days * 86400) for at in range(10_000))
        return sum(gate.admitted(each, now_ns) is not None for each in told)

    assert admitted(NOW, days=0) == STREAMS_AT_ONCE
    assert gate.admitted(message(incarnation=0), NOW), "those that are known go on"
    assert admitted(NOW + ns(30 * 86400), days=30) == MAX_STREAMS
