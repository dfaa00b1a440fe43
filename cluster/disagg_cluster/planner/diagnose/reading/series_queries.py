"""Raw samples of the families that a diagnosis reads, in few queries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from disagg_cluster.planner.history.history_queries import SampleSource, clusters, range_of
from disagg_cluster.planner.history.range_reader import RangeQueries
from disagg_cluster.prometheus.prometheus_api import PrometheusError, Samples

MOST_SERIES = 500_000
"""More series are refused: this is some 2,500 engines, an hour of whose samples takes 1 GB."""
_ANSWER_BYTES = 16e6
_SERIES_BYTES = 450.0
_SAMPLE_BYTES = 28.0
# Assumed scrape interval, to estimate the size of answers; larger answers are queried in halves.
_SCRAPE_SECONDS = 15.0
_LEAST_SECONDS = 10.0
_COUNTED_ROUNDS = 40


class SampleQueries(RangeQueries, Protocol):
    """Interface of a Prometheus client that also returns samples as they were scraped."""

    def query_samples(
        self, selector: str, at_seconds: float, deadline_seconds: float = 60.0
    ) -> list[Samples]:
        """The samples of a range that ends at an instant."""


class NoSeriesError(PrometheusError):
    """The server has no series to diagnose; the text says what is missing."""


class TooManySeriesError(PrometheusError):
    """More series than fit into memory."""


@dataclass(slots=True)
class SeriesQueries:
    """Queries all samples of a time span, in as many queries as their size requires.

    The number of series of each family is queried now and then; families then share answers of
    some 16 MB. If the server refuses a query as too large, or is too slow, its time is halved.

    Args:
        prometheus: The client.
        families: Names of the families, with `_bucket`, `_sum` and `_count` of histograms.
        cluster: The only cluster to read; None for all.
        deadline_seconds: For each answer.
    """

    prometheus: SampleQueries
    families: Sequence[str]
    cluster: str | None = None
    deadline_seconds: float = 20.0
    _series: Mapping[str, int] = field(init=False, default_factory=dict)
    _rounds: int = field(init=False, default=0)
    _most_seconds: float = field(init=False, default=math.inf)

    def read(
        self, begin_seconds: float, end_seconds: float, say: Callable[[str], None]
    ) -> Iterator[list[Samples]]:
        """Yield the samples, answer by answer; each series has its name as the label `__name__`.

        The parts of the span come in order of time, so that a caller that stops early has all
        samples up to some moment.

        Raises:
            NoSeriesError: There are no series of disagg-node.
            TooManySeriesError: There are too many series to fit into memory.
            PrometheusError: No answer in time, or a refusal that is not for size.
        """
        if self._rounds % _COUNTED_ROUNDS == 0:
            self._series = self._counted(begin_seconds, end_seconds)
        self._rounds += 1
        length = end_seconds - begin_seconds
        parts = max(1, math.ceil(self._bytes(self.families, length) / _ANSWER_BYTES))
        # Split by families first: each part of time repeats the labels of all series.
        seconds = max(length / parts, min(length, 20 * _SCRAPE_SECONDS))
        groups = list(self._groups(seconds))
        count = max(1, math.ceil(length / seconds))
        for number in range(count):
            end = min(end_seconds, begin_seconds + (number + 1) * seconds)
            begin = begin_seconds + number * seconds
            for place, group in enumerate(groups):
                done = (number * len(groups) + place) * 100 // (count * len(groups))
                say(f"reading series: {done} %")
                yield from self._asked(group, begin, end)

    def _counted(self, begin_seconds: float, end_seconds: float) -> Mapping[str, int]:
        """Number of series of each family, the larger of the span's middle and end."""
        step = max((end_seconds - begin_seconds) / 2, 1.0)
        ends = begin_seconds + step, end_seconds, step, self.deadline_seconds
        expr = f"count by (__name__) ({self._selector(self.families)})"
        found = {
            each.labels.get("__name__", ""): max(round(value) for _, value in each.values)
            for each in self.prometheus.query_range(expr, *ends)
            if each.values
        }
        if not found:
            of = "" if self.cluster is None else f" of a cluster {self.cluster!r}"
            there = self.prometheus.query_range(clusters(), *ends) if of else ()
            known = sorted(repr(each.labels.get("cluster", "")) for each in there)
            if known and repr(self.cluster) not in known:
                raise NoSeriesError(
                    f"there is no cluster {self.cluster!r}, only {', '.join(known)}"
                )
            raise NoSeriesError(
                f"no series{of} of disagg-node are there in that time: Prometheus must scrape the "
                "nodes themselves (docs/prometheus.md); recorded series do not tell engines apart"
            )
        if (total := sum(found.values())) > MOST_SERIES:
            raise TooManySeriesError(
                f"{total:,} series are more than the {MOST_SERIES:,} that are read: name one "
                "cluster"
            )
        return found

    def _groups(self, seconds: float) -> Iterator[list[str]]:
        """Groups of families whose answers are small enough."""
        group: list[str] = []
        for family in self.families:
            if group and self._bytes([*group, family], seconds) > _ANSWER_BYTES:
                yield group
                group = []
            group.append(family)
        yield group

    def _bytes(self, families: Sequence[str], seconds: float) -> float:
        series = sum(self._series.get(each, 0) for each in families)
        return series * (_SERIES_BYTES + _SAMPLE_BYTES * seconds / _SCRAPE_SECONDS)

    def _asked(
        self, families: Sequence[str], begin_seconds: float, end_seconds: float
    ) -> Iterator[list[Samples]]:
        length = end_seconds - begin_seconds
        if length > self._most_seconds:
            middle = begin_seconds + length / 2
            yield from self._asked(families, begin_seconds, middle)
            yield from self._asked(families, middle, end_seconds)
            return
        try:
            found = self.prometheus.query_samples(
                f"{self._selector(families)}[{range_of(length)}]",
                end_seconds,
                self.deadline_seconds,
            )
        except PrometheusError as error:
            if length < 2 * _LEAST_SECONDS or not error.is_too_much:
                raise
            self._most_seconds = length / 2
            yield from self._asked(families, begin_seconds, end_seconds)
            return
        yield found

    def _selector(self, families: Sequence[str]) -> str:
        return SampleSource(self.cluster).of("", f'__name__=~"{"|".join(families)}"')
