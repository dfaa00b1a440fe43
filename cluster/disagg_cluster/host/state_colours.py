"""The colours in which a terminal shows the states of workers and engines."""

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
"""By the word that is shown; a state that is not among them has none."""
