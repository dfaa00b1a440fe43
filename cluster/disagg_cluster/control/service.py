"""A running daemon's end of all requests: the core, and the sockets at which it is asked."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from disagg_cluster.control.core import ControlCore
from disagg_cluster.control.socket_server import ControlSocket
from disagg_cluster.control.supervising import CrewSupervisor
from disagg_cluster.control.views import DaemonView
from disagg_cluster.workers import Crew
from disagg_exporter.model import CollectorStatus


class ControlService:
    """Lets people and programs of this node steer a crew.

    Args:
        path: Where the socket is to be.
        crew: The workers.
        daemon: How the daemon itself stands.
        log: Told of every change that was asked for, and by whom.
    """

    def __init__(
        self, path: Path, crew: Crew, daemon: Callable[[], DaemonView], log: logging.Logger
    ) -> None:
        self._core = ControlCore(CrewSupervisor(crew, daemon), log)
        self._socket = ControlSocket(path, self._core, log)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answer requests until the block ends."""
        async with self._socket.serving():
            yield

    def changed(self) -> None:
        """A worker has changed."""
        self._core.changed()

    def counts(self) -> Mapping[tuple[str, str], int]:
        """How many requests came, by verb and outcome."""
        return dict(self._core.counts)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Whether requests can be answered."""
        return (self._socket.status(),)
