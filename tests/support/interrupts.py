"""Ctrl-C for processes of tests that are run in the background."""

from __future__ import annotations

import signal


def take_interrupts() -> None:
    """Restore the default of SIGINT; call it in a child before exec.

    A shell makes background processes ignore SIGINT, and children inherit that.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
