"""Keeps to a web-config file while it changes; a change that is wrong changes nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from disagg_cluster.config.problems import ConfigError, Finding, config_error
from disagg_cluster.nodefile.web.reading import WebFiles, read
from disagg_cluster.nodefile.web.tls import access_of
from disagg_exporter.collectors import CollectorHealth
from disagg_exporter.http.server.authentication import Access
from disagg_exporter.model import CollectorStatus

COLLECTOR = "web_config"
_JOIN_SECONDS = 1.0


class WebConfigWatch:
    """What a web-config file asks for, made anew when its content or its files' changes.

    Looks on a thread of its own: a file on a server that hangs must hold up nobody. Half a file
    could be one that asks for no password, so a change counts once it has stood still for a
    moment, and an empty file never does.

    Args:
        path: The file.
        log: Told each change, and each new reason why a change cannot be used.
        every_seconds: From one look to the next.
        settle_seconds: How long a change must have stood still.
        reading: Reads the file and those that it names.

    Raises:
        ConfigError: The file cannot be used now, with all its problems.
    """

    def __init__(
        self,
        path: Path,
        log: logging.Logger,
        every_seconds: float = 5.0,
        settle_seconds: float = 0.5,
        reading: Callable[[Path], WebFiles] = read,
    ) -> None:
        self._path = path
        self._log = log
        self._every_seconds = every_seconds
        self._settle_seconds = settle_seconds
        self._files: WebFiles | None = None
        self._access = Access()
        self._health = CollectorHealth(
            COLLECTOR,
            log,
            subject="web config",
            recovered=f"{path} is again what is in force",
            level=logging.ERROR,
        )
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="web-config", daemon=True)
        self._read = reading
        self._look(reading(path))
        self._health.succeed()

    @property
    def access(self) -> Access:
        """What holds now."""
        return self._access

    def status(self) -> CollectorStatus:
        """How the last look went: failed while the file is one that cannot be used."""
        return self._health.status()

    def look_now(self) -> None:
        """Look at once; returns before it has."""
        self._wake.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._ending.set()
        self._wake.set()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._ending.is_set():
            self._wake.wait(self._every_seconds)
            self._wake.clear()
            with self._health.round() as problems:
                try:
                    self._look_twice()
                except ConfigError as error:
                    problems[""] = f"the one before stays in force:\n{error}"

    def _look_twice(self) -> None:
        files = self._read(self._path)
        while files != self._files and not self._ending.wait(self._settle_seconds):
            before, files = files, self._read(self._path)
            if files == before:
                break
        if not self._ending.is_set():
            self._look(files)

    def _look(self, files: WebFiles) -> None:
        if files == self._files:
            return
        if self._files is not None and not files.text.strip():
            why = Finding((), "is empty now: say {} if nothing is to be asked for")
            raise config_error([why], str(self._path))
        self._access = access_of(files)
        self._log.info("web config: %s is in force", self._path)
        self._files = files
