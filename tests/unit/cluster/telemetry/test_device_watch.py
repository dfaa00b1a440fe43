"""The devices are swept as long as the daemon lives, whatever ends the sampler's thread."""

from __future__ import annotations

import logging
import threading

import pytest

from disagg_cluster.telemetry.device_watch import DeviceWatch
from disagg_exporter.accounting import Ledger
from disagg_exporter.devices.source import NoDevices
from disagg_exporter.model import DeviceFailure, DeviceSweep
from support.running_node import wait_for


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


class LosesDevices(NoDevices):
    """Devices of which the named ones cannot be read."""

    lost: tuple[str, ...] = ()

    def sweep(self, now_ns: int) -> DeviceSweep:
        failures = (DeviceFailure(gpu, "GPU is lost") for gpu in self.lost)
        return DeviceSweep(now_ns, failures=tuple(failures))


def test_the_log_says_once_why_which_devices_are_not_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "disagg_node")
    source = LosesDevices()
    source.lost = ("GPU-a", "GPU-b")
    watch = DeviceWatch(source, Ledger())

    def logged(text: str) -> bool:
        watch.ingest()
        return text in caplog.text

    with watch.running(0.01):
        wait_for(lambda: logged("cpu: not read: GPU-a, GPU-b: GPU is lost"), "the loss", 20)
        source.lost = ()
        wait_for(lambda: logged("cpu: all devices are read again"), "the return", 20)
    assert caplog.text.count("GPU is lost") == 1


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
