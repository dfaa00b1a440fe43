"""The names of a daemon's workers for a shell that waits: the protocol without what checks it.

Standard library only: loading the types of a whole reply takes longer than a person who presses
the tabulator waits.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path

_REQUEST = b'{"version":1,"id":"completion","verb":"status"}\n'
_MOST_BYTES = 4 * 1024 * 1024


def worker_states(path: Path, deadline_seconds: float) -> dict[str, str]:
    """The states of a daemon's workers by their names; empty where nobody answers in time.

    Args:
        path: The daemon's socket.
        deadline_seconds: For each step of the conversation.
    """
    states: dict[str, str] = {}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(deadline_seconds)
            link.connect(str(path))
            link.sendall(_REQUEST)
            with link.makefile("rb") as stream:
                for line in stream.read(_MOST_BYTES).splitlines():
                    worker = json.loads(line).get("worker")
                    if worker is not None:
                        states[worker["worker"]] = worker["state"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return states
