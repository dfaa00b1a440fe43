"""Users' waits where a prefill and a decode engine handle each request in turn.

Both pools are on this node here; elsewhere, recording rules do the same over all nodes.
"""

from __future__ import annotations

import math

from disagg_exporter.model import Histogram
from disagg_exporter.serving.convolution import convolved
from disagg_exporter.serving.differences import added

FADING_SECONDS = 10.0
"""After this long, waits at prefill engines weigh a third (1/e) of current ones: what a decode
engine observes now left its prefill engine some steps ago.
"""
PATIENCE_SECONDS = 60.0
"""How long observations of decode engines wait for the first of prefill engines, and how long the
last of those stands for what users wait before.
"""


class PoolsWait:
    """The histogram of whole waits: each wait at a decode engine, plus the wait for its prompt.

    Prompt waits are those of the last seconds. A count once made never changes.

    Args:
        bounds: Those of the whole.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.whole: Histogram | None = None
        self._bounds = bounds
        self._prefill: Histogram | None = None
        self._waiting: Histogram | None = None
        self._waiting_since_ns = self._faded_ns = 0

    def ingest(self, prefill: Histogram | None, decode: Histogram | None, now_ns: int) -> None:
        """Add what both pools have observed since the previous call."""
        self._fade(prefill, now_ns)
        if decode is not None and decode.total:
            if self._waiting is None:
                self._waiting_since_ns = now_ns
            self._waiting = added(self._waiting, decode)
        if self._waiting is None:
            return
        more = None
        if self._prefill is not None:
            more = convolved(self._prefill, self._waiting, self._bounds)
            self.whole = added(self.whole, more)
        if more is not None or now_ns - self._waiting_since_ns > PATIENCE_SECONDS * 1e9:
            self._waiting = None

    def _fade(self, prefill: Histogram | None, now_ns: int) -> None:
        passed_seconds = (now_ns - self._faded_ns) / 1e9
        if passed_seconds > PATIENCE_SECONDS:
            self._prefill = None
        if prefill is None or not prefill.total:
            return
        self._faded_ns = now_ns
        if self._prefill is not None:
            left = math.exp(-passed_seconds / FADING_SECONDS)
            old = self._prefill
            faded = Histogram(old.bounds, tuple(n * left for n in old.counts), old.sum * left)
            prefill = added(faded, prefill)
        self._prefill = prefill
