"""Terminal colours of the states of workers and engines."""

from __future__ import annotations

from collections.abc import Mapping

STATE_COLOURS: Mapping[str, str] = {
    "ready": "green",
    "starting": "yellow",
    "restarting": "yellow",
    "draining": "yellow",
    "not registered": "yellow",
    "backoff": "red",
    "failed": "red",
    "unresponsive": "red",
    "no answer": "red",
}
"""By the displayed word; other states have no colour."""
