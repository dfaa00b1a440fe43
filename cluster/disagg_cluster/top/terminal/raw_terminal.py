"""A terminal that delivers single keys, restored at the end."""

from __future__ import annotations

import contextlib
import os
import termios
from collections.abc import Iterator
from typing import IO, Any

from disagg_cluster.top.terminal.painter import entering, leaving

Attributes = list[Any]
"""The result of `termios.tcgetattr`."""

_LFLAG, _CC = 3, 6


@contextlib.contextmanager
def raw_terminal(keyboard: int, output: IO[str]) -> Iterator[None]:
    """Show the alternate screen and read single keys until the block ends in any way.

    Ctrl-C remains a signal; Ctrl-Z becomes a key without meaning, as it would stop a daemon that
    has opened the view.

    Args:
        keyboard: The descriptor to read keys from; it need not be a terminal.
        output: The terminal.
    """
    before = termios.tcgetattr(keyboard) if os.isatty(keyboard) else None
    try:
        if before is not None:
            termios.tcsetattr(keyboard, termios.TCSADRAIN, _single_keys(before))
        write_all(output, entering())
        yield
    finally:
        restore(output, keyboard, before)


def restore(output: IO[str] | None, keyboard: int, before: Attributes | None) -> None:
    """Restore a terminal; ignores one that is gone.

    Args:
        output: The terminal, if its alternate screen is to be left.
        keyboard: The descriptor of the terminal that keys are read from.
        before: Its attributes before.
    """
    if output is not None:
        with contextlib.suppress(OSError, ValueError):
            write_all(output, leaving())
    if before is not None:
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def write_all(output: IO[str], text: str) -> None:
    """Write and flush."""
    output.write(text)
    output.flush()


def _single_keys(attributes: Attributes) -> Attributes:
    changed = list(attributes)
    changed[_LFLAG] = attributes[_LFLAG] & ~(termios.ICANON | termios.ECHO)
    characters = list(attributes[_CC])
    characters[termios.VMIN], characters[termios.VTIME] = 1, 0
    characters[termios.VSUSP] = b"\0"
    changed[_CC] = characters
    return changed
