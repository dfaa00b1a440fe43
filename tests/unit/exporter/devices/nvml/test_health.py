"""Xid errors and processes by the real pynvml over a stub driver."""

from __future__ import annotations

import pytest

from support.nvml_stub import StubDriver
from support.nvml_stub.state import GPU_IS_LOST, NOT_SUPPORTED, Instance

pytest_plugins = ("support.nvml_stub.fixtures",)

SECOND = 1_000_000_000
MILLION = 1_000_000


@pytest.fixture(autouse=True)
def _reporting(stub: StubDriver) -> None:
    """All GPUs report events."""
    for gpu in stub.state.gpus:
        gpu.events_error = 0


def test_xid_errors_are_counted_by_number_from_the_opening_on(stub: StubDriver) -> None:
    stub.child.open()
    before = stub.child.sweep().readings[1]

    stub.state.report(1, 79, 31, 79)
    stub.state.report(2, 48)
    readings = stub.child.sweep().readings

    assert before.xid_errors == ()
    assert readings[0].xid_errors == ()
    assert readings[1].xid_errors == ((31, 1), (79, 2))
    assert readings[2].xid_errors == ((48, 1),)


def test_a_gpu_that_falls_off_the_bus_reports_its_last_error(stub: StubDriver) -> None:
    """It answers nothing from then on, not even its name; the error is still reported."""
    stub.child.open()
    stub.child.sweep()

    stub.state.gpus[1].error = GPU_IS_LOST
    stub.state.report(1, 79)
    stub.state.report(0, 31)
    sweep = stub.child.sweep()

    (lost,) = sweep.failures
    assert lost.xid_errors == ((79, 1),)
    assert sweep.readings[0].xid_errors == ((31, 1),)


def test_a_gpu_without_events_has_no_xid_errors(stub: StubDriver) -> None:
    stub.state.gpus[1].events_error = NOT_SUPPORTED

    stub.child.open()
    readings = stub.child.sweep().readings

    assert readings[0].xid_errors == ()
    assert readings[1].xid_errors is None


def test_xid_numbers_beyond_the_limit_are_counted_together(stub: StubDriver) -> None:
    """A broken driver must not create labels without limit."""
    stub.child.open()

    for start in range(1, 49, 8):
        stub.state.report(0, *range(start, start + 8))
        readings = stub.child.sweep().readings

    counted = dict(readings[0].xid_errors or ())
    assert len(counted) == 33
    assert counted[0] == 48 - 32


def test_xid_errors_count_for_their_instance_or_for_all_of_the_gpu(
    stub: StubDriver,
) -> None:
    gpu = stub.state.gpus[0]
    gpu.mig = 1
    for slot, number in enumerate((3, 5)):
        gpu.instances[slot] = Instance(slices=3, gpu_instance=number, memory_total_bytes=1)

    stub.child.open()
    stub.state.report(0, 13, instance=5)
    stub.state.report(0, 79)
    third, fifth = stub.child.sweep().readings[:2]

    assert third.xid_errors == ((79, 1),)
    assert fifth.xid_errors == ((13, 1), (79, 1))


def test_counts_continue_when_the_driver_is_reopened(stub: StubDriver) -> None:
    stub.child.open()
    stub.state.report(0, 31)
    stub.child.sweep()

    stub.child.call("shut_down_behind_its_back")
    stub.child.sweep()
    stub.state.report(0, 31)
    reading = stub.child.sweep().readings[0]

    assert reading.xid_errors == ((31, 2),)


def test_the_event_set_is_freed(stub: StubDriver) -> None:
    before = stub.state.event_sets

    stub.child.open()
    opened = stub.state.event_sets
    stub.child.call("close")

    assert (opened - before, stub.state.event_sets - before) == (1, 0)


def test_without_a_gpu_that_reports_there_is_no_event_set(stub: StubDriver) -> None:
    before = stub.state.event_sets
    for gpu in stub.state.gpus:
        gpu.events_error = NOT_SUPPORTED

    stub.child.open()

    assert stub.state.event_sets == before


def test_process_shares_come_from_samples_since_the_last_reading(stub: StubDriver) -> None:
    """The first call only finds where samples begin: old ones may be minutes old."""
    gpu = stub.state.gpus[0]
    gpu.sample((5 * MILLION, 11, 99))
    stub.child.open()

    first = stub.child.sweep(0).readings[0]
    gpu.sample(
        (5 * MILLION, 11, 99), (6 * MILLION, 11, 40), (7 * MILLION, 11, 60), (7 * MILLION, 12, 25)
    )
    second = stub.child.sweep(SECOND).readings[0]
    third = stub.child.sweep(2 * SECOND).readings[0]

    assert first.process_ratios is None
    assert second.process_ratios == ((11, 0.5), (12, 0.25))
    assert third.process_ratios == ()


def test_invalid_process_samples_are_left_out(stub: StubDriver) -> None:
    """A process of another PID namespace is reported as 0; an ended one as thousands of percent."""
    gpu = stub.state.gpus[0]
    gpu.sample((1, 11, 50))
    stub.child.open()

    stub.child.sweep(0)
    gpu.sample((2, 0, 50), (2, 11, 4000), (2, 12, 100))
    reading = stub.child.sweep(SECOND).readings[0]

    assert reading.process_ratios == ((12, 1.0),)


def test_a_lost_gpu_does_not_affect_the_others(stub: StubDriver) -> None:
    stub.child.open()

    stub.state.gpus[0].error = GPU_IS_LOST
    stub.state.report(1, 79)
    sweep = stub.child.sweep()

    assert [failure.gpu[-1] for failure in sweep.failures] == ["0"]
    assert sweep.readings[0].xid_errors == ((79, 1),)
