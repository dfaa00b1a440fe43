"""Performance counters, clocks and memory errors: through the real binding under a stub driver."""

from __future__ import annotations

import pytest

from disagg_exporter.devices.nvml.health import throttles_of
from disagg_exporter.model import DeviceReading, Throttle
from support.nvml_stub import StubDriver
from support.nvml_stub.state import GPU_IS_LOST, NO_PERMISSION, NOT_SUPPORTED, UNKNOWN

pytest_plugins = ("support.nvml_stub.fixtures",)


def ratios(reading: DeviceReading) -> tuple[float | None, ...]:
    return (
        reading.graphics_ratio,
        reading.sm_ratio,
        reading.tensor_ratio,
        reading.dram_ratio,
    )


NONE_TOLD = (None, None, None, None)


@pytest.fixture
def counting(stub: StubDriver) -> StubDriver:
    """One GPU with performance counters, opened; its driver's own utilisation says 0.9."""
    stub.state.gpu_count = 1
    stub.state.gpus[0].gpm_supported = 1
    stub.state.gpus[0].utilization_percent = 90
    return stub


def read(stub: StubDriver) -> DeviceReading:
    return stub.child.sweep().readings[0]


def test_activity_ratios_are_means_between_two_sweeps(counting: StubDriver) -> None:
    counting.child.open()
    gpu = counting.state.gpus[0]

    first = read(counting)
    gpu.count(100, 80, 50, 30, 20)
    second = read(counting)
    gpu.count(100, 0, 0, 0, 0)
    gpu.count(300, 100, 40, 20, 200)
    third = read(counting)

    assert (ratios(first), first.busy_ratio) == (NONE_TOLD, 0.9)
    assert (ratios(second), second.busy_ratio) == ((0.8, 0.5, 0.3, 0.2), 0.8)
    assert (ratios(third), third.busy_ratio) == ((0.25, 0.1, 0.05, 0.5), 0.25)


def test_a_gpu_without_counters_has_the_drivers_utilisation(stub: StubDriver) -> None:
    stub.state.gpus[0].utilization_percent = 90

    stub.child.open()
    readings = [read(stub), read(stub)]

    assert [ratios(reading) for reading in readings] == [NONE_TOLD, NONE_TOLD]
    assert [reading.busy_ratio for reading in readings] == [0.9, 0.9]
    assert stub.state.gpm_samples == 0


def test_a_driver_without_the_functions_has_its_own_utilisation(old_stub: StubDriver) -> None:
    old_stub.state.gpus[0].gpm_supported = 1
    old_stub.state.gpus[0].utilization_percent = 40
    old_stub.state.gpus[0].throttle_error = 0
    old_stub.state.gpus[0].throttle_reasons = 0x4

    old_stub.child.open()
    read(old_stub)
    reading = read(old_stub)

    assert (ratios(reading), reading.busy_ratio) == (NONE_TOLD, 0.4)
    assert reading.throttles == (Throttle.POWER_CAP,)


def test_an_unreported_ratio_is_absent_and_the_others_are_present(
    counting: StubDriver,
) -> None:
    counting.state.gpus[0].gpm_metric_error = NOT_SUPPORTED
    counting.child.open()

    read(counting)
    counting.state.gpus[0].count(100, 80, 50, 30, 20)

    assert ratios(read(counting)) == (0.8, 0.5, 0.3, None)


def test_ratios_are_clamped_and_non_numbers_are_absent(
    counting: StubDriver,
) -> None:
    counting.child.open()
    gpu = counting.state.gpus[0]

    read(counting)
    gpu.count(100, 130, 0, 0, 0)
    beyond = read(counting)
    gpu.count(0, 0, 5, 0, 0)
    no_time_passed = read(counting)

    assert ratios(beyond) == (1.0, 0.0, 0.0, 0.0)
    assert (ratios(no_time_passed), no_time_passed.busy_ratio) == (NONE_TOLD, 0.9)


@pytest.mark.parametrize("error", [NO_PERMISSION, NOT_SUPPORTED, UNKNOWN])
def test_counting_restarts_after_a_failed_sample(counting: StubDriver, error: int) -> None:
    counting.child.open()
    gpu = counting.state.gpus[0]

    read(counting)
    gpu.count(100, 80, 0, 0, 0)
    gpu.gpm_error = error
    failed = read(counting)
    gpu.gpm_error = 0
    gpu.count(100, 80, 0, 0, 0)
    first = read(counting)
    gpu.count(100, 10, 0, 0, 0)
    second = read(counting)

    assert (failed.graphics_ratio, failed.busy_ratio) == (None, 0.9)
    assert first.graphics_ratio is None
    assert second.graphics_ratio == 0.1


