"""Progress of a long-running command, on standard error."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress

import click

from disagg_cluster.host.spans import duration_text

_EVERY_SECONDS = 10.0


class Progress:
    """One line on standard error, overwritten with each update.

    If standard error is not a terminal, a long-running step is reported on its own line now and
    then, as silence would look like a hang; short ones are not reported there.

    Args:
        every_seconds: Time between lines without a terminal.
    """

    def __init__(self, *, every_seconds: float = _EVERY_SECONDS) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._every_seconds = every_seconds
        self._line = ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._ends_with_command = False

    def say(self, line: str) -> None:
        """Replace the line."""
        self._line = line
        if self._is_terminal:
            click.echo(f"\r{line}\x1b[K", err=True, nl=False)
        elif self._thread is None:
            self._begin()

    def end(self) -> None:
        """Remove the line; the next call of `say` starts again."""
        if self._is_terminal:
            self.say("")
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ended.set()
            thread.join()

    def _begin(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._report, name="progress", daemon=True)
        self._thread.start()
        context = click.get_current_context(silent=True)
        if context is not None and not self._ends_with_command:
            self._ends_with_command = True
            context.call_on_close(self.end)

    def _report(self) -> None:
        begun_seconds = time.monotonic()
        # The reader may have closed standard error.
        with suppress(OSError, ValueError):
            while not self._ended.wait(self._every_seconds):
                waited = duration_text(time.monotonic() - begun_seconds)
                click.echo(f"{self._line} ({waited} so far)", err=True)
