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
    """One file, replaced whole.

    Args:
        path: Where it is; its folder exists and is trusted.
        models: What is learned.
        log: Logs when the file cannot be trusted or written, once each time that begins.
        at: By which path it is written; by its own if not said.
        round_seconds: From one look at what is new to the next.
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
        # A round may be writing when the end comes.
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
        """Take what the daemon before left; what is not trusted is kept beside it, and said."""
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
        """Take which engines there are now: what was learned of their like is theirs."""
        with self._health.guard():
            self._models.look(engines, now_ns, self._wall())

    async def run(self) -> None:
        """Keep what is learned and write it down, until cancelled."""
        executor = DaemonExecutor(1, "learned")
        try:
            while True:
                await asyncio.sleep(self._round_seconds)
                with self._health.guard():
                    await self._round(executor)
        finally:
            executor.shutdown(wait=False)

    def end(self) -> None:
        """Write down what is known now: at an orderly end."""
        with self._health.round() as problems:
            problems.update(self._models.keep_all(time.monotonic_ns(), self._wall()))
            self._write(encode(self._models.stored(self._wall())))

    def status(self) -> CollectorStatus:
        """The collector `learned`: failed while something that was learned is not on disk."""
        return self._health.status()

    async def _round(self, executor: DaemonExecutor) -> None:
        """Keep one engine after the other, as each takes some milliseconds, then write."""
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
            # Not synced: what a power cut leaves of it is looked at before it is believed.
            write_whole(self._at(self._path), text, 0o600)
            self._written = text
