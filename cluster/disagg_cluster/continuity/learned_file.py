"""What was learned of engines, on disk: for the next daemon, or for this node after a reboot."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from disagg_cluster.continuity.learned_models import LearnedModels
from disagg_cluster.continuity.learned_text import FILE_BYTES, LearnedError, decode, encode
from disagg_cluster.host.files.atomic_write import Place, put_aside, write_whole
from disagg_cluster.host.files.private_files import open_private
from disagg_exporter.collectors import CollectorHealth, DaemonExecutor, explain
from disagg_exporter.model import CollectorStatus, EngineStatus

ROUND_SECONDS = 5.0


class LearnedFile:
    """One file, replaced as a whole.

    Args:
        path: The file; its folder exists and is trusted.
        models: What is learned.
        log: Logs when the file cannot be trusted or written, once each time that begins.
        at: Maps it to the path by which it is written; the same by default.
        round_seconds: Interval between rounds.
        wall: Unix seconds.
    """

    def __init__(
        self,
        path: Path,
        models: LearnedModels,
        log: logging.Logger,
        *,
        at: Place = Path,
        round_seconds: float = ROUND_SECONDS,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._at = at
        self._models = models
        self._log = log
        self._round_seconds = round_seconds
        self._wall = wall
        # A round may be writing when `end` is called.
        self._writing = threading.Lock()
        self._written = b""
        self._health = CollectorHealth(
            "learned",
            log,
            failing="the next daemon may have to learn it anew: ",
            recovered="is written again",
            wall=wall,
        )

    def read(self) -> None:
        """Read what the previous daemon left; an untrusted file is kept beside it, and logged."""
        try:
            self._models.begin(decode(self._read(), self._wall()))
        except FileNotFoundError:
            return
        except (OSError, LearnedError) as error:
            why = explain(error)
        else:
            return
        self._log.warning("what was learned (%s) is not trusted: %s", self._path, why)
        put_aside(self._path, self._log)

    def inherit(self, engines: Sequence[EngineStatus], now_ns: int) -> None:
        """Update the current engines; they inherit what was learned of the same identity."""
        with self._health.guard():
            self._models.update(engines, now_ns, self._wall())

    async def run(self) -> None:
        """Collect what is learned and write it to the file, until cancelled."""
        executor = DaemonExecutor(1, "learned")
        try:
            while True:
                await asyncio.sleep(self._round_seconds)
                with self._health.guard():
                    await self._round(executor)
        finally:
            executor.shutdown(wait=False)

    def end(self) -> None:
        """Write what is known now, at an orderly end."""
        with self._health.round() as problems:
            problems.update(self._models.keep_all(time.monotonic_ns(), self._wall()))
            self._write(encode(self._models.stored(self._wall())))

    def status(self) -> CollectorStatus:
        """Return the collector `learned`: failed while something learned is not on disk."""
        return self._health.status()

    async def _round(self, executor: DaemonExecutor) -> None:
        """Collect engine by engine, as each takes some milliseconds, then write."""
        due = self._models.due(time.monotonic_ns())
        if not due and self._health.ok:
            return
        found: dict[str, str] = {}
        for engine in due:
            found |= self._models.keep(engine, time.monotonic_ns(), self._wall())
            await asyncio.sleep(self._round_seconds / len(due))
        text = encode(self._models.stored(self._wall()))
        with self._health.round() as problems:
            problems.update(found)
            await asyncio.get_running_loop().run_in_executor(executor, self._write, text)

    def _read(self) -> bytes:
        with os.fdopen(open_private(self._path, os.O_RDONLY), "rb") as file:
            return file.read(FILE_BYTES + 1)

    def _write(self, text: bytes) -> None:
        with self._writing:
            if text == self._written:
                return
            self._written = b""
            # Not synced: a file damaged by a power cut fails validation when it is read.
            write_whole(self._at(self._path), text, 0o600)
            self._written = text
