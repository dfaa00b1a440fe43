from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from disagg_exporter.devices.dcgm.device_source import DcgmDevices
from disagg_exporter.devices.dcgm.page import parse_dcgm
from disagg_exporter.devices.source import DevicesUnavailable, SupplementedDevices
from disagg_exporter.engine_pages.exposition.layout import SeriesKeys
from disagg_exporter.engine_pages.exposition.lines import PageError
from disagg_exporter.http.client.unreachable import EngineUnreachable
from disagg_exporter.model import (
    Device,
    DeviceFailure,
    DeviceReading,
    DeviceSweep,
    Direction,
    LinkKind,
)

DATA = Path(__file__).parents[4] / "data" / "dcgm-exporter"
WHOLE, MIG = (DATA / "two-gpus.prom").read_bytes(), (DATA / "mig.prom").read_bytes()
GPU_0 = "GPU-aaaa0000-0000-0000-0000-000000000000"
GPU_1 = "GPU-aaaa0001-0000-0000-0000-000000000000"
H100 = "NVIDIA H100 80GB HBM3"
SECOND, MIB = 1_000_000_000, 1024 * 1024


class Exporter:
    """A dcgm-exporter whose page a test sets; counts its scrapes, and answers at once.

    While it is `slow`, a scrape does not finish.
    """

    def __init__(self, page: bytes = WHOLE) -> None:
        self.page: bytes | None = page
        self.urls: list[str] = []
        self.slow = False
        self.now_ns = 0
        self.waiting: list[Callable[[], None]] = []

    def __call__(self, url: str, deadline_seconds: float) -> bytes:
        self.urls.append(url)
        if self.page is None:
            raise EngineUnreachable("nobody answers")
        return self.page

    def open(self, interval_seconds: float = 30.0) -> DcgmDevices:
        url = "http://127.0.0.1:9400/"
        self.source = DcgmDevices(
            url,
            interval_seconds,
            fetch=self,
            clock_ns=lambda: self.now_ns,
            run_concurrently=self._beside,
        )
        return self.source

    def sweep(self, now_ns: int) -> DeviceSweep:
        """What is swept at an instant."""
        self.now_ns = now_ns
        return self.source.sweep(now_ns)

    def _beside(self, look: Callable[[], None]) -> None:
        self.waiting.append(look)
        if not self.slow:
            self.waiting.pop()()


def test_every_gpu_of_the_page_is_listed() -> None:
    exporter = Exporter()

    inventory = exporter.open().inventory()

    assert exporter.urls == ["http://127.0.0.1:9400/metrics"]
    assert inventory[0] == Device(
        GPU_0, 0, H100, "nvidia0", "00000000:1A:00.0", memory_total_bytes=81_559 * MIB
    )
    assert [device.gpu for device in inventory] == [GPU_0, GPU_1]


def test_a_reading_is_in_base_units() -> None:
    """From MiB, mJ, MHz; a page of every half minute says nothing of when a device is busy."""
    sweep = Exporter().open().sweep(17)

    assert sweep.failures == ()
    assert sweep.readings[0] == DeviceReading(
        gpu=GPU_0,
        t_ns=17,
        busy_ratio=None,
        memory_used_bytes=61_000 * MIB,
        memory_total_bytes=81_559 * MIB,
        power_watts=612.345,
        energy_joules=129_931_554.972,
        sm_clock_hertz=1.98e9,
        graphics_ratio=0.953125,
        sm_ratio=0.75,
        tensor_ratio=0.5,
        dram_ratio=0.25,
        xid_errors=(),
        temperature_celsius=61.0,
        memory_temperature_celsius=52.0,
    )


def test_xid_errors_are_counted_when_another_is_the_latest() -> None:
    """The page has the last number only; one from before the first scrape is not counted."""
    exporter = Exporter()
    exporter.open(interval_seconds=2.0)

    counted = []
    for second, xid in enumerate((b"79", b"31", b"31", b"79", b"0"), start=1):
        exporter.page = WHOLE.replace(b'"550.90.07"} 79', b'"550.90.07"} ' + xid)
        counted.append(exporter.sweep(second * SECOND).readings[1].xid_errors)

    assert counted[0] == ()
    assert counted[1] == counted[2] == ((31, 1),)
    assert counted[3] == counted[4] == ((31, 1), (79, 1))


def test_a_page_collected_each_second_shows_when_a_device_is_busy() -> None:
    readings = Exporter().open(interval_seconds=1.0).sweep(0).readings

    assert [reading.busy_ratio for reading in readings] == [0.953125, 0.0]


def test_without_profiling_counters_the_drivers_utilisation_is_used() -> None:
    exporter = Exporter(b"".join(line for line in WHOLE.splitlines(True) if b"_PROF_" not in line))

    reading = exporter.open(interval_seconds=1.0).sweep(0).readings[0]

    assert (reading.busy_ratio, reading.graphics_ratio) == (0.97, 0.97)
    assert (reading.sm_ratio, reading.tensor_ratio, reading.dram_ratio) == (None, None, None)


