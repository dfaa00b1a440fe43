"""The steps sockets of all workers, open as long as the daemon lives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from functools import partial

from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.supervisor.worker_spec import WorkerSpec
from disagg_cluster.telemetry.launched_engines import Engines
from disagg_cluster.telemetry.steps.step_feed import StepFeed
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel


@contextlib.contextmanager
def hearing(
    posts: Iterable[WorkerSpec],
    engines: Engines,
    folder: RunFolder,
    ledger: Ledger,
    fullness: CapacityModel,
) -> Iterator[None]:
    """Listen for the steps of every worker until the block ends; in a running loop.

    Raises:
        StepsSocketError: A socket cannot be made.
    """
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        for post in posts:
            name = post.name
            pid, environment = partial(engines.pid, name), post.command.env
            feed = StepFeed(name, folder.socket(name), ledger, fullness, pid, environment)
            feed.open(loop)
            stack.callback(feed.close)
            engines.hear(name, feed)
        yield
