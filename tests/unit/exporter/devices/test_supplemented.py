"""Sweeps of a driver continue while the page that supplements them is slow."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from disagg_exporter.collectors import CollectorHealth
from disagg_exporter.devices.dcgm.device_source import DcgmDevices
from disagg_exporter.devices.sampler import Sampler
from disagg_exporter.devices.source import NoDevices, SupplementedDevices
from disagg_exporter.http.client.scrape import fetch
from disagg_exporter.model import Device, DeviceReading, DeviceSweep
from support.page_server import page_server

PAGE = (Path(__file__).parents[3] / "data" / "dcgm-exporter" / "two-gpus.prom").read_bytes()
GPU = "GPU-aaaa0000-0000-0000-0000-000000000000"
PATIENCE_SECONDS = 20.0


class SlowExporter:
    """A dcgm-exporter that answers at once, until it is blocked."""

    def __init__(self) -> None:
        self.page = PAGE
        self.goes_on, self.asked = threading.Event(), threading.Event()
        self.goes_on.set()

    def __call__(self, _path: str) -> bytes:
        self.asked.set()
        self.goes_on.wait(2 * PATIENCE_SECONDS)
        return self.page


class CountingNvml(NoDevices):
    """A fake driver with one GPU, which does not report tensor activity."""

    name = "nvml"

    def __init__(self) -> None:
        self.swept = 0

    def inventory(self) -> tuple[Device, ...]:
        return (Device(GPU, 0, "A100", "nvidia0"),)

    def sweep(self, now_ns: int) -> DeviceSweep:
        self.swept += 1
        return DeviceSweep(now_ns, (DeviceReading(GPU, now_ns, busy_ratio=0.5),))


class Clock:
    """CLOCK_MONOTONIC, which a test may advance."""

    ahead_ns = 0

    def __call__(self) -> int:
        return time.monotonic_ns() + self.ahead_ns


class Delivered:
    """The sweeps as they arrive, to be waited for."""

    def __init__(self) -> None:
        self._come = threading.Condition()
        self._ratios: list[float | None] = []

    def __call__(self, sweep: DeviceSweep, _seconds: float) -> None:
        with self._come:
            self._ratios.append(sweep.readings[0].tensor_ratio)
            self._come.notify_all()

    def so_many_more(self, count: int) -> bool:
        """Wait for some more sweeps."""
        with self._come:
            until = len(self._ratios) + count
            return self._come.wait_for(lambda: len(self._ratios) >= until, PATIENCE_SECONDS)

    def one_with(self, tensor_ratio: float) -> bool:
        """Wait for a sweep with this value."""
        with self._come:
            return self._come.wait_for(
                lambda: self._ratios[-1:] == [tensor_ratio], PATIENCE_SECONDS
            )


def test_sweeps_of_the_driver_continue_while_dcgm_exporter_is_slow() -> None:
    exporter, nvml, clock, delivered = SlowExporter(), CountingNvml(), Clock(), Delivered()
    with page_server(exporter) as url:
        # Longer than the test waits: the scrape ends with the answer.
        page = DcgmDevices(
            url, 1.0, fetch=lambda at, _s: fetch(at, 3 * PATIENCE_SECONDS), clock_ns=clock
        )
        exporter.asked.clear()
        exporter.goes_on.clear()
        exporter.page = PAGE.replace(b" 0.500000", b" 0.250000")
        clock.ahead_ns = 1_000_000_000  # time for the next scrape
        health = CollectorHealth("nvml", logging.getLogger("test"))
        source = SupplementedDevices(nvml, page)
        sampler = Sampler(source, 0.001, delivered, health, clock_ns=clock)
        sampler.start()
        try:
            assert exporter.asked.wait(PATIENCE_SECONDS)
            before = nvml.swept
            assert delivered.so_many_more(20)
            # The first of them may have been swept before the check, and delivered after.
            assert nvml.swept >= before + 19
            assert not exporter.goes_on.is_set(), "it has not answered yet"

            exporter.goes_on.set()
            assert delivered.one_with(0.25)
        finally:
            exporter.goes_on.set()
            assert sampler.stop(PATIENCE_SECONDS)
    assert health.ok


class MeteredDevices(NoDevices):
    """A source with one GPU, whose energy is what a test sets."""

    energy_joules: float | None = None

    def inventory(self) -> tuple[Device, ...]:
        return (Device(GPU, 0, "A100", "nvidia0"),)

    def sweep(self, now_ns: int) -> DeviceSweep:
        reading = DeviceReading(GPU, now_ns, energy_joules=self.energy_joules)
        return DeviceSweep(now_ns, (reading,))


def test_an_energy_total_is_never_mixed_from_two_sources() -> None:
    """The page's total is seconds older: the next one would count those seconds again."""
    main, page = MeteredDevices(), MeteredDevices()
    both = SupplementedDevices(main, page)
    page.energy_joules = 990.0

    totals = []
    for second, energy_joules in enumerate((None, 1000.0, None, 1003.0)):
        main.energy_joules = energy_joules
        totals.append(both.sweep(second * 1_000_000_000).readings[0].energy_joules)

    assert totals == [990.0, 1000.0, None, 1003.0]
