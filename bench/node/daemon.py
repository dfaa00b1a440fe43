"""The daemon under measurement: as `disagg-node start` runs it, but engines may share a GPU.

A node file assigns a GPU to one worker only, so sixteen engines on eight GPUs need a layout made by
hand. Argv: the node file. If BENCH_PROFILE names a file, the CPU time of the loop's thread is
profiled into it from one SIGUSR2 to the next.
"""

from __future__ import annotations

import asyncio
import cProfile
import itertools
import os
import signal
import sys
import time
from pathlib import Path

from disagg_cluster.config.layout import Layout, Placement
from disagg_cluster.daemon.daemon import Daemon
from disagg_cluster.daemon.foreground import log_to_stderr, run
from disagg_cluster.nodefile import load
from disagg_exporter.devices.nvml.device_source import NvmlDevices

PROFILE = "BENCH_PROFILE"


def main() -> None:
    """Run until SIGTERM."""
    log_to_stderr(verbose=False)
    config = load(Path(sys.argv[1]))
    source = NvmlDevices()
    devices = source.inventory()
    layout = Layout(
        tuple(
            Placement(worker.name, (devices[number * len(devices) // len(config.workers)],))
            for number, worker in enumerate(config.workers)
        )
    )
    assert config.run_folder is not None
    daemon = Daemon(config, layout, source, config.run_folder)
    profile = cProfile.Profile(time.thread_time)
    switches = itertools.cycle((profile.enable, profile.disable))
    signal.signal(signal.SIGUSR2, lambda *_: next(switches)())
    try:
        asyncio.run(run(daemon, lambda _snapshot: None))
    finally:
        source.close()
        if path := os.environ.get(PROFILE):
            profile.disable()
            profile.dump_stats(path)


if __name__ == "__main__":
    main()
