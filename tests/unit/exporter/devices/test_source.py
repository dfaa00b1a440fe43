from __future__ import annotations

import subprocess
import sys

import pytest

from disagg_exporter.devices.source import (
    DeviceKind,
    DeviceSource,
    DevicesUnavailable,
    NoDevices,
    choose_devices,
    pseudo_device,
)
from disagg_exporter.model import Device, DeviceSweep


class Opened(NoDevices):
    """A source that only records which opener made it."""

    def __init__(self, name: str) -> None:
        self.name = name


def opens_nvml() -> DeviceSource:
    return Opened("nvml")


def opens_sim() -> DeviceSource:
    return Opened("sim")


def has_no_driver() -> DeviceSource:
    raise DevicesUnavailable("no driver", "install one")


def must_not_be_opened() -> DeviceSource:
    raise AssertionError("a source was opened that nobody asked for")


def test_auto_uses_gpus_if_there_are_any() -> None:
    choice = choose_devices(DeviceKind.AUTO, nvml=opens_nvml, sim=must_not_be_opened)

    assert choice.source.name == "nvml"
    assert choice.fallback is None


def test_auto_without_a_driver_falls_back_to_no_devices_and_says_why() -> None:
    choice = choose_devices(DeviceKind.AUTO, nvml=has_no_driver, sim=must_not_be_opened)

    assert choice.source.name == "cpu"
    assert choice.source.inventory() == ()
    assert str(choice.fallback) == "no driver; install one"


def test_explicitly_requested_gpus_are_never_silently_missing() -> None:
    with pytest.raises(DevicesUnavailable, match="no driver; install one"):
        choose_devices(DeviceKind.NVML, nvml=has_no_driver, sim=must_not_be_opened)


def test_kind_cpu_does_not_touch_the_driver() -> None:
    choice = choose_devices(DeviceKind.CPU, nvml=must_not_be_opened, sim=must_not_be_opened)

    assert choice.source.name == "cpu"
    assert choice.fallback is None


def opens_dcgm() -> DeviceSource:
    return Opened("dcgm")


def no_exporter_answers() -> DeviceSource:
    raise DevicesUnavailable("no dcgm-exporter", "start one")


def test_auto_without_a_driver_reads_the_dcgm_exporter_that_the_file_names() -> None:
    choice = choose_devices(
        DeviceKind.AUTO, nvml=has_no_driver, sim=must_not_be_opened, dcgm=opens_dcgm
    )

    assert choice.source.name == "dcgm"
    assert str(choice.fallback) == "no driver; install one"


def test_auto_with_neither_says_both_reasons() -> None:
    choice = choose_devices(
        DeviceKind.AUTO, nvml=has_no_driver, sim=must_not_be_opened, dcgm=no_exporter_answers
    )

    assert choice.source.name == "cpu"
    assert choice.fallback is not None
    assert choice.fallback.why == "no driver; no dcgm-exporter"


def test_an_explicitly_requested_dcgm_exporter_is_never_silently_missing() -> None:
    with pytest.raises(DevicesUnavailable, match="no dcgm-exporter"):
        choose_devices(
            DeviceKind.DCGM,
            nvml=must_not_be_opened,
            sim=must_not_be_opened,
            dcgm=no_exporter_answers,
        )
    with pytest.raises(DevicesUnavailable, match="no dcgm-exporter is named"):
        choose_devices(DeviceKind.DCGM, nvml=must_not_be_opened, sim=must_not_be_opened)


def test_simulated_devices_are_used_only_on_request() -> None:
    choice = choose_devices(DeviceKind.SIM, nvml=must_not_be_opened, sim=opens_sim)

    assert choice.source.name == "sim"


def test_a_host_without_gpus_gives_empty_sweeps() -> None:
    source = NoDevices()

    sweep = source.sweep(42)
    source.close()

    assert sweep == DeviceSweep(t_ns=42, readings=(), failures=())


def test_a_pseudo_device_is_keyed_by_its_engine_and_weighs_one() -> None:
    assert pseudo_device("prefill-0", 3) == Device(
        gpu="cpu-prefill-0", index=3, gpu_name="CPU", device="cpu", weight=1.0
    )


def test_no_driver_is_imported_before_a_source_is_opened() -> None:
    program = (
        "import sys, disagg_exporter.devices.nvml.device_source;"
        "import disagg_exporter.devices.simulated;"
        "sys.exit('pynvml' in sys.modules or 'ctypes' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", program], timeout=30).returncode == 0
