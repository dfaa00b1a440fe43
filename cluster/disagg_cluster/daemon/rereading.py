"""Reads the node file again while the daemon runs, and takes in what a running daemon can."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from disagg_cluster.config import NodeConfig, Worker
from disagg_cluster.config.problems import ConfigError
from disagg_cluster.config.rereading import reread
from disagg_cluster.control.messages import RereadReport
from disagg_cluster.nodefile import load
from disagg_cluster.nodefile.engine_checks import launching_host


class NodeFileAgain:
    """The node file of a running daemon.

    Args:
        file: Where it is; None of a daemon without one.
        config: As it was read last.
        take: Takes a worker that is to be started otherwise from now on.
    """

    def __init__(
        self, file: Path | None, config: NodeConfig, take: Callable[[Worker], None]
    ) -> None:
        # Whoever asks may stand in another folder than we did.
        self._file = None if file is None else file.absolute()
        self._config = config
        self._take = take

    async def read(self, dry_run: bool) -> RereadReport:
        """Say what it says otherwise than before; without `dry_run`, take that in."""
        if self._file is None:
            return RereadReport(problems=("this daemon was started without a node file",))
        loop = asyncio.get_running_loop()
        try:
            # It asks interpreters: not in the loop.
            after = await loop.run_in_executor(None, load, self._file, launching_host())
        except ConfigError as error:
            return RereadReport(problems=tuple(str(problem) for problem in error.problems))
        # What the command line said of it holds on.
        after = after.model_copy(update={"listen": self._config.listen})
        found = reread(self._config, after)
        if not dry_run:
            for worker in found.workers:
                self._take(worker)
            taken = {worker.name: worker for worker in found.workers}
            workers = tuple(taken.get(worker.name, worker) for worker in self._config.workers)
            self._config = self._config.model_copy(update={"workers": workers})
        names = tuple(worker.name for worker in found.workers)
        return RereadReport(names, found.taken, found.waits)
