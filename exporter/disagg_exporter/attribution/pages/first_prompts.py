"""Prompts that an engine's page does not show yet, because their first step has not ended.

From when a prompt comes until its first step has ended the page shows a rest, and nothing counted.
It shows the same while another process uses the devices. So where they are active a rest is not
believed at once: what comes next says whose activity it was.
"""

from __future__ import annotations

from disagg_exporter.engine_pages.window import EngineWindow
from disagg_exporter.model import EnginePage, Method

MOST_HELD_SECONDS = 20.0
"""How long a rest is not believed; the accounting waits for a window for half a minute."""

# What a resting engine's devices, and its processes, may be active at most.
_ACTIVE_RATIO = {Method.PAGE: 0.1, Method.PAGE_CPU: 0.3}

HELD_METHODS = frozenset(_ACTIVE_RATIO)
"""Methods by which somebody else's activity looks like the engine's."""


def rests(before: EnginePage, after: EnginePage, did: EngineWindow) -> bool:
    """Say whether an engine had nothing running at two looks, and counted nothing in between."""
    requests = (before.running, before.waiting, after.running, after.waiting)
    known = before.running is not None and after.running is not None
    counted = did.reset or did.did_work or bool(did.external_tokens)
    return known and not any(requests) and not counted


class FirstPrompts:
    """Whether a rest that one engine's page shows may be its first prompt."""

    def __init__(self) -> None:
        self._strange = False

    def may_come(self, held_seconds: float, active_ratio: float, method: Method) -> bool:
        """Say whether to wait, `held_seconds` after the rest began, for a prompt to be counted.

        `active_ratio` is how active devices were since the last look. What is active
        for longer than a prompt is waited for is a stranger, until it rests.
        """
        if active_ratio < _ACTIVE_RATIO[method]:
            self._strange = False
            return False
        self._strange = self._strange or held_seconds >= MOST_HELD_SECONDS
        return not self._strange
