"""The series of the last minutes, moving on: each reading asks only for what is new."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from disagg_cluster.planner.diagnose.evidence.series_window import ScrapedSeries, SeriesWindow
from disagg_cluster.planner.diagnose.reading.series_queries import SeriesQueries
from disagg_cluster.planner.diagnose.reading.target_samples import TargetSamples
from disagg_cluster.prometheus.prometheus_api import Samples

OVERLAP_SECONDS = 30.0
"""So much is read again: a sample has the time at which its scrape began, and comes at its end."""
LATE_SECONDS = 300.0
"""How much further back is read where nothing new came: a queue of samples is worked off."""

_Target = tuple[str, str, str]


class RollingSeries:
    """All series of the last `kept_seconds`.

    A reading that fails leaves what was known; the next reads what both have missed.

    Args:
        queries: Asks for samples.
        kept_seconds: How far back.
        say: Told what is being read.
    """

    def __init__(
        self,
        queries: SeriesQueries,
        kept_seconds: float,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._queries = queries
        self._kept_seconds = kept_seconds
        self._say = say
        self._targets: dict[_Target, TargetSamples] = {}
        self._until_seconds: float | None = None

    def read(self, now_seconds: float) -> SeriesWindow:
        """Read what is new, and give all that is kept; the window begins where anything is known.

        Raises:
            PrometheusError: As `SeriesQueries.read`.
        """
        begin = now_seconds - self._kept_seconds
        since = begin
        if self._until_seconds is not None:
            known = min(self._until_seconds, self._newest_seconds(), now_seconds)
            since = max(known, self._until_seconds - LATE_SECONDS) - OVERLAP_SECONDS
        for answer in self._queries.read(max(begin, since), now_seconds, self._say):
            self._take(answer)
        self._until_seconds = now_seconds
        for target in self._targets.values():
            target.forget(begin)
        self._targets = {key: each for key, each in self._targets.items() if len(each)}
        oldest = min((each.oldest_seconds for each in self._targets.values()), default=now_seconds)
        return self._window(max(begin, oldest), now_seconds)

    def _newest_seconds(self) -> float:
        newest = [each.newest_seconds for each in self._targets.values()]
        return max(newest, default=float("-inf"))

    def _take(self, answer: list[Samples]) -> None:
        by_target: dict[_Target, list[Samples]] = defaultdict(list)
        for each in answer:
            by_target[_target_of(each)].append(each)
        for target, found in by_target.items():
            self._targets.setdefault(target, TargetSamples()).take(found)

    def _window(self, begin_seconds: float, now_seconds: float) -> SeriesWindow:
        families: dict[str, list[ScrapedSeries]] = defaultdict(list)
        for target in self._targets.values():
            for family, series in target.series():
                families[family].append(series)
        whole = {name: tuple(several) for name, several in families.items()}
        return SeriesWindow(begin_seconds, now_seconds, whole)


def _target_of(samples: Samples) -> _Target:
    labels = samples.labels
    return labels.get("cluster", ""), labels.get("node", ""), labels.get("instance", "")