def test_idle_counters_are_ignored_while_the_driver_reports_work() -> None:
    """The profiling module may report 0 for weeks."""
    exporter = Exporter(
        WHOLE.replace(b" 0.953125", b" 0.000000")
        .replace(b" 0.750000", b" 0.000000")
        .replace(b" 0.500000", b" 0.000000")
    )

    working, resting = exporter.open().sweep(0).readings

    assert (working.graphics_ratio, working.tensor_ratio) == (0.97, None)
    assert (resting.graphics_ratio, resting.tensor_ratio) == (0.0, 0.0)


def test_mig_instances_are_devices_with_their_weight() -> None:
    """They have the GPU's UUID on the page, and its power and energy, which are not theirs."""
    source = Exporter(MIG).open()

    large, small = source.inventory()
    reading = source.sweep(0).readings[0]

    assert (large.gpu, large.device, large.weight) == (f"{GPU_0}/gi2", "nvidia0/gi2", 3 / 7)
    assert (small.gpu, small.device, small.weight) == (f"{GPU_0}/gi9", "nvidia0/gi9", 1 / 7)
    assert (reading.power_watts, reading.energy_joules) == (None, None)
    assert (reading.graphics_ratio, reading.dram_ratio) == (0.25, 0.0625)
    assert reading.memory_used_bytes == 312 * MIB


def test_a_gpu_shared_by_pods_is_listed_once() -> None:
    line = b'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a",device="nvidia0",pod="%s"} 100\n'

    (told,) = parse_dcgm(line % b"x" + line % b"y", SeriesKeys())

    assert told.device.gpu == "GPU-a"
    assert told.values == {"power_watts": 100.0}


@pytest.mark.parametrize("value", [b"140737488355328", b"9223372036854775794", b"NaN", b"-1"])
def test_blank_values_of_dcgm_are_absent(value: bytes) -> None:
    """Blank values are very large numbers."""
    page = b'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a"} %s\n' % value
    known = b'DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-a"} 345\n'

    (told,) = parse_dcgm(page + known, SeriesKeys())

    assert told.values == {"sm_clock_hertz": 345e6}


def test_a_ratio_beyond_one_and_a_line_without_a_gpu_are_left_out() -> None:
    page = b'DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-a"} 1.5\nDCGM_FI_DEV_SM_CLOCK 345\n'

    (told,) = parse_dcgm(page, SeriesKeys())

    assert told.values == {}


def test_garbage_in_a_needed_line_is_an_error() -> None:
    with pytest.raises(PageError, match="cannot be read"):
        parse_dcgm(b'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a"} x\n', SeriesKeys())


@pytest.mark.parametrize("page", [None, b"", b"<html>\n", b"up 1\n", b'DCGM_FI_DEV_SM_CLOCK{gpu="'])
def test_without_a_page_or_a_device_on_it_there_are_no_devices(page: bytes | None) -> None:
    exporter = Exporter()
    exporter.page = page

    with pytest.raises(DevicesUnavailable, match=r"9400|nobody answers|cannot be read"):
        exporter.open()


