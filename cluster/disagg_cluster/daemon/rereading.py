"""Reads the node file again while the daemon runs, and takes in what a running daemon can."""

from __future__ import annotations

import asyncio
from pathlib import Path

from disagg_cluster.config import NodeConfig
from disagg_cluster.config.problems import ConfigError
from disagg_cluster.config.rereading import reread
from disagg_cluster.control.messages import RereadReport
from disagg_cluster.daemon.roster import WorkerRoster
from disagg_cluster.nodefile import load
from disagg_cluster.nodefile.engine_checks import launching_host
from disagg_exporter.collectors import DaemonExecutor, NoThreadError

_SAID_BY_OPTIONS = ("listen", "links")
"""What the options of `start` may have said otherwise than the file, and holds on."""


class NodeFileAgain:
    """The node file of a running daemon.

    Args:
        file: Where it is; None of a daemon without one.
        config: As it was read last.
        roster: Takes in what workers are otherwise, takes those that are new, lets others go.
    """

    def __init__(self, file: Path | None, config: NodeConfig, roster: WorkerRoster) -> None:
        # Whoever asks may stand in another folder than we did.
        self._file = None if file is None else file.absolute()
        self._config = config
        self._roster = roster
        self._reading = asyncio.Lock()

    async def read(self, dry_run: bool) -> RereadReport:
        """Say what it says otherwise than before; without `dry_run`, take that in."""
        if self._file is None:
            return RereadReport(problems=("this daemon was started without a node file",))
        # One after the other: what was read first is not to be taken in last.
        async with self._reading:
            return await self._read(self._file, dry_run)

    async def _read(self, file: Path, dry_run: bool) -> RereadReport:
        loop, executor = asyncio.get_running_loop(), DaemonExecutor(1, "node-file")
        try:
            # It asks interpreters: not in the loop.
            after = await loop.run_in_executor(executor, load, file, launching_host())
        except ConfigError as error:
            return self._refused(error)
        except NoThreadError as error:
            return RereadReport(problems=(str(error),))
        finally:
            executor.shutdown(wait=False)
        held = {key: getattr(self._config, key) for key in _SAID_BY_OPTIONS}
        after = after.model_copy(update=held)
        found = reread(self._config, after)
        if told := self._roster.objections(found.added, found.removed):
            return RereadReport(problems=told)
        taken = {worker.name: worker for worker in found.workers}
        staying = (w for w in self._config.workers if w.name not in found.removed)
        workers = (*(taken.get(worker.name, worker) for worker in staying), *found.added)
        config = self._config.model_copy(update={"workers": workers})
        try:
            layout = self._roster.layout_for(config, str(file))
        except ConfigError as error:
            return self._refused(error)
        if not dry_run:
            self._roster.change(config, layout, found.workers, found.added, found.removed)
            self._config = config
        names = (*taken, *(worker.name for worker in found.added), *found.removed)
        told_of = {"come": found.come, "gone": found.gone}
        return RereadReport(names, found.taken, found.waits, **told_of)

    def _refused(self, error: ConfigError) -> RereadReport:
        source = str(self._file)
        return RereadReport(problems=tuple(problem.text(source) for problem in error.problems))
