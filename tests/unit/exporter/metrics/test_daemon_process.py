import os
from pathlib import Path

from disagg_exporter.metrics.daemon_process import DaemonProcess
from disagg_exporter.metrics.family import Data
from disagg_exporter.metrics.table import FAMILIES


def test_what_the_kernel_accounts_is_under_the_client_librarys_names() -> None:
    usage = DaemonProcess().usage()

    assert set(usage) == {family.name for family in FAMILIES if family.data is Data.PROCESS}
    assert usage["process_open_fds"] >= len((0, 1, 2))
    assert usage["process_cpu_seconds_total"] <= sum(os.times()[:2]) + 1
    assert usage["process_resident_memory_bytes"] > 10e6


def test_where_there_is_no_proc_nothing_is_said(tmp_path: Path) -> None:
    assert DaemonProcess(str(tmp_path)).usage() == {}
