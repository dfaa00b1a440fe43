"""Reads the node file again while the daemon runs, and applies what a running daemon can."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

from disagg_cluster.config import NodeConfig
from disagg_cluster.config.problems import ConfigError
from disagg_cluster.config.rereading import reread
from disagg_cluster.control.messages import RereadNodeFile, RereadReport
from disagg_cluster.control.refusal import ControlRefusal, RefusalReason
from disagg_cluster.daemon.roster import WorkerRoster
from disagg_cluster.nodefile import load
from disagg_cluster.nodefile.freshness import NodeFileFreshness, stamp_of
from disagg_cluster.nodefile.reading import launching_host
from disagg_exporter.collectors import DaemonExecutor, NoThreadError

_CHANGED_SINCE = ControlRefusal(
    RefusalReason.CHANGED_SINCE,
    "the file or the running configuration has changed since it was shown: nothing was applied",
    "review it again: disagg-node reload",
)
_GAPS = "disagg-node reload --force applies it all the same: users get no answers meanwhile"
_NO_FILE = ControlRefusal(
    RefusalReason.NO_NODE_FILE,
    "this daemon was started without a node file",
    "start one with `disagg-node start --config FILE`",
)


class NodeFileReloader:
    """The node file of a running daemon.

    Args:
        file: Its path; None if the daemon has none.
        config: Its last applied content.
        roster: Applies changed, added and removed workers.
        as_started: Applies the options of `start` that override the file.
    """

    def __init__(
        self,
        file: Path | None,
        config: NodeConfig,
        roster: WorkerRoster,
        as_started: Callable[[NodeConfig], NodeConfig] = lambda config: config,
    ) -> None:
        # The working directory may change later.
        self._file = None if file is None else file.absolute()
        self._freshness = NodeFileFreshness(self._file)
        self._config = config
        self._roster = roster
        self._as_started = as_started
        self._reading = asyncio.Lock()
        # The file may contain secrets; a keyed digest does not allow guessing them.
        self._key = secrets.token_bytes(16)

    def freshness(self) -> str:
        """Describes a change of the file since it was applied; empty if there is none."""
        return self._freshness.text()

    async def read(self, verb: RereadNodeFile) -> RereadReport:
        """Report how the file differs from the last one applied; without `dry_run`, apply it."""
        if self._file is None:
            return RereadReport(refusal=_NO_FILE)
        # One at a time, so that an older content is never applied last.
        async with self._reading:
            return await self._read(self._file, verb)

    async def _read(self, file: Path, verb: RereadNodeFile) -> RereadReport:
        # Taken before reading: a write during the read counts as a later change.
        stamp = stamp_of(file)
        loop, executor = asyncio.get_running_loop(), DaemonExecutor(1, "node-file")
        try:
            # Loading probes interpreters, so it runs outside the event loop.
            after = await loop.run_in_executor(executor, load, file, launching_host())
        except ConfigError as error:
            self._freshness.refuse(stamp, len(error.problems))
            return _refused(_problem_texts(error, file))
        except NoThreadError as error:
            return RereadReport(problems=(str(error),))
        finally:
            executor.shutdown(wait=False)
        after = self._as_started(after)
        digest = self._digest(after)
        if verb.digest not in (None, digest):
            return RereadReport(refusal=_CHANGED_SINCE)
        found = reread(self._config, after)
        if problems := self._roster.blockers(found.added, found.removed):
            why, way_out = "nothing was changed", "one change at a time: try later"
            refusal = ControlRefusal(RefusalReason.CHANGE_UNDER_WAY, why, way_out)
            return RereadReport(problems=problems, refusal=refusal)
        gaps = () if verb.force else self._roster.gaps(found.removed, after)
        if gaps:
            refusal = ControlRefusal(RefusalReason.LAST_OF_ROLE, "nothing was changed", _GAPS)
            return RereadReport(problems=gaps, refusal=refusal)
        if problems := self._roster.clashes(found.added):
            return _refused(problems)
        taken = {worker.name: worker for worker in found.workers}
        staying = (w for w in self._config.workers if w.name not in found.removed)
        workers = (*(taken.get(worker.name, worker) for worker in staying), *found.added)
        config = self._config.model_copy(update={"workers": workers})
        try:
            layout = self._roster.layout_for(config, str(file))
        except ConfigError as error:
            return _refused(_problem_texts(error, file))
        if not verb.dry_run:
            self._roster.change(config, layout, found.workers, found.added, found.removed)
            self._config = config
        if not verb.dry_run or not (found.workers or found.added or found.removed):
            self._freshness.accept(stamp)
        names = (*taken, *(worker.name for worker in found.added), *found.removed)
        return RereadReport(
            names, found.taken, found.waits, added=found.come, removed=found.gone, digest=digest
        )

    def _digest(self, after: NodeConfig) -> str:
        """Identifies the running configuration together with the content of the file."""
        both = repr((self._config, after)).encode()
        return blake2b(both, key=self._key, digest_size=16).hexdigest()


def _problem_texts(error: ConfigError, file: Path) -> tuple[str, ...]:
    return tuple(problem.text(str(file)) for problem in error.problems)


def _refused(problems: tuple[str, ...]) -> RereadReport:
    way_out = "mend the node file, then ask again"
    refusal = ControlRefusal(RefusalReason.WRONG_NODE_FILE, "nothing was changed", way_out)
    return RereadReport(problems=problems, refusal=refusal)
