"""Handover between daemons: accounting and learned models."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

from disagg_cluster.continuity.checkpoint_file import CheckpointFile, StuckCheckpointError
from disagg_cluster.continuity.checkpoint_text import Checkpoint, CheckpointError
from disagg_cluster.continuity.learned_file import LearnedFile
from disagg_cluster.continuity.learned_models import EngineIdentities, LearnedModels, Learners
from disagg_cluster.host.files.atomic_write import Place
from disagg_cluster.host.processes import procfs
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.host.run_dir.lock import RunLock
from disagg_cluster.supervisor.journal.journal import here
from disagg_cluster.telemetry.source_selection import SourceSelection
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.collectors import CollectorHealth
from disagg_exporter.model import CollectorStatus, Device, EngineState
from disagg_exporter.model.checkpoints import LedgerCheckpoint

COLLECTOR = "checkpoint"

# How long an engine of the previous daemon may stay unfound; equal to its time's patience (A6).
RETURN_NS = 30_000_000_000
# A node that nothing has used for this long was out of service, not unobserved.
ENDED_NS = 600_000_000_000
# How long the counters of an engine that did not return stay on the page, for the last scrape.
LINGER_NS = 60_000_000_000


class Continuity:
    """Takes over the accounting of the previous daemon, and leaves it to the next.

    Args:
        ledger: The accounting.
        file: The checkpoint file.
        log: Logs when writing fails.
        names: Names of engines that others started, by recognition key.
        start_ticks: When a process started; None if there is none.
    """

    def __init__(
        self,
        ledger: Ledger,
        file: CheckpointFile,
        log: logging.Logger,
        names: Callable[[], Mapping[str, str]] = dict,
        *,
        start_ticks: Callable[[int], int | None] = procfs.start_ticks,
    ) -> None:
        self._ledger = ledger
        self._file = file
        self._log = log
        self._names = names
        self._health = CollectorHealth(
            COLLECTOR, log, recovered="is written again", level=logging.ERROR
        )
        self._start_ticks = start_ticks
        self._signature = ""
        self._ticks: dict[int, int | None] = {}
        self._resumed_ns: int | None = None
        self._given_up: set[str] = set()

    def resume(
        self, devices: Sequence[Device], now_ns: int, predecessor: str | None, signature: str
    ) -> Checkpoint | None:
        """Continue from the previous daemon, before anything is shown; return what it left.

        Args:
            devices: The node's devices.
            now_ns: Now.
            predecessor: The previous daemon's signature in the lock; None if no lock was there.
            signature: Our signature in the lock.
        """
        self._signature = signature
        before = self._file.read(now_ns, predecessor)
        if before is None:
            return None
        pids = {int(pid) for pid, ticks in before.processes.items() if self._started(pid) == ticks}
        if now_ns - before.ledger.taken_ns > ENDED_NS and not _has_engine_left(before.ledger, pids):
            self._log.info("counters begin at zero: the engines of the last daemon ended long ago")
            return None
        if not self._is_usable(before.ledger, devices, pids, now_ns):
            self._file.reject("the accounting fails on it")
            return None
        self._ledger.resume(before.ledger, devices, pids, now_ns)
        self._resumed_ns = now_ns
        with self._health.guard():
            # Written as ours beside the found one, which counts until the lock bears our signature.
            self._file.write(before._replace(daemon=signature))
        return before

    def save(self, now_ns: int, wall_offset_seconds: float) -> bool:
        """Write the accounting before any of it is shown; return whether it may be shown.

        It may not while a successor would continue from an earlier checkpoint.
        """
        is_stuck = True
        with self._health.round():
            try:
                self._save(now_ns, wall_offset_seconds)
            except CheckpointError as error:
                is_stuck = isinstance(error, StuckCheckpointError)
                raise
            except Exception:
                self._file.remove()
                is_stuck = False
                raise
            is_stuck = False
        return not is_stuck

    def give_up_missing(self, known: Container[str], now_ns: int) -> None:
        """Give up, and later forget, the engines of the previous daemon that did not return.

        Args:
            known: The engines that exist, or may return.
            now_ns: Now.
        """
        if self._resumed_ns is None or now_ns - self._resumed_ns < RETURN_NS:
            return
        for engine in self._ledger.awaited_engines.missing:
            self._ledger.give_up(engine)
            self._given_up.add(engine)
        if now_ns - self._resumed_ns >= RETURN_NS + LINGER_NS:
            for engine in self._given_up:
                if engine not in known:
                    self._ledger.forget(engine)
            self._given_up.clear()
            self._resumed_ns = None

    def finish(self, now_ns: int, wall_offset_seconds: float) -> None:
        """Leave the accounting to the next daemon, if there is an engine to continue with."""
        if self._ledger.has_engines:
            self.save(now_ns, wall_offset_seconds)
        else:
            with self._health.guard():
                self._file.remove()

    def status(self) -> CollectorStatus:
        """Return the collector `checkpoint`: failed while a successor would begin at zero."""
        return self._health.status()

    def _save(self, now_ns: int, wall_offset_seconds: float) -> None:
        ledger = self._ledger.checkpoint(now_ns)
        engines = {each.assignment.engine for each in ledger.engines}
        names = {key: name for key, name in self._names().items() if name in engines}
        processes = self._processes(ledger)
        self._file.write(Checkpoint(ledger, processes, names, wall_offset_seconds, self._signature))

    def _is_usable(
        self,
        before: LedgerCheckpoint,
        devices: Sequence[Device],
        pids: Collection[int],
        now_ns: int,
    ) -> bool:
        """Return whether it is usable; an unusable one would end every daemon at its start."""
        with self._health.guard():
            trial = Ledger()
            trial.resume(before, devices, pids, now_ns)
            # Far enough that nothing stays uncommitted: by then nothing is waited for.
            trial.advance(now_ns + 10 * RETURN_NS)
            trial.checkpoint(now_ns + 10 * RETURN_NS)
            return True
        return False

    def _started(self, pid: str) -> int | None:
        return self._start_ticks(int(pid)) if pid.isdecimal() else None

    def _processes(self, ledger: LedgerCheckpoint) -> dict[str, int]:
        """Return the start ticks of the engines' processes; each is read once."""
        pids = {
            pid
            for each in ledger.engines
            if each.assignment.state is not EngineState.GONE
            for pid in each.assignment.pids
        }
        for pid in self._ticks.keys() - pids:
            del self._ticks[pid]
        for pid in pids - self._ticks.keys():
            self._ticks[pid] = self._start_ticks(pid)
        return {str(pid): ticks for pid, ticks in self._ticks.items() if ticks is not None}


