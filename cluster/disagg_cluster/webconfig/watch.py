"""Keeps to a web-config file while it changes; a change that is wrong changes nothing."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from disagg_cluster.problems import ConfigError
from disagg_cluster.webconfig.reading import WebFiles, read
from disagg_cluster.webconfig.tls import access_of
from disagg_exporter.access import Access
from disagg_exporter.model import CollectorStatus

COLLECTOR = "web_config"
_JOIN_SECONDS = 1.0


class WebConfigWatch:
    """What a web-config file asks for, made anew when its content or its files' changes.

    Looks on a thread of its own: a file on a server that hangs must hold up nobody.

    Args:
        path: The file.
        log: Told each change, and each new reason why a change cannot be used.
        every_seconds: From one look to the next.

    Raises:
        ConfigError: The file cannot be used now, with all its problems.
    """

    def __init__(self, path: Path, log: logging.Logger, every_seconds: float = 5.0) -> None:
        self._path = path
        self._log = log
        self._every_seconds = every_seconds
        self._files: WebFiles | None = None
        self._complaint = ""
        self._access = Access()
        self._last_success_seconds: float | None = None
        self._status = CollectorStatus(COLLECTOR, False, 0.0, None)
        self._wake = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="web-config", daemon=True)
        self._look()

    @property
    def access(self) -> Access:
        """What holds now."""
        return self._access

    def status(self) -> CollectorStatus:
        """How the last look went: failed while the file is one that cannot be used."""
        return self._status

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
        self._ended = True
        self._wake.set()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._ended:
            self._wake.wait(self._every_seconds)
            self._wake.clear()
            if self._ended:
                return
            try:
                self._look()
            except ConfigError as error:
                self._complain(str(error))

    def _look(self) -> None:
        began = time.monotonic()
        success = False
        try:
            files = read(self._path)
            if files != self._files:
                self._access = access_of(files)
                self._log.info("web config: %s is in force", self._path)
                self._files, self._complaint = files, ""
            elif self._complaint:
                self._log.info("web config: %s is again what is in force", self._path)
                self._complaint = ""
            success = True
        finally:
            if success:
                self._last_success_seconds = time.time()
            took = time.monotonic() - began
            self._status = CollectorStatus(COLLECTOR, success, took, self._last_success_seconds)

    def _complain(self, why: str) -> None:
        if why != self._complaint:
            self._log.error("web config: the one before stays in force:\n%s", why)
        self._complaint = why
