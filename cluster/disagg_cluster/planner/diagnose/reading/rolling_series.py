"""A rolling window of series: each read queries only what is new."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from disagg_cluster.planner.diagnose.evidence.series_window import ScrapedSeries, SeriesWindow
from disagg_cluster.planner.diagnose.reading.series_queries import SeriesQueries
from disagg_cluster.planner.diagnose.reading.target_samples import TargetSamples
from disagg_cluster.prometheus.prometheus_api import Samples

OVERLAP_SECONDS = 30.0
"""Overlap of reads: a sample has the time of its scrape's start, but is stored at its end."""
LATE_SECONDS = 300.0
"""How much further back is read if nothing new arrived: queued samples may come late."""

_Target = tuple[str, str, str]


class RollingSeries:
    """All series of the last `kept_seconds`.

    A failed read keeps the known samples; the next one reads what both missed. If the clock was set
    back since, the whole window is read anew.

    Args:
        queries: Reads samples.
        kept_seconds: Length of the window.
        say: Receives lines of progress.
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
        """Read new samples and return the window, which begins no earlier than the oldest sample.

        Raises:
            PrometheusError: As `SeriesQueries.read`.
        """
        begin = now_seconds - self._kept_seconds
        if self._until_seconds is not None and self._until_seconds > now_seconds:
            self._targets, self._until_seconds = {}, None
        since = begin
        if self._until_seconds is not None:
            known = min(self._until_seconds, self._newest_seconds())
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
            self._targets.setdefault(target, TargetSamples()).add(found)

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