def test_a_lost_gpu_is_a_failure_and_counts_again_when_it_is_back(counting: StubDriver) -> None:
    counting.child.open()
    gpu = counting.state.gpus[0]

    read(counting)
    gpu.error = GPU_IS_LOST
    lost = counting.child.sweep()
    gpu.error = 0
    read(counting)
    gpu.count(100, 70, 0, 0, 0)

    assert len(lost.failures) == 1
    assert read(counting).graphics_ratio == 0.7


def test_every_sample_is_freed(counting: StubDriver) -> None:
    counting.state.gpu_count = 2
    counting.state.gpus[1].gpm_supported = 1

    counting.child.open()
    opened = counting.state.gpm_samples
    read(counting)
    counting.child.call("shut_down_behind_its_back")
    read(counting)
    reopened = counting.state.gpm_samples
    counting.child.call("close")

    assert (opened, reopened, counting.state.gpm_samples) == (4, 4, 0)


def test_counting_goes_on_after_the_driver_was_opened_again(counting: StubDriver) -> None:
    counting.child.open()
    read(counting)
    counting.child.call("shut_down_behind_its_back")

    read(counting)
    counting.state.gpus[0].count(100, 60, 0, 0, 0)

    assert read(counting).graphics_ratio == 0.6


def mig_of_two(stub: StubDriver, *gpu_instances: int) -> None:
    gpu = stub.state.gpus[0]
    gpu.mig = 1
    for slot, number in enumerate(gpu_instances):
        gpu.instances[slot].gpu_instance = number
        gpu.instances[slot].compute_instance = slot
        gpu.instances[slot].slices = 3


def test_each_mig_instance_has_its_own_counters(counting: StubDriver) -> None:
    mig_of_two(counting, 4, 9)
    counting.child.open()
    gpu = counting.state.gpus[0]

    counting.child.sweep()
    gpu.count(100, 80, 50, 30, 20, slot=0)
    gpu.count(0, 40, 20, 10, 5, slot=1)
    readings = counting.child.sweep().readings

    assert [ratios(reading) for reading in readings] == [
        (0.8, 0.5, 0.3, 0.2),
        (0.4, 0.2, 0.1, 0.05),
    ]
    assert [reading.busy_ratio for reading in readings] == [0.8, 0.4]


def test_compute_instances_that_share_counters_report_none(counting: StubDriver) -> None:
    """The GPU instance's activity cannot be divided between them."""
    mig_of_two(counting, 4, 4)
    counting.child.open()

    counting.child.sweep()
    counting.state.gpus[0].count(100, 80, 50, 30, 20, slot=0)
    readings = counting.child.sweep().readings

    assert [ratios(reading) for reading in readings] == [NONE_TOLD, NONE_TOLD]
    assert [reading.busy_ratio for reading in readings] == [None, None]
    assert counting.state.gpm_samples == 0


@pytest.mark.parametrize(
    ("bits", "throttles"),
    [
        (0x0, ()),
        (0x1, ()),
        (0x4, (Throttle.POWER_CAP,)),
        (0x20, (Throttle.THERMAL,)),
        (0x48, (Throttle.THERMAL, Throttle.HW_SLOWDOWN)),
        (0x80, (Throttle.HW_SLOWDOWN,)),
        (0x11, (Throttle.SYNC_BOOST,)),
        (0x2, (Throttle.OTHER,)),
        (0x1 << 40, (Throttle.OTHER,)),
    ],
)
def test_each_bit_of_the_mask_has_one_reason_and_idleness_has_none(
    bits: int, throttles: tuple[Throttle, ...]
) -> None:
    assert throttles_of(bits) == throttles


def test_throttling_of_a_gpu_is_reported_for_its_instances(counting: StubDriver) -> None:
    mig_of_two(counting, 4, 9)
    counting.state.gpus[0].throttle_error = 0
    counting.state.gpus[0].throttle_reasons = 0x4 | 0x20

    counting.child.open()
    readings = counting.child.sweep().readings

    assert [r.throttles for r in readings] == [(Throttle.POWER_CAP, Throttle.THERMAL)] * 2


def test_unreported_throttling_is_absent_not_empty(stub: StubDriver) -> None:
    stub.state.gpus[1].throttle_error = 0

    stub.child.open()
    readings = stub.child.sweep().readings

    assert [reading.throttles for reading in readings[:2]] == [None, ()]


