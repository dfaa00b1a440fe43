"""Activity and throttling as running totals of what a device reports."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.accounting.devices.meters import Meters
from disagg_exporter.model import (
    SLICE_NS_PER_GPU_SECOND,
    ActivityCell,
    DeviceReading,
    EngineState,
    Role,
    Throttle,
    Unit,
)
from support.accounting import NodeAccounting


def activity(accounting: NodeAccounting) -> dict[tuple[Role, Unit], float]:
    (account,) = accounting.ledger.device_accounts()
    return {
        (cell.role, cell.unit): round(slice_ns / SLICE_NS_PER_GPU_SECOND, 6)
        for cell, slice_ns in account.active_slice_ns.items()
    }


def read_seconds(accounting: NodeAccounting) -> dict[tuple[Role, Unit], float]:
    (account,) = accounting.ledger.device_accounts()
    return {
        (cell.role, cell.unit): round(slice_ns / SLICE_NS_PER_GPU_SECOND, 6)
        for cell, slice_ns in account.read_slice_ns.items()
    }


def throttled(accounting: NodeAccounting) -> dict[Throttle, float]:
    (account,) = accounting.ledger.device_accounts()
    return {reason: round(ns / 1e9, 6) for reason, ns in account.throttled_ns.items()}


def test_activity_reported_without_a_busy_ratio_is_counted() -> None:
    """dcgm-exporter's page says how active a device was, not when."""
    meters = Meters()
    reading = DeviceReading("GPU-0", 2_000_000_000, graphics_ratio=0.5)

    meters.read(reading, 1_000_000_000, Role.NONE, ("", ""))

    assert meters.activity == {ActivityCell(Role.NONE, Unit.GRAPHICS): 500_000_000}


def test_activity_is_its_ratio_times_the_time_since_the_reading_before() -> None:
    accounting = NodeAccounting()
    accounting.engine(role=Role.DECODE)
    parts: dict[str, float] = {
        "busy_ratio": 0.8,
        "sm_ratio": 0.5,
        "tensor_ratio": 0.1,
        "dram_ratio": 0.75,
    }
    for tick in range(11):
        accounting.tell(tick / 10, **parts)

    assert activity(accounting) == {
        (Role.DECODE, Unit.GRAPHICS): 0.8,
        (Role.DECODE, Unit.SM): 0.5,
        (Role.DECODE, Unit.TENSOR): 0.1,
        (Role.DECODE, Unit.DRAM): 0.75,
    }


def test_activity_is_counted_when_read_without_waiting_for_the_watermark() -> None:
    accounting = NodeAccounting()
    accounting.engine(role=Role.PREFILL)
    accounting.tell(0, busy_ratio=1.0)
    accounting.tell(1, busy_ratio=1.0)

    assert accounting.watermark() == 0
    assert activity(accounting) == {(Role.PREFILL, Unit.GRAPHICS): 1}


def test_the_time_over_which_activity_was_read_is_counted_with_it() -> None:
    """By the role at the reading, and neither before a unit is read nor over a gap."""
    accounting = NodeAccounting(weight=3 / 7)
    accounting.engine(role=Role.PREFILL)
    accounting.tell(0, busy_ratio=1.0)
    accounting.tell(1, busy_ratio=1.0, sm_ratio=1.0)
    accounting.engine(role=Role.DECODE, since=1)
    accounting.tell(1.5, busy_ratio=1.0, sm_ratio=1.0)
    accounting.tell(31.5, busy_ratio=1.0, sm_ratio=1.0)

    assert accounting.watermark() < 31.5
    assert read_seconds(accounting) == activity(accounting)
    assert read_seconds(accounting)[Role.DECODE, Unit.SM] == round(1.5 * 3 / 7, 6)


