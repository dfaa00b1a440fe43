"""The devices are swept as long as the daemon lives, whatever ends the sampler's thread."""

from __future__ import annotations

import threading

import pytest

from disagg_cluster.telemetry.device_watch import DeviceWatch
from disagg_exporter.accounting import Ledger
from disagg_exporter.devices.source import NoDevices
from disagg_exporter.model import DeviceSweep


class EndsItsThread(NoDevices):
    """Devices whose first sweep ends the thread that takes it."""

    def __init__(self) -> None:
        self.first: threading.Thread | None = None
        self.swept_first, self.swept_again = threading.Event(), threading.Event()

    def sweep(self, now_ns: int) -> DeviceSweep:
        if self.first is None:
            self.first = threading.current_thread()
            self.swept_first.set()
            raise SystemExit
        self.swept_again.set()
        return super().sweep(now_ns)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_ended_sampler_thread_is_replaced_at_the_next_ingest() -> None:
    source = EndsItsThread()
    watch = DeviceWatch(source, Ledger())

    with watch.running(0.01):
        assert source.swept_first.wait(20)
        assert source.first is not None
        source.first.join(20)
        watch.ingest()

        assert source.swept_again.wait(20)
