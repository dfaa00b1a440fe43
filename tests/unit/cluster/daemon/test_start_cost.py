"""What a daemon loads before it can tell how its workers stand."""

from __future__ import annotations

import subprocess
import sys


def test_a_launching_daemon_loads_no_discovery_or_terminal_modules() -> None:
    """Loading modules delays the first status of adopted workers."""
    wanted = "disagg_cluster.daemon.daemon", "disagg_cluster.top.terminal.presence"
    code = f"import sys\nfor m in {wanted!r}: __import__(m)\nprint(*sys.modules, sep='\\n')"

    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()

    needless = ("rich", "grpc", "requests", "disagg_cluster.discovery.attach_mode")
    assert not [name for name in needless if name in loaded]
    assert "disagg_cluster.daemon.composition" in loaded
