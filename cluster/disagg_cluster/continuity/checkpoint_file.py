"""The checkpoint of the accounting on disk: either as it was last shown, or absent."""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from disagg_cluster.continuity.checkpoint_text import (
    MOST_BYTES,
    Checkpoint,
    CheckpointError,
    decode,
    encode,
)
from disagg_cluster.host.files.atomic_write import Place, put_aside
from disagg_cluster.host.files.private_files import open_private
from disagg_cluster.supervisor.journal.journal_text import Where
from disagg_exporter.collectors import explain


class StuckCheckpointError(CheckpointError):
    """The last checkpoint can be neither replaced nor removed: nothing newer may be shown."""


@dataclass(slots=True, eq=False)
class CheckpointFile:
    """Two files, written in turn, so that a daemon that dies during a write leaves the other.

    Each is overwritten in place: a rename each second would send it to the disk each second. What
    the page shows was written before. If one cannot be written, both are removed: a successor that
    continued from an older one would show lower counters than before, and every `increase()` would
    count the difference twice. Without any it begins at zero, which is an ordinary counter reset. A
    checkpoint that can be neither written nor removed, on a disk that turned read-only, is where a
    successor continues: nothing newer may be shown meanwhile.

    Args:
        paths: Their paths; the folder exists.
        where: The context in which pids are valid.
        log: Logs when a checkpoint cannot be trusted.
        at: Maps them to the paths by which they are written; the same by default.
    """

    paths: tuple[Path, Path]
    where: Where
    log: logging.Logger
    at: Place = Path
    _turn: int = field(default=0, init=False)

    def read(self, now_ns: int, predecessor: str | None) -> Checkpoint | None:
        """Return what the previous daemon left; None if that is nothing, or not to be trusted.

        An untrusted one is kept beside it as `<checkpoint>.rejected`, and logged.

        Args:
            now_ns: Now.
            predecessor: The signature of the previous daemon; that one may not have known
                checkpoints, and have shown counters that began at zero. None if the lock was
                removed: then the newest counts, as no daemon shows more than it has written.
        """
        found: dict[int, Checkpoint] = {}
        wrong: list[str] = []
        for turn, path in enumerate(self.paths):
            try:
                content = self._load(path, now_ns)
            except CheckpointError as error:
                wrong.append(f"{path}: {error}")
                put_aside(path, self.log)
            else:
                found |= {} if content is None else {turn: content}
        last = {turn: each for turn, each in found.items() if predecessor in (None, each.daemon)}
        if last:
            # A checkpoint whose write was cut short was never shown.
            newest = max(last, key=lambda turn: last[turn].ledger.taken_ns)
            self._turn = 1 - newest
            return last[newest]
        wrong += [f"{self.paths[turn]}: another disagg-node has run here since" for turn in found]
        if wrong:
            self.reject("; ".join(wrong))
        return None

    def reject(self, why: str) -> None:
        """Put aside the existing files, as they are unusable; `why` is logged."""
        for path in self.paths:
            put_aside(path, self.log)
        self.log.warning("counters begin at zero: no checkpoint can be trusted: %s", why)

    def write(self, content: Checkpoint) -> None:
        """Replace the older of the two.

        Raises:
            StuckCheckpointError: It could not be written, and the last is still there.
            CheckpointError: It could not be written; nothing is left to continue from.
        """
        path = self.paths[self._turn]
        try:
            _write_over(self.at(path), encode(self.where, content))
        except OSError as error:
            self.remove()
            raise CheckpointError(
                f"cannot write the checkpoint {path}: {explain(error)}; counters begin at zero if "
                "the daemon dies now"
            ) from error
        self._turn = 1 - self._turn

    def remove(self) -> None:
        """Leave nothing to continue from.

        Raises:
            StuckCheckpointError: It could not be removed; of two the last is left, which holds what
                was shown.
            CheckpointError: Something unusable is in the place of one.
        """
        problem = ""
        # The older first: if only the last were removed, a successor would continue from the older.
        for path in (self.paths[self._turn], self.paths[1 - self._turn]):
            place = self.at(path)
            try:
                place.unlink(missing_ok=True)
            except OSError as error:
                problem = f"cannot remove the checkpoint {path}: {explain(error)}"
                if _may_be_read(place):
                    raise StuckCheckpointError(
                        f"{problem}; no accounting is shown until it can be written again"
                    ) from error
        if problem:
            raise CheckpointError(f"{problem}; counters begin at zero if the daemon dies now")

    def _load(self, path: Path, now_ns: int) -> Checkpoint | None:
        try:
            with os.fdopen(open_private(path, os.O_RDONLY), "rb") as file:
                text = file.read(MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(f"it cannot be read: {error.strerror}") from error
        if len(text) > MOST_BYTES:
            raise CheckpointError("it is too long")
        return decode(text, self.where, now_ns)


def _write_over(path: Path, text: bytes) -> None:
    """Overwrite a file in place. Not synced: after a power cut the boot id no longer matches."""
    descriptor = open_private(path, os.O_WRONLY | os.O_CREAT)
    try:
        written = 0
        while written < len(text):
            written += os.pwrite(descriptor, text[written:], written)
        os.ftruncate(descriptor, len(text))
    finally:
        os.close(descriptor)


def _may_be_read(path: Path) -> bool:
    """Return whether a successor may find a checkpoint there."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False
    except OSError:
        return True
