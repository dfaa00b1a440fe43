"""Where the daemon keeps its sockets and logs when the node file does not say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def default_run_dir(environ: Mapping[str, str], uid: int) -> Path:
    """The folder for sockets and logs; short, as a socket's path may have 107 bytes only.

    Args:
        environ: The daemon's environment.
        uid: Its user; root keeps them in /run, others in their session's folder or their home.
    """
    if session := environ.get("XDG_RUNTIME_DIR"):
        return Path(session) / "disagg-node"
    if uid == 0:
        return Path("/run/disagg-node")
    return Path(environ.get("HOME", "/tmp")) / ".cache" / "disagg-node"
