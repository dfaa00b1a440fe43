"""Asks another Python interpreter whether it has a module, without importing it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

_FIND = "import importlib.util as i, sys; sys.exit(0 if i.find_spec(sys.argv[1]) else 3)"
_LACKS = 3
_DEADLINE_SECONDS = 10.0


def lacks_module(python: str, module: str, environment: Mapping[str, str]) -> bool:
    """Return whether an interpreter certainly lacks a module; False where that is unknown.

    Args:
        python: The program.
        module: Its top-level name.
        environment: The whole environment it is run with.
    """
    try:
        done = subprocess.run(
            [python, "-c", _FIND, module],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_DEADLINE_SECONDS,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return False
    return done.returncode == _LACKS