def test_activity_is_accounted_to_the_role_at_its_reading() -> None:
    accounting = NodeAccounting()
    accounting.engine(role=Role.PREFILL)
    accounting.tell(0, sm_ratio=0.5)
    accounting.tell(1, sm_ratio=0.5)
    accounting.engine(role=Role.DECODE, since=1)
    accounting.tell(2, sm_ratio=1.0)
    accounting.engine(role=Role.DECODE, state=EngineState.DRAINING, since=2)
    accounting.tell(3, sm_ratio=0.25)

    assert activity(accounting) == {
        (Role.PREFILL, Unit.SM): 0.5,
        (Role.DECODE, Unit.SM): 1.0,
        (Role.NONE, Unit.SM): 0.25,
    }


def test_a_slices_activity_is_weighted_like_its_seconds() -> None:
    accounting = NodeAccounting(weight=3 / 7)
    accounting.tell(0, busy_ratio=1.0)
    accounting.tell(1, busy_ratio=1.0)

    assert activity(accounting) == {(Role.NONE, Unit.GRAPHICS): round(3 / 7, 6)}


def test_a_unit_is_absent_until_reported_and_then_starts_at_zero() -> None:
    accounting = NodeAccounting()
    accounting.tell(0, busy_ratio=1.0)
    accounting.tell(0.1, power_watts=70.0)

    assert activity(accounting) == {(Role.NONE, Unit.GRAPHICS): 0}
    assert throttled(accounting) == {}


def test_a_gap_in_the_readings_counts_as_one_second_at_most() -> None:
    accounting = NodeAccounting()
    accounting.tell(0, busy_ratio=1.0, throttles=(Throttle.THERMAL,))
    accounting.tell(30, busy_ratio=1.0, throttles=(Throttle.THERMAL,))

    assert activity(accounting) == {(Role.NONE, Unit.GRAPHICS): 1}
    assert throttled(accounting)[Throttle.THERMAL] == 1


def test_throttling_is_counted_per_reason_and_all_reasons_exist_once_reported() -> None:
    """Two reasons may hold at once, so their seconds do not sum to time."""
    accounting = NodeAccounting()
    accounting.tell(0, throttles=())
    accounting.tell(0.5, throttles=(Throttle.POWER_CAP, Throttle.THERMAL))
    accounting.tell(0.75, throttles=(Throttle.POWER_CAP,))

    assert throttled(accounting) == {
        Throttle.POWER_CAP: 0.75,
        Throttle.THERMAL: 0.5,
        Throttle.HW_SLOWDOWN: 0,
        Throttle.SYNC_BOOST: 0,
        Throttle.OTHER: 0,
    }


RATIO = st.none() | st.floats(0, 1)
READINGS = st.lists(
    st.fixed_dictionaries(
        {
            "t": st.integers(0, 10**11),
            "busy_ratio": RATIO,
            "sm_ratio": RATIO,
            "throttles": st.none() | st.lists(st.sampled_from(Throttle), unique=True).map(tuple),
            "role": st.sampled_from(Role),
        }
    ),
    max_size=20,
)


@given(READINGS)
def test_no_meter_falls_or_counts_more_than_the_elapsed_time(told: list[dict[str, Any]]) -> None:
    """Even when readings go back in time, which they should not."""
    meters, before_ns, passed_ns = Meters(), None, 0
    before: Counter[ActivityCell] = Counter()
    for reading in told:
        t_ns, role = reading["t"], reading["role"]
        values = {key: value for key, value in reading.items() if key not in ("t", "role")}
        meters.read(DeviceReading("g", t_ns, **values), before_ns, role, ("m", ""))
        if before_ns is not None:
            passed_ns += max(t_ns - before_ns, 0)
        before_ns = t_ns
        assert all(meters.activity[cell] >= length_ns for cell, length_ns in before.items())
        assert all(ns <= meters.lengths[cell] for cell, ns in meters.activity.items())
        before = Counter(meters.activity)

    for unit in Unit:
        active_ns = sum(ns for cell, ns in meters.activity.items() if cell.unit is unit)
        assert active_ns <= passed_ns + len(told)
    assert all(length_ns <= passed_ns for length_ns in meters.throttled.values())