def test_the_page_is_read_twice_in_its_own_interval_and_holds_in_between() -> None:
    exporter = Exporter()
    exporter.open(interval_seconds=10.0)

    for tenth in range(1, 201):
        sweep = exporter.sweep(tenth * SECOND // 10)
        assert len(sweep.readings) == 2

    assert len(exporter.urls) == 1 + 4


def test_a_missing_page_fails_after_three_scrapes_and_may_return() -> None:
    exporter = Exporter()
    exporter.open(interval_seconds=10.0)

    exporter.page = None
    held = exporter.sweep(15 * SECOND)
    failed = exporter.sweep(16 * SECOND)
    exporter.page = WHOLE
    back = exporter.sweep(26 * SECOND)

    assert len(held.readings) == 2
    assert failed.readings == ()
    assert failed.failures[0] == DeviceFailure(GPU_0, "nobody answers")
    assert len(back.readings) == 2


def test_a_missing_page_is_scraped_rarely() -> None:
    """Each scrape may occupy a thread until its deadline."""
    exporter = Exporter()
    exporter.open(interval_seconds=1.0)

    exporter.page = None
    for second in range(1, 64):
        exporter.sweep(second * SECOND)

    assert len(exporter.urls) == 1 + 3 + 6


def test_a_gpu_that_leaves_the_page_fails_alone() -> None:
    exporter = Exporter()
    exporter.open(interval_seconds=10.0)

    exporter.page = b"".join(line for line in WHOLE.splitlines(True) if b'gpu="1"' not in line)
    sweep = exporter.sweep(6 * SECOND)

    assert [reading.gpu for reading in sweep.readings] == [GPU_0]
    assert [failure.gpu for failure in sweep.failures] == [GPU_1]


def test_a_page_of_other_gpus_only_is_taken_for_that_of_another_node() -> None:
    """A Service without internalTrafficPolicy: Local answers from any node."""
    exporter = Exporter()
    exporter.open(interval_seconds=10.0)

    exporter.page = WHOLE.replace(b"GPU-aaaa", b"GPU-bbbb")
    sweep = exporter.sweep(6 * SECOND)

    assert sweep.readings == ()
    assert [failure.gpu for failure in sweep.failures] == [GPU_0, GPU_1]
    assert all("internalTrafficPolicy: Local" in failure.why for failure in sweep.failures)


def test_the_last_values_hold_while_a_page_is_slow_and_then_are_absent() -> None:
    exporter = Exporter()
    exporter.open(interval_seconds=10.0)

    exporter.slow = True
    sweeps = [exporter.sweep(tenth * SECOND // 10) for tenth in range(200)]

    assert [len(sweep.readings) for sweep in sweeps] == [2] * 151 + [0] * 49
    assert sweeps[-1].failures[0] == DeviceFailure(GPU_0, "dcgm-exporter does not answer")
    assert len(exporter.waiting) == 1, "looks are not piled up"

    exporter.waiting.pop()()
    assert len(exporter.sweep(20 * SECOND).readings) == 2


def test_an_unexpected_error_fails_one_scrape_only(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = Exporter()
    exporter.open(interval_seconds=1.0)

    def trip(_text: bytes, _heads: SeriesKeys) -> tuple[()]:
        raise ValueError("a bug of ours")

    with monkeypatch.context() as patched:
        patched.setattr("disagg_exporter.devices.dcgm.device_source.parse_dcgm", trip)
        for second in range(1, 5):
            failed = exporter.sweep(second * SECOND)

    assert failed.readings == ()
    assert failed.failures[0].why.startswith("it fails with ValueError")
    assert caplog.text.count("it fails with ValueError") == 1
    assert len(exporter.sweep(14 * SECOND).readings) == 2


def test_a_scrape_without_a_thread_fails() -> None:
    exporter = Exporter()

    def refuse(_look: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    source = DcgmDevices(
        "http://x", 1.0, fetch=exporter, clock_ns=lambda: 0, run_concurrently=refuse
    )

    sweeps = [source.sweep(second * SECOND) for second in range(5)]

    assert [len(sweep.readings) for sweep in sweeps] == [2, 2, 2, 2, 0]
    assert "no thread is to be had" in sweeps[-1].failures[0].why


class Listed:
    """A source with given devices and readings."""

    name = "nvml"

    def __init__(self, devices: tuple[Device, ...], sweep: DeviceSweep) -> None:
        self._devices = devices
        self._sweep = sweep
        self.closed = False

    def inventory(self) -> tuple[Device, ...]:
        return self._devices

    def sweep(self, now_ns: int) -> DeviceSweep:
        return self._sweep

    def close(self) -> None:
        self.closed = True


def test_only_values_the_driver_lacks_are_supplemented() -> None:
    """An A100 reports its power through NVML, and its tensor activity only through DCGM."""
    told = DeviceReading(GPU_0, 5, busy_ratio=0.9, power_watts=600.0)
    failed = DeviceFailure(GPU_1, "lost")
    devices = (Device(GPU_0, 0, H100, "nvidia0"), Device(GPU_1, 1, H100, "nvidia1"))
    main = Listed(devices, DeviceSweep(5, (told,), (failed,)))

    source = SupplementedDevices(main, Exporter().open())
    sweep = source.sweep(5)

    assert source.name == "nvml"
    assert sweep == DeviceSweep(
        5,
        (
            replace(
                told,
                memory_used_bytes=61_000 * MIB,
                memory_total_bytes=81_559 * MIB,
                energy_joules=129_931_554.972,
                sm_clock_hertz=1.98e9,
                sm_ratio=0.75,
                tensor_ratio=0.5,
                dram_ratio=0.25,
            ),
        ),
        (failed,),
    )
    source.close()
    assert main.closed


def test_instances_are_the_same_by_address_and_number() -> None:
    device = Device("MIG-1234", 0, H100, "nvidia7/gi2", "00000000:1a:00.0", weight=3 / 7)
    main = Listed((device,), DeviceSweep(5, (DeviceReading("MIG-1234", 5),)))

    (reading,) = SupplementedDevices(main, Exporter(MIG).open()).sweep(5).readings

    assert (reading.gpu, reading.dram_ratio) == ("MIG-1234", 0.0625)


def test_link_rates_are_read_from_the_page() -> None:
    """Bytes per second, although the names end in BYTES."""
    lines = "".join(
        f'DCGM_FI_PROF_{link}_BYTES{{gpu="0",UUID="{GPU_0}",device="nvidia0"}} {rate}\n'
        for link, rate in (("PCIE_TX", 1000), ("NVLINK_RX", 5000))
    )
    [entry] = parse_dcgm(lines.encode(), SeriesKeys())

    assert entry.link_rates == {
        (LinkKind.PCIE, Direction.SENT): 1000,
        (LinkKind.NVLINK, Direction.RECEIVED): 5000,
    }


def test_an_instance_has_no_link_traffic() -> None:
    line = (
        f'DCGM_FI_PROF_PCIE_TX_BYTES{{gpu="0",UUID="{GPU_0}",GPU_I_ID="1",'
        'GPU_I_PROFILE="3g.40gb",device="nvidia0"} 1000\n'
    )
    [entry] = parse_dcgm(line.encode(), SeriesKeys())

    assert entry.link_rates == {}
