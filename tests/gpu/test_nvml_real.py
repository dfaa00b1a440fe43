"""What must hold of any driver, asked of the host's own and of the stub."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from disagg_exporter.devices.source import DevicesUnavailable
from disagg_exporter.model import Throttle
from support.nvml_stub import NvmlChild, StubDriver

pytest_plugins = ("support.nvml_stub.fixtures",)


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.gpu), "stub"])
def child(request: pytest.FixtureRequest) -> Iterator[NvmlChild]:
    """A process that has opened the driver."""
    if request.param == "stub":
        stub: StubDriver = request.getfixturevalue("stub")
        stub.child.open()
        yield stub.child
        return
    with NvmlChild(None) as real:
        try:
            real.open()
        except DevicesUnavailable as unavailable:
            pytest.skip(f"no real GPU: {unavailable.why}")
        yield real


def test_every_device_has_a_unique_uuid_and_plausible_memory(child: NvmlChild) -> None:
    inventory = child.inventory()

    assert inventory
    assert len({device.gpu for device in inventory}) == len(inventory)
    assert len({device.device for device in inventory}) == len(inventory)
    for device in inventory:
        assert device.gpu.startswith(("GPU-", "MIG-"))
        assert device.gpu_name
        assert device.device.startswith("nvidia")
        assert 0 < device.weight <= 1
        assert device.memory_total_bytes is None or device.memory_total_bytes > 2**28


def test_every_device_is_read_in_base_units(child: NvmlChild) -> None:
    begun_ns = time.monotonic_ns()
    sweep = child.sweep()

    assert sweep.failures == ()
    assert [reading.gpu for reading in sweep.readings] == [d.gpu for d in child.inventory()]
    for reading in sweep.readings:
        assert begun_ns <= reading.t_ns == sweep.t_ns
        assert reading.busy_ratio is None or 0 <= reading.busy_ratio <= 1
        assert reading.power_watts is None or 1 < reading.power_watts < 5_000
        assert reading.sm_clock_hertz is None or 1e8 < reading.sm_clock_hertz < 1e10
        if reading.memory_used_bytes is not None and reading.memory_total_bytes is not None:
            assert 0 <= reading.memory_used_bytes <= reading.memory_total_bytes


def test_energy_never_decreases(child: NvmlChild) -> None:
    before, after = child.sweep(), child.sweep()

    for earlier, later in zip(before.readings, after.readings, strict=True):
        assert (earlier.energy_joules is None) == (later.energy_joules is None)
        if earlier.energy_joules is not None and later.energy_joules is not None:
            assert earlier.energy_joules <= later.energy_joules


def test_the_activity_of_gpu_units_is_a_ratio_or_absent(child: NvmlChild) -> None:
    child.sweep()
    time.sleep(0.2)  # the counters of a real GPU need time to have a value

    for reading in child.sweep().readings:
        parts = (reading.graphics_ratio, reading.sm_ratio, reading.tensor_ratio, reading.dram_ratio)
        assert all(ratio is None or 0 <= ratio <= 1 for ratio in parts)
        if reading.graphics_ratio is not None:
            assert reading.busy_ratio == reading.graphics_ratio
        assert reading.throttles is None or set(reading.throttles) <= set(Throttle)


def test_a_reopened_driver_reports_the_same_devices(child: NvmlChild) -> None:
    first = child.inventory()
    child.call("close")
    child.open()

    assert child.inventory() == first


def test_errors_and_processes_are_valid_or_absent_and_reading_never_blocks(
    child: NvmlChild,
) -> None:
    """The daemon has a tenth of a second for a sweep, and waiting on an event set could block."""
    child.sweep()
    began = time.monotonic()
    readings = [reading for _ in range(5) for reading in child.sweep().readings]
    seconds = time.monotonic() - began

    assert seconds < 5
    for reading in readings:
        assert all(errors > 0 for _, errors in reading.xid_errors or ())
        assert all(0 <= ratio <= 1 for _, ratio in reading.process_ratios or ())
