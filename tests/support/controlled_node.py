"""A daemon's control socket with the real decisions behind it, on a thread, without a daemon."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from disagg_cluster.control.core import ControlCore
from disagg_cluster.control.decisions import Orders
from disagg_cluster.control.messages import RereadNodeFile, RereadReport
from disagg_cluster.control.socket_server import ControlSocket
from disagg_cluster.control.views import DaemonView, NodeOverview, WorkerView
from disagg_cluster.host.run_dir.layout import RunFolder

_LOG = logging.getLogger("test.control")


class _Node:
    """A node in a state set by the test; it executes nothing."""

    def __init__(self, folder: Path, workers: Sequence[WorkerView]) -> None:
        daemon = DaemonView("0.1.0", 7, "gpu-7", str(folder), 3725.0)
        self._overview = NodeOverview(daemon, tuple(workers))

    def view(self) -> NodeOverview:
        return self._overview

    def obey(self, orders: Orders, request_id: str) -> None:
        pass


@contextlib.contextmanager
def controlled_node(
    folder: Path, workers: Sequence[WorkerView], reread: RereadReport | None = None
) -> Iterator[None]:
    """Answer requests at the control socket of a run folder while the block runs."""

    async def answer(_verb: RereadNodeFile) -> RereadReport:
        return reread or RereadReport()

    async def serve() -> None:
        core = ControlCore(_Node(folder, workers), _LOG, reread=answer)
        over = asyncio.Event()
        async with ControlSocket(RunFolder(folder).control, core, _LOG).serving():
            loop = asyncio.get_running_loop()
            serving.put(lambda: loop.call_soon_threadsafe(over.set))
            await over.wait()
        await core.close()

    serving: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    end = serving.get(timeout=30)
    try:
        yield
    finally:
        end()
        thread.join()
