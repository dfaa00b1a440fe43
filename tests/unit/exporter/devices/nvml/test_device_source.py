"""The real pynvml over a stub driver: what is read, and what is left out when not reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from disagg_exporter.devices.source import DevicesUnavailable
from disagg_exporter.model import Device, DeviceFailure, DeviceReading
from support.nvml_stub import NvmlChild, StubDriver
from support.nvml_stub.state import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNINITIALIZED,
    UNKNOWN,
)

pytest_plugins = ("support.nvml_stub.fixtures",)

GIB = 1024**3
SECOND = 1_000_000_000


def uuid(number: int) -> str:
    return f"GPU-57ab0000-0000-0000-0000-{number:012x}"


def test_the_driver_under_test_is_the_stub(stub: StubDriver) -> None:
    stub.child.open()

    assert stub.child.call("driver_version") == "stub"


def test_every_gpu_is_listed_with_what_identifies_it(stub: StubDriver) -> None:
    stub.state.gpus[2].minor = 5

    stub.child.open()
    inventory = stub.child.inventory()

    assert [device.gpu for device in inventory] == [uuid(number) for number in range(8)]
    assert inventory[2] == Device(
        gpu=uuid(2),
        index=2,
        gpu_name="Stub GPU",
        device="nvidia5",
        pci_bus_id="00000000:12:00.0",
        memory_total_bytes=80 * GIB,
    )


def test_a_reading_is_in_base_units(stub: StubDriver) -> None:
    gpu = stub.state.gpus[1]
    gpu.utilization_percent = 87
    gpu.memory_used_bytes = 60 * GIB
    gpu.power_milliwatts = 612_345
    gpu.energy_millijoules = 9_876_543_210
    gpu.sm_clock_megahertz = 1980
    gpu.run(4321, 1234, memory_bytes=(3 * GIB, GIB))

    stub.child.open()
    sweep = stub.child.sweep(17)

    assert sweep.t_ns == 17
    assert sweep.failures == ()
    assert sweep.readings[1] == DeviceReading(
        gpu=uuid(1),
        t_ns=17,
        busy_ratio=0.87,
        memory_used_bytes=60 * GIB,
        memory_total_bytes=80 * GIB,
        power_watts=612.345,
        energy_joules=9_876_543.21,
        sm_clock_hertz=1.98e9,
        pids=(1234, 4321),
        process_memory=((4321, 3 * GIB), (1234, GIB)),
        temperature_celsius=31.0,
        power_limit_watts=700.0,
    )


@pytest.mark.parametrize("error", [NOT_SUPPORTED, NO_PERMISSION])
def test_declined_values_are_absent_and_the_rest_is_read(stub: StubDriver, error: int) -> None:
    gpu = stub.state.gpus[0]
    gpu.utilization_percent = 50
    gpu.utilization_error = gpu.power_error = gpu.energy_error = error
    gpu.clock_error = gpu.processes_error = error
    gpu.temperature_error = gpu.limit_error = error
    gpu.memory_used_bytes = GIB

    stub.child.open()
    reading = stub.child.sweep().readings[0]

    assert reading == DeviceReading(
        gpu=uuid(0), t_ns=reading.t_ns, memory_used_bytes=GIB, memory_total_bytes=80 * GIB
    )


def test_a_device_that_declines_its_memory_is_still_read(stub: StubDriver) -> None:
    stub.state.gpus[0].memory_error = NOT_SUPPORTED
    stub.state.gpus[0].utilization_percent = 50

    stub.child.open()
    reading = stub.child.sweep().readings[0]

    assert stub.child.inventory()[0].memory_total_bytes is None
    assert (reading.busy_ratio, reading.memory_used_bytes) == (0.5, None)
    assert reading.memory_total_bytes is None


def test_an_answer_of_all_bits_set_is_absent(stub: StubDriver) -> None:
    gpu = stub.state.gpus[0]
    gpu.utilization_percent = gpu.power_milliwatts = gpu.sm_clock_megahertz = 2**32 - 1
    gpu.energy_millijoules = 2**64 - 1

    stub.child.open()
    reading = stub.child.sweep().readings[0]

    assert (reading.busy_ratio, reading.power_watts) == (None, None)
    assert (reading.energy_joules, reading.sm_clock_hertz) == (None, None)


@pytest.mark.parametrize("field", ["error", "utilization_error", "memory_error"])
@pytest.mark.parametrize("error", [GPU_IS_LOST, UNKNOWN])
def test_a_gpu_that_fails_in_mid_run_is_a_failure_until_it_is_back(
    stub: StubDriver, field: str, error: int
) -> None:
    stub.child.open()
    before = stub.child.sweep()
    setattr(stub.state.gpus[3], field, error)
    during = stub.child.sweep()
    setattr(stub.state.gpus[3], field, 0)
    after = stub.child.sweep()

    why = {GPU_IS_LOST: "GPU is lost", UNKNOWN: "Unknown Error"}[error]
    assert len(before.readings) == len(after.readings) == 8
    assert during.failures == (DeviceFailure(uuid(3), why),)
    assert [r.gpu for r in during.readings] == [uuid(n) for n in range(8) if n != 3]


def test_a_broken_sensor_loses_only_its_own_value(stub: StubDriver) -> None:
    stub.state.gpus[0].power_error = UNKNOWN
    stub.state.gpus[0].energy_millijoules = 5000

    stub.child.open()
    reading = stub.child.sweep().readings[0]

    assert (reading.power_watts, reading.energy_joules) == (None, 5.0)


@pytest.mark.parametrize("field", ["open_error", "error"])
def test_a_gpu_lost_before_the_start_is_a_failure_of_every_sweep(
    stub: StubDriver, field: str
) -> None:
    setattr(stub.state.gpus[3], field, GPU_IS_LOST)

    stub.child.open()
    sweeps = [stub.child.sweep(), stub.child.sweep()]

    assert [device.index for device in stub.child.inventory()] == [0, 1, 2, 4, 5, 6, 7]
    for sweep in sweeps:
        assert sweep.failures == (DeviceFailure("nvidia3", "GPU is lost"),)
        assert len(sweep.readings) == 7


def test_processes_are_read_once_a_second_and_kept_between(stub: StubDriver) -> None:
    stub.state.gpu_count = 1
    stub.state.gpus[0].run(11)
    stub.child.open()
    opened = stub.state.process_calls

    first = stub.child.sweep(10 * SECOND)
    stub.state.gpus[0].run(22)
    second = stub.child.sweep(11 * SECOND - 1)
    asked = stub.state.process_calls - opened
    third = stub.child.sweep(11 * SECOND)

    assert asked == 1
    assert [sweep.readings[0].pids for sweep in (first, second, third)] == [(11,), (11,), (22,)]


def test_an_unavailable_list_of_processes_is_not_empty(stub: StubDriver) -> None:
    """An engine would lose this GPU, and its seconds there, for as long as that lasts."""
    stub.state.gpus[0].run(11)
    stub.child.open()

    stub.child.sweep(10 * SECOND)
    stub.state.gpus[0].processes_error = UNKNOWN
    failed = stub.child.sweep(11 * SECOND)
    stub.state.gpus[0].processes_error = 0
    stub.state.gpus[0].run()
    ended = stub.child.sweep(12 * SECOND)

    assert [sweep.readings[0].pids for sweep in (failed, ended)] == [(11,), ()]
    assert [sweep.readings[0].process_memory for sweep in (failed, ended)] == [None, ()]


def test_a_process_of_another_pid_namespace_has_no_pid(stub: StubDriver) -> None:
    stub.state.gpus[0].run(0, 12, 0)

    stub.child.open()

    reading = stub.child.sweep().readings[0]
    assert reading.pids == (12,)
    assert [pid for pid, _ in reading.process_memory or ()] == [0, 12, 0]


def test_unreported_process_memory_is_absent(stub: StubDriver) -> None:
    stub.state.gpus[0].run(11, 12, memory_bytes=(2**64 - 1, GIB))

    stub.child.open()

    assert stub.child.sweep().readings[0].process_memory == ((11, None), (12, GIB))


def test_an_old_driver_reports_less_and_breaks_nothing(old_stub: StubDriver) -> None:
    gpu = old_stub.state.gpus[0]
    gpu.utilization_percent = 40
    gpu.memory_used_bytes = GIB
    gpu.energy_millijoules = 1000
    gpu.run(9)

    old_stub.child.open()
    inventory = old_stub.child.inventory()
    sweep = old_stub.child.sweep()

    assert len(inventory) == len(sweep.readings) == 8
    assert inventory[0].memory_total_bytes == 80 * GIB
    reading = sweep.readings[0]
    assert (reading.busy_ratio, reading.memory_used_bytes) == (0.4, GIB)
    assert (reading.energy_joules, reading.pids) == (None, (9,))


def test_a_shutdown_by_someone_else_is_repaired_within_the_sweep(stub: StubDriver) -> None:
    stub.child.open()
    stub.child.call("shut_down_behind_its_back")

    sweep = stub.child.sweep()

    assert (len(sweep.readings), sweep.failures) == (8, ())


def test_a_gone_driver_fails_every_device_and_is_retried_slowly(
    stub: StubDriver,
) -> None:
    stub.state.gpus[7].open_error = GPU_IS_LOST
    stub.child.open()
    stub.child.call("shut_down_behind_its_back")
    stub.state.init_error = DRIVER_NOT_LOADED

    gone = stub.child.sweep(100 * SECOND)
    stub.state.init_error = stub.state.gpus[7].open_error = 0
    too_soon = stub.child.sweep(104 * SECOND)
    back = stub.child.sweep(105 * SECOND)

    lost = [failure.gpu for failure in gone.failures]
    assert lost == [*(uuid(number) for number in range(7)), "nvidia7"]
    assert "Driver Not Loaded" in gone.failures[0].why
    assert gone.readings == too_soon.readings == ()
    assert len(back.readings) == 8


@pytest.mark.parametrize("error", [DRIVER_NOT_LOADED, UNKNOWN, UNINITIALIZED])
@pytest.mark.parametrize("field", ["init_error", "count_error"])
def test_a_driver_that_does_not_start_is_unavailable_with_a_remedy(
    stub: StubDriver, field: str, error: int
) -> None:
    setattr(stub.state, field, error)

    with pytest.raises(DevicesUnavailable, match="nvidia-smi works here"):
        stub.child.open()

    assert stub.state.inits == stub.state.shutdowns


def test_a_driver_without_gpus_is_unavailable(stub: StubDriver) -> None:
    stub.state.gpu_count = 0

    with pytest.raises(DevicesUnavailable, match="no device"):
        stub.child.open()

    assert stub.state.inits == stub.state.shutdowns


def test_without_a_gpu_that_opens_the_driver_is_unavailable_with_the_reasons(
    stub: StubDriver,
) -> None:
    stub.state.gpu_count = 2
    for number in range(2):
        stub.state.gpus[number].open_error = GPU_IS_LOST

    with pytest.raises(DevicesUnavailable, match="nvidia0: GPU is lost, nvidia1: GPU is lost"):
        stub.child.open()


def test_a_host_without_the_library_is_unavailable(tmp_path: Path) -> None:
    # A file that is no library hides the one that a host with GPUs has.
    (tmp_path / "libnvidia-ml.so.1").write_text("")

    with NvmlChild(tmp_path) as child, pytest.raises(DevicesUnavailable, match="Not Found"):
        child.open()


def test_a_closed_source_releases_the_driver_once_and_sweeps_nothing(stub: StubDriver) -> None:
    stub.child.open()
    stub.child.call("close")
    stub.child.call("close")

    sweep = stub.child.sweep(5)

    assert (sweep.t_ns, sweep.readings, sweep.failures) == (5, (), ())
    assert stub.state.inits == stub.state.shutdowns


def mig_of_two_instances(stub: StubDriver) -> None:
    gpu = stub.state.gpus[0]
    gpu.mig = 1
    gpu.utilization_percent = 90
    gpu.energy_millijoules = 1000
    for slot, slices in ((0, 3), (4, 2)):
        instance = gpu.instances[slot]
        instance.gpu_instance = slot + 1
        instance.slices = slices
        instance.process = 100 + slot
        instance.memory_total_bytes = slices * 10 * GIB
        instance.memory_used_bytes = slices * GIB


def test_a_gpu_in_mig_mode_is_listed_as_its_instances(stub: StubDriver) -> None:
    stub.state.gpu_count = 2
    mig_of_two_instances(stub)

    stub.child.open()
    inventory = stub.child.inventory()

    mig = "MIG-57ab0000-0000-0000-0000-"
    assert [device.gpu for device in inventory] == [mig + "0" * 12, mig + "0" * 11 + "4", uuid(1)]
    assert [device.device for device in inventory] == ["nvidia0/gi1", "nvidia0/gi5", "nvidia1"]
    assert [device.weight for device in inventory] == [3 / 7, 2 / 7, 1.0]
    assert [device.index for device in inventory] == [0, 0, 1]
    assert {device.gpu_name for device in inventory} == {"Stub GPU"}
    assert inventory[0].memory_total_bytes == 30 * GIB


def test_compute_instances_of_one_gpu_instance_have_distinct_names(
    stub: StubDriver,
) -> None:
    mig_of_two_instances(stub)
    stub.state.gpus[0].instances[4].gpu_instance = 1
    stub.state.gpus[0].instances[4].compute_instance = 2

    stub.child.open()

    names = [device.device for device in stub.child.inventory()[:2]]
    assert names == ["nvidia0/gi1", "nvidia0/gi1/ci2"]


def test_an_instance_has_memory_and_processes_but_no_whole_gpu_values(
    stub: StubDriver,
) -> None:
    stub.state.gpu_count = 1
    mig_of_two_instances(stub)

    stub.child.open()
    sweep = stub.child.sweep()

    assert sweep.failures == ()
    for reading, slices, pid in zip(sweep.readings, (3, 2), (100, 104), strict=True):
        assert reading.memory_used_bytes == slices * GIB
        assert reading.pids == (pid,)
        assert (reading.busy_ratio, reading.power_watts) == (None, None)
        assert reading.energy_joules is None


def test_an_instance_that_is_taken_away_is_a_failure(stub: StubDriver) -> None:
    mig_of_two_instances(stub)
    stub.child.open()
    stub.state.gpus[0].error = GPU_IS_LOST

    sweep = stub.child.sweep()

    assert len(sweep.failures) == 2
    assert len(sweep.readings) == 7
