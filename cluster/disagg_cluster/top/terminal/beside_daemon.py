"""Runs the live view as a process beside a daemon on the same terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TypeVar

from disagg_cluster.host.daemon_output import QueuedStream
from disagg_cluster.host.files.private_files import open_private
from disagg_cluster.host.worker_logs import LogError, last_lines, rotate
from disagg_cluster.top.terminal.raw_terminal import Attributes, restore

T = TypeVar("T")
_STREAMS = (1, 2)
_DRAIN_SECONDS = 1.0
_CLOSING_SECONDS = 3.0
_SHOWN_LINES = 5
_MOST_LOG_BYTES = 10_000_000
# A view that is still starting dies from the signal itself.
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TOLD_TO_END = frozenset(code for number in _ENDING_SIGNALS for code in (-number, 128 + number))


class ViewBesideDaemon:
    """Opens the view, redirects the daemon's output meanwhile, and closes the view.

    A user who leaves the view ends the daemon, as with Ctrl-C. If the view fails, the daemon
    continues without it.

    Args:
        log: Receives the daemon's output while the view is open; truncated at the start.
        say: Prints a message for the user at the terminal.
        arguments: For `disagg-node top`, besides the daemon's address.
    """

    def __init__(self, log: Path, say: Callable[[str], None], arguments: Sequence[str]) -> None:
        self._log = log
        self._say = say
        self._arguments = tuple(arguments)
        self._kept: dict[int, int] = {}
        self._attributes: Attributes | None = None
        self._view: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the view owns the terminal."""
        return bool(self._kept)

    def unless_open(self, callback: Callable[[T], None]) -> Callable[[T], None]:
        """Wraps a callback so that it is skipped while the view is open."""

        def call_unless_open(value: T) -> None:
            if self.is_open:
                self._keep_log_short()
            else:
                callback(value)

        return call_unless_open

    def open(self, url: str, note: str = "") -> None:
        """Open the view of the daemon at a URL; call inside its running loop.

        `note` is shown in the view's header.
        """
        if self._watch is None:
            options = ("--note", note) if note else ()
            self._watch = asyncio.get_running_loop().create_task(self._run(url, options))

    async def beside(self, daemon: Coroutine[None, None, T]) -> T:
        """Run a daemon; close the view when it ends."""
        try:
            return await daemon
        finally:
            if self._view is not None and self._view.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._view.terminate()
            if self._watch is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CLOSING_SECONDS):
                        await asyncio.shield(self._watch)
                self._restore_terminal()

    def _keep_log_short(self) -> None:
        with contextlib.suppress(LogError):
            rotate(self._log, _MOST_LOG_BYTES)

    async def _run(self, url: str, options: Sequence[str]) -> None:
        command = (sys.executable, "-m", "disagg_cluster.cli", "top", "--url", url, *options)
        try:
            self._redirect_output()
            self._view = await asyncio.create_subprocess_exec(
                *command,
                *self._arguments,
                stdout=self._kept.get(1),
                stderr=self._kept.get(2),
            )
        except OSError as error:
            self._restore_terminal()
            self._say(f"the live view cannot be opened: {error.strerror}; see --plain")
            return
        code = await self._view.wait()
        self._restore_terminal()
        if code == 0:
            # The user left the view: end the daemon as for a Ctrl-C, which it did not receive
            # itself.
            os.kill(os.getpid(), signal.SIGINT)
        elif code not in _TOLD_TO_END:
            self._say(f"the live view ended with {code}: a line a second is printed instead")

    def _redirect_output(self) -> None:
        """Redirect our output to the log and keep the terminal for the view."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, QueuedStream):
                stream.drain(_DRAIN_SECONDS)
        self._attributes = termios.tcgetattr(0)
        log = open_private(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.ftruncate(log, 0)
            for stream_number in _STREAMS:
                # Output that already goes to a file is not redirected.
                if os.isatty(stream_number):
                    self._kept[stream_number] = os.dup(stream_number)
                    os.dup2(log, stream_number)
        finally:
            os.close(log)

    def _restore_terminal(self) -> None:
        """Restore the terminal and print the last lines of the log."""
        if not self._kept:
            return
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, QueuedStream):
                stream.drain(_DRAIN_SECONDS)
        for stream_number, kept in self._kept.items():
            os.dup2(kept, stream_number)
            os.close(kept)
        self._kept = {}
        if self._attributes is not None:
            # A killed view has not restored the screen itself.
            killed = self._view is not None and (self._view.returncode or 0) < 0
            restore(sys.stdout if killed else None, 0, self._attributes)
        for line in last_lines(self._log, _SHOWN_LINES):
            self._say(line)
