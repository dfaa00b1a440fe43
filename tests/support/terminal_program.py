"""A program on a pseudo-terminal, and its screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import pyte

from support.interrupts import take_interrupts

_READ_BYTES = 1 << 16


class TerminalProgram:
    """Runs a program on a terminal of a given size; ends it with the block.

    Args:
        command: The program and its arguments.
        columns, lines: The size of the terminal.
        environ: Its environment.
    """

    def __init__(
        self, command: Sequence[str], columns: int, lines: int, environ: Mapping[str, str]
    ) -> None:
        self._command, self._environ = list(command), dict(environ)
        self._size = (columns, lines)
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.sent = b""
        self.exit_code: int | None = None
        self._pid, self._terminal = 0, -1

    def __enter__(self) -> Self:
        """Start it."""
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            take_interrupts()
            _resize(0, *self._size)
            os.execvpe(self._command[0], self._command, self._environ)
        return self

    def __exit__(self, *_: object) -> None:
        """End it in any state."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)
            with contextlib.suppress(AssertionError):
                self.wait(10)
        if self.exit_code is None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._terminal)

    @property
    def text(self) -> str:
        """The text on the screen, without trailing blanks."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    @property
    def modes(self) -> list[Any]:
        """Return the settings of the terminal."""
        return termios.tcgetattr(self._terminal)

    def resize(self, columns: int, lines: int) -> None:
        """Resize the terminal."""
        self.screen.resize(lines, columns)
        _resize(self._terminal, columns, lines)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._terminal, keys.encode())

    def shown(self, probe: Callable[[str], bool], what: str, seconds: float = 120.0) -> str:
        """Wait until the screen satisfies the probe; return its text."""
        until = time.monotonic() + seconds
        while not probe(self.text):
            assert time.monotonic() < until, f"waited in vain for {what}:\n{self.text}"
            self._receive()
        return self.text

    def wait(self, seconds: float = 120.0) -> int:
        """Wait until it has ended; return its exit code, negative for a signal."""
        until = time.monotonic() + seconds
        while self.exit_code is None:
            assert time.monotonic() < until, f"does not end:\n{self.text}"
            self._receive()
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                self.exit_code = os.waitstatus_to_exitcode(status)
        self._receive()
        return self.exit_code

    def _receive(self) -> None:
        if select.select([self._terminal], [], [], 0.1)[0]:
            # A terminal whose programs have all ended answers with an error.
            with contextlib.suppress(OSError):
                piece = os.read(self._terminal, _READ_BYTES)
                self.sent += piece
                self._stream.feed(piece)


def _resize(terminal: int, columns: int, lines: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
