"""What a daemon takes over of the one before, and leaves to the next: accounting and learning."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from disagg_cluster.continuity.accounting import Continuity
from disagg_cluster.continuity.checkpoint_file import CheckpointFile
from disagg_cluster.continuity.checkpoint_text import Checkpoint
from disagg_cluster.continuity.learned_file import learned_file
from disagg_cluster.continuity.learned_models import Learners
from disagg_cluster.host.files.atomic_write import Place
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.host.run_dir.lock import RunLock
from disagg_cluster.supervisor.journal.journal import here
from disagg_cluster.telemetry.source_selection import Sourcing
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import Fullness
from disagg_exporter.model import CollectorStatus, Device


class Succession:
    """The checkpoint of the accounting and the file of what was learned, in one run folder.

    Attributes:
        sourcing: Chooses each engine's source; it learns, too.
        learned: What was learned of engines.

    Args:
        folder: The run folder.
        ledger, fullness: The accounting, and how full engines are.
        devices: The devices that there are now.
        names: What found engines are called, by what they are recognised by.
        digests: Fingerprints of the launched workers' commands, by worker.
        at: By which path a file of the run folder is written.
        log: Told what cannot be read or written.
    """

    def __init__(
        self,
        folder: RunFolder,
        ledger: Ledger,
        fullness: Fullness,
        *,
        devices: Callable[[], Iterable[Device]],
        names: Callable[[], Mapping[str, str]],
        digests: Mapping[str, Callable[[], str]],
        at: Place,
        log: logging.Logger,
    ) -> None:
        file = CheckpointFile(folder.checkpoints, here(), log, at=at)
        self._continuity = Continuity(ledger, file, log, names)
        self.sourcing = Sourcing(ledger)
        learners = Learners(ledger, fullness, self.sourcing)
        self.learned = learned_file(folder.learned, learners, devices, digests, log, at)

    def resume(self, lock: RunLock, devices: Sequence[Device], now_ns: int) -> Checkpoint | None:
        """Go on with the accounting of the daemon before; return what it left."""
        signatures = lock.predecessor, lock.signature
        return self._continuity.resume(devices, now_ns, *signatures)

    def save(self, now_ns: int, wall_offset_seconds: float) -> bool:
        """Write the accounting down, before any of it is shown; say whether it may be shown."""
        return self._continuity.save(now_ns, wall_offset_seconds)

    def look(self, known: Container[str], now_ns: int) -> None:
        """Give up the engines of the daemon before that did not come back."""
        self._continuity.look(known, now_ns)

    def finish(self, now_ns: int, wall_offset_seconds: float) -> None:
        """Leave the accounting to the next daemon."""
        self._continuity.finish(now_ns, wall_offset_seconds)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """How reading and writing both goes."""
        return self.learned.status(), self._continuity.status()
