"""A running daemon's end of all requests: the core, and the sockets at which it is asked."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping

from disagg_cluster.control.core import ControlCore
from disagg_cluster.control.socket_server import ControlSocket
from disagg_cluster.control.supervising import CrewSupervisor
from disagg_cluster.control.views import DaemonView
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.supervisor.supervisor import Crew
from disagg_exporter import __version__
from disagg_exporter.model import CollectorStatus


class ControlService:
    """Lets people and programs of this node steer its workers.

    Args:
        node: The node's name.
        folder: Where the socket is to be.
        log: Told of every change that was asked for, and by whom.
    """

    def __init__(self, node: str, folder: RunFolder, log: logging.Logger) -> None:
        self._node = node
        self._folder = folder
        self._log = log
        self._start_ns = time.monotonic_ns()
        self._stopping = False
        self._core: ControlCore | None = None
        self._socket: ControlSocket | None = None

    @contextlib.asynccontextmanager
    async def serving(self, crew: Crew) -> AsyncIterator[None]:
        """Answer requests about these workers until the block ends."""
        self._core = ControlCore(CrewSupervisor(crew, self._view), self._log)
        self._socket = ControlSocket(self._folder.control, self._core, self._log)
        async with self._socket.serving():
            yield

    def refuse(self) -> None:
        """The daemon ends: change nothing any more."""
        self._stopping = True

    def changed(self) -> None:
        """A worker has changed."""
        if self._core is not None:
            self._core.changed()

    def counts(self) -> Mapping[tuple[str, str], int]:
        """How many requests came, by verb and outcome."""
        return {} if self._core is None else dict(self._core.counts)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Whether requests can be answered."""
        return () if self._socket is None else (self._socket.status(),)

    def _view(self) -> DaemonView:
        """The daemon itself, as those who ask it see it."""
        return DaemonView(
            version=__version__,
            pid=os.getpid(),
            node=self._node,
            run_dir=str(self._folder.path),
            uptime_seconds=(time.monotonic_ns() - self._start_ns) / 1e9,
            stopping=self._stopping,
        )
