"""Our side of `make bench-supervise`: one worker supervised as in the daemon, until SIGTERM.

Argv: a folder for journal and log, then the worker's program and arguments.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path

from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.lifecycle.state import LaunchCommand
from disagg_cluster.supervisor.health.readiness import ProbeTarget
from disagg_cluster.supervisor.journal.journal import Journal
from disagg_cluster.supervisor.supervisor import Supervisor
from disagg_cluster.supervisor.worker_spec import WorkerSpec

# It never answers probes: the measurement does not need that, and it must not be ended for it.
UNPROBED = ProbeTarget(9, "")
AT_ONCE = RestartPolicy(
    start_seconds=1e6, backoff_first_seconds=0.0, crash_limit=10**6, stop_seconds=1.0
)


async def keep(folder: Path, argv: tuple[str, ...]) -> None:
    """Keep the worker running until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    spec = WorkerSpec("worker", LaunchCommand(argv, {}), folder / "worker.log", UNPROBED, AT_ONCE)
    supervisor = Supervisor(
        [spec],
        lambda *_change: None,
        lambda _worker: None,
        journal=Journal(folder / "journal.json", logging.getLogger("bench")),
    )
    await supervisor.start()
    await stopping.wait()
    await supervisor.stop()


if __name__ == "__main__":
    asyncio.run(keep(Path(sys.argv[1]), tuple(sys.argv[2:])))
