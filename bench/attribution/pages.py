"""An engine of which only its metrics page and the activity of its devices are known."""

from __future__ import annotations

from typing import NamedTuple

from bench.attribution.engines import Seen

from disagg_exporter.model import Role
from disagg_exporter.sources.shares import Counts, PhaseShares

_PAGE_SECONDS = 1.0


class Stretch(NamedTuple):
    """Busy time between two looks at a page: what was said to be prefill, and what was."""

    busy_seconds: float
    share: float
    true_seconds: float


class Pages:
    """The books' own rule for pages, looked at once a second.

    The devices' activity is taken to be the engine's step time exactly, so this is the error of
    the rule alone. Prompts are counted where they end, as vLLM's page does.
    """

    def __init__(self) -> None:
        self._shares = PhaseShares()
        self._began_ns: int | None = None
        self._counts = Counts()
        self._busy_seconds = self._true_seconds = 0.0

    def look(self, seen: Seen) -> Stretch | None:
        """Take a step; return a stretch at the first step after each second."""
        step = seen.step
        if self._began_ns is None:
            self._began_ns = step.t_ns
        said = Counts(step.computed_tokens, step.generation_tokens, 1, step.computed_tokens > 0)
        self._counts = self._counts.and_then(said)
        self._busy_seconds += seen.seconds
        self._true_seconds += seen.seconds * seen.share
        passed_seconds = (step.t_ns - self._began_ns) / 1e9
        if passed_seconds < _PAGE_SECONDS:
            return None
        self._shares.learn(self._counts, self._busy_seconds, passed_seconds)
        share = self._shares.share(Role.MIXED, self._counts, self._busy_seconds)
        stretch = Stretch(self._busy_seconds, share, self._true_seconds)
        self._began_ns = step.t_ns
        self._counts = Counts()
        self._busy_seconds = self._true_seconds = 0.0
        return stretch
