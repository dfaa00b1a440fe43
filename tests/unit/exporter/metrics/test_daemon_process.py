import os
from pathlib import Path

from disagg_exporter.metrics.daemon_process import DaemonProcess
from disagg_exporter.metrics.family import Data
from disagg_exporter.metrics.table import FAMILIES


def test_process_metrics_have_the_client_librarys_names() -> None:
    usage = DaemonProcess().usage()

    assert set(usage) == {family.name for family in FAMILIES if family.data is Data.PROCESS}
    assert usage["process_open_fds"] >= len((0, 1, 2))
    assert usage["process_cpu_seconds_total"] <= sum(os.times()[:2]) + 1
    assert usage["process_resident_memory_bytes"] > 10e6


def test_without_proc_there_are_no_process_metrics(tmp_path: Path) -> None:
    assert DaemonProcess(str(tmp_path)).usage() == {}
