"""Detects an interactive terminal, without importing the drawing code."""

from __future__ import annotations

import os
from collections.abc import Mapping


def has_terminal(environ: Mapping[str, str]) -> bool:
    """Whether this process reads and writes a terminal in its foreground."""
    try:
        at_terminal = os.isatty(0) and os.isatty(1) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
    return at_terminal and environ.get("TERM", "dumb") not in ("", "dumb")