def test_memory_errors_are_reported_by_kind_and_absent_without_ecc(stub: StubDriver) -> None:
    stub.state.gpus[0].ecc_error = 0
    stub.state.gpus[0].ecc_errors = (12, 1)

    stub.child.open()
    with_ecc, without = stub.child.sweep().readings[:2]

    assert (with_ecc.ecc_corrected_errors, with_ecc.ecc_uncorrected_errors) == (12, 1)
    assert (without.ecc_corrected_errors, without.ecc_uncorrected_errors) == (None, None)


def traffic(reading: DeviceReading) -> dict[tuple[str, str], float]:
    return {(each.link, each.direction): each.bytes for each in reading.traffic}


def test_bytes_over_links_are_added_up_from_the_first_sweep_on(counting: StubDriver) -> None:
    """The counters give means over the time between two samples, in mebibytes per second."""
    counting.child.open()
    gpu = counting.state.gpus[0]

    gpu.move(999, 999, 999, 999)
    first = counting.child.sweep(0).readings[0]
    gpu.count(1000)
    gpu.move(1, 2, 30, 40)
    counting.child.sweep(1_000_000_000)
    gpu.count(1000)
    gpu.move(1, 2, 30, 40)
    last = counting.child.sweep(2_000_000_000).readings[0]

    assert traffic(first) == {}
    assert traffic(last) == {
        ("pcie", "sent"): 2 * 2**20,
        ("pcie", "received"): 4 * 2**20,
        ("nvlink", "sent"): 60 * 2**20,
        ("nvlink", "received"): 80 * 2**20,
    }


def test_bytes_over_links_are_kept_when_the_driver_is_reopened(counting: StubDriver) -> None:
    counting.child.open()
    gpu = counting.state.gpus[0]

    counting.child.sweep(0)
    gpu.count(1000)
    gpu.move(1, 2, 30, 40)
    before = counting.child.sweep(1_000_000_000).readings[0]
    counting.child.call("shut_down_behind_its_back")
    after = counting.child.sweep(2_000_000_000).readings[0]

    assert traffic(before)["pcie", "sent"] == 2**20
    assert traffic(after) == traffic(before)


@pytest.mark.parametrize("without", ["gpm_supported", "gpm_metric_error", "mig"])
def test_without_counters_there_is_no_link_traffic(counting: StubDriver, without: str) -> None:
    gpu = counting.state.gpus[0]
    if without == "mig":
        gpu.mig = 1
        gpu.instances[0].slices, gpu.instances[0].gpu_instance = 3, 1
    else:
        setattr(gpu, without, 0 if without == "gpm_supported" else NOT_SUPPORTED)
    counting.child.open()

    counting.child.sweep(0)
    gpu.count(1000)
    gpu.move(5, 5, 5, 5)

    assert traffic(counting.child.sweep(1_000_000_000).readings[0]) == {}


def test_temperatures_and_the_power_limit_are_read_once_a_second(
    counting: StubDriver,
) -> None:
    counting.child.open()
    gpu = counting.state.gpus[0]
    gpu.celsius, gpu.memory_celsius, gpu.limit_milliwatts = 61, 72, 650_000

    first = counting.child.sweep(0).readings[0]
    gpu.celsius = 62
    soon = counting.child.sweep(900_000_000).readings[0]
    later = counting.child.sweep(1_000_000_000).readings[0]

    assert (first.temperature_celsius, first.memory_temperature_celsius) == (61.0, 72.0)
    assert first.power_limit_watts == 650.0
    assert (soon.temperature_celsius, later.temperature_celsius) == (61.0, 62.0)


@pytest.mark.parametrize("error", [NOT_SUPPORTED, NO_PERMISSION, UNKNOWN])
def test_values_of_missing_sensors_are_absent(counting: StubDriver, error: int) -> None:
    gpu = counting.state.gpus[0]
    gpu.temperature_error = gpu.field_error = gpu.limit_error = error
    counting.child.open()

    reading = read(counting)

    assert reading.temperature_celsius is None
    assert reading.memory_temperature_celsius is None
    assert reading.power_limit_watts is None


def test_a_memory_temperature_of_0_means_no_sensor(counting: StubDriver) -> None:
    counting.state.gpus[0].memory_celsius = 0
    counting.child.open()

    assert read(counting).memory_temperature_celsius is None


def test_an_instance_has_its_gpus_temperature(counting: StubDriver) -> None:
    gpu = counting.state.gpus[0]
    gpu.mig, gpu.celsius, gpu.limit_milliwatts = 1, 55, 400_000
    gpu.instances[0].slices, gpu.instances[0].gpu_instance = 3, 1
    counting.child.open()

    reading = read(counting)

    assert (reading.temperature_celsius, reading.power_limit_watts) == (55.0, None)
