"""Ctrl-C for processes of tests that are run in the background."""

from __future__ import annotations

import signal


def take_interrupts() -> None:
    """Let this process be ended by Ctrl-C; to be called in a child before it executes anything.

    A shell has what it runs in the background ignore SIGINT, and children inherit that.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