def _has_engine_left(ledger: LedgerCheckpoint, pids: Collection[int]) -> bool:
    """Return whether any engine may still exist; an engine without a process may."""
    there = (e.assignment for e in ledger.engines if e.assignment.state is not EngineState.GONE)
    return any(not engine.pids or any(pid in pids for pid in engine.pids) for engine in there)


class Succession:
    """The checkpoint of the accounting and the file of what was learned, in one run folder.

    Attributes:
        sourcing: Chooses each engine's source; it also learns.
        learned: What was learned of engines.

    Args:
        folder: The run folder.
        ledger, capacity_model: The accounting, and how full engines are.
        devices: The current devices.
        names: Names of found engines, by recognition key.
        digests: Digests of the launched workers' commands, by worker.
        at: Maps a file of the run folder to the path by which it is written.
        log: Logs what cannot be read or written.
    """

    def __init__(
        self,
        folder: RunFolder,
        ledger: Ledger,
        capacity_model: CapacityModel,
        *,
        devices: Callable[[], Iterable[Device]],
        names: Callable[[], Mapping[str, str]],
        digests: Mapping[str, Callable[[], str]],
        at: Place,
        log: logging.Logger,
    ) -> None:
        file = CheckpointFile(folder.checkpoints, here(), log, at=at)
        self._continuity = Continuity(ledger, file, log, names)
        self.sourcing = SourceSelection(ledger)
        learners = Learners(ledger, capacity_model, self.sourcing)
        identities = EngineIdentities(devices, digests, procfs.command_line, procfs.start_ticks)
        models = LearnedModels(learners, identities.of, log)
        self.learned = LearnedFile(folder.learned, models, log, at=at)

    def resume(self, lock: RunLock, devices: Sequence[Device], now_ns: int) -> Checkpoint | None:
        """Continue the accounting of the previous daemon; return what it left."""
        signatures = lock.predecessor, lock.signature
        return self._continuity.resume(devices, now_ns, *signatures)

    def save(self, now_ns: int, wall_offset_seconds: float) -> bool:
        """Write the accounting before any of it is shown; return whether it may be shown."""
        return self._continuity.save(now_ns, wall_offset_seconds)

    def give_up_missing(self, known: Container[str], now_ns: int) -> None:
        """Give up the engines of the previous daemon that did not return."""
        self._continuity.give_up_missing(known, now_ns)

    def finish(self, now_ns: int, wall_offset_seconds: float) -> None:
        """Leave the accounting to the next daemon."""
        self._continuity.finish(now_ns, wall_offset_seconds)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return the status of reading and writing both."""
        return self.learned.status(), self._continuity.status()
