"""The device sampler's thread outlives whatever a driver's binding raises."""

from __future__ import annotations

import logging
import threading

from disagg_exporter.collectors import CollectorHealth
from disagg_exporter.devices.sampler import Sampler
from disagg_exporter.devices.source import NoDevices
from disagg_exporter.model import DeviceSweep

LOG = logging.getLogger("test")


class FailingDevices(NoDevices):
    """Devices whose sweep fails for a while with an unexpected error."""

    def __init__(self) -> None:
        super().__init__()
        self.well = threading.Event()
        self.swept = 0

    def sweep(self, t_ns: int) -> DeviceSweep:
        self.swept += 1
        if not self.well.is_set():
            raise ValueError("a bug of ours")
        return super().sweep(t_ns)


def test_a_failed_sweep_is_reported_and_sweeping_continues() -> None:
    health = CollectorHealth("cpu", LOG)
    delivered = threading.Event()
    failed = threading.Event()

    class Watched(FailingDevices):
        def sweep(self, t_ns: int) -> DeviceSweep:
            if self.swept == 2:
                failed.set()
            return super().sweep(t_ns)

    source = Watched()
    sampler = Sampler(source, 0.01, lambda *_swept: delivered.set(), health)
    sampler.start()
    try:
        assert failed.wait(20)
        assert not health.ok
        assert not delivered.is_set()

        source.well.set()
        assert delivered.wait(20)
        assert sampler.is_alive
    finally:
        assert sampler.stop()
    assert health.ok


def test_a_failed_delivery_is_reported_and_sweeping_continues() -> None:
    health, taken = CollectorHealth("cpu", LOG), threading.Semaphore(0)

    def trip(_sweep: DeviceSweep, _seconds: float) -> None:
        taken.release()
        raise ValueError("a bug of ours")

    sampler = Sampler(NoDevices(), 0.01, trip, health)
    sampler.start()
    try:
        assert all(taken.acquire(timeout=20) for _ in range(3))
    finally:
        assert sampler.stop()
    assert not health.ok
