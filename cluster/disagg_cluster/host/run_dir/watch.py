"""Detects within seconds that the run folder, or what must be in it, was removed or replaced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from disagg_cluster.host.files.private_files import make_inner
from disagg_exporter.collectors import CollectorHealth
from disagg_exporter.model import CollectorStatus

COLLECTOR = "run_folder"
_CHECK_SECONDS = 2.0


class Restorable(Protocol):
    """A file or socket of ours at a path."""

    @property
    def is_in_place(self) -> bool:
        """Whether the file at its path is ours."""

    def restore(self) -> None:
        """Recreate it there; raises `OSError` or `DisaggError`."""


class RunDirWatch:
    """Restores what is missing, logs and counts it; the collector `run_folder`.

    Sockets restore themselves once their folder exists again.

    Args:
        folder: The run folder.
        inner: The folders in it.
        contents: What must be in it, by name: the lock first, as it creates the folder.
        log: Logs what was restored, and what cannot be.
        each_check: Called after each check.
    """

    def __init__(
        self,
        folder: Path,
        inner: Sequence[Path],
        contents: Sequence[tuple[str, Restorable]],
        log: logging.Logger,
        each_check: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._folder = folder
        self._inner = tuple(inner)
        self._contents = tuple(contents)
        self._log = log
        self._each_check = tuple(each_check)
        self._health = CollectorHealth(COLLECTOR, log, failing="cannot be restored: ")
        self.restored = 0
        """Number of restorations."""

    def keep(self, name: str, content: Restorable) -> None:
        """Also watch this one from now on."""
        self._contents = (*self._contents, (name, content))

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            self.check()
            await asyncio.sleep(_CHECK_SECONDS)

    def check(self) -> None:
        """Check once; restore what is missing."""
        with self._health.round():
            try:
                self._restore_lost()
            finally:
                # Clients that ask whether we are here are answered even if the folder is lost.
                for each in self._each_check:
                    each()

    def status(self) -> CollectorStatus:
        """Return the collector: failed while something is missing that cannot be restored."""
        return self._health.status()

    def _restore_lost(self) -> None:
        lost = [name for name, content in self._contents if not content.is_in_place]
        for name, content in self._contents:
            if name in lost:
                content.restore()
        for path in self._inner:
            if not path.is_dir():
                lost.append(path.name)
                make_inner(path)
        if lost:
            self.restored += 1
            self._log.warning(
                "removed or replaced in %s and now recreated: %s; their contents, such as "
                "logs and rejected journals, are lost",
                self._folder,
                ", ".join(lost),
            )
