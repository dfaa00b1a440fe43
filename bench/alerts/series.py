"""The series that Prometheus scrapes from a node over days, as input of a promtool test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Mask = NDArray[np.bool_]

COMMIT_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Span:
    """Days scraped at an interval. A day may be shorter than 24 h; events keep their length."""

    days: int
    day_seconds: int
    scrape_seconds: int

    @property
    def seconds(self) -> int:
        """Return the length of the span."""
        return self.days * self.day_seconds

    @property
    def times(self) -> Values:
        """Return the times of the scrapes, in seconds from the start."""
        return np.arange(0, self.seconds + 1, self.scrape_seconds, dtype=np.float64)

    @property
    def minutes(self) -> Values:
        """Return the start of each minute: a node's activity is constant within a minute."""
        return np.arange(0, self.seconds + 60, 60, dtype=np.float64)

    def at(self, day: int, part: float) -> float:
        """Return the second at which this fraction of the day has passed."""
        return (day + part) * self.day_seconds


class Target:
    """A node's page as scraped, each node with its own offset from the scrape times."""

    def __init__(self, span: Span, labels: dict[str, str], late_seconds: Values | float) -> None:
        self._span = span
        self._labels = labels
        self.times = span.times
        self._read_at = self.times + late_seconds
        self.there: Mask = np.ones(len(self.times), bool)
        """The scrapes that the page answers."""
        self.missed: Mask = np.zeros(len(self.times), bool)
        """The scrapes that did not happen, so that not even an absence was recorded."""
        self.begins_anew: list[float] = []
        """When the daemon's counters restart at zero."""
        self.rows: list[dict[str, str]] = []

    def between(self, start: float, end: float) -> Mask:
        """Return a mask of the scrapes between two times."""
        return (self._read_at >= start) & (self._read_at < end)

    def gauge(
        self, name: str, labels: str, values: Values | float, there: Mask | None = None
    ) -> None:
        """Add a gauge with a value per scrape, a value per minute, or one value for all."""
        shown = np.asarray(values, np.float64)
        if shown.ndim and len(shown) != len(self.times):
            shown = shown[(self._read_at // 60).astype(int)]
        seen = self.there if there is None else self.there & there
        self._put(name, labels, np.broadcast_to(shown, self.times.shape), seen)

    def counter(
        self, name: str, labels: str, rates: Values | float, there: Mask | None = None
    ) -> None:
        """Add a counter with a rate per minute, committed every five seconds."""
        minutes = self._span.minutes
        per_second = np.broadcast_to(np.asarray(rates, np.float64), minutes.shape)
        edges = np.append(minutes, minutes[-1] + 60)
        totals = np.concatenate([[0.0], np.cumsum(per_second * 60)])
        committed = np.clip(self._read_at // COMMIT_SECONDS - 1, 0, None) * COMMIT_SECONDS
        counted = np.interp(committed, edges, totals)
        begun = np.zeros(len(counted))
        for start in sorted(self.begins_anew):
            begun = np.where(self._read_at >= start, np.interp(start, edges, totals), begun)
        self.gauge(name, labels, np.maximum(counted - begun, 0.0), there)

    def from_others(self, name: str, labels: str, values: Values | float, there: Mask) -> None:
        """Add a series that others expose about the node, whether or not its page answers."""
        self._put(name, labels, np.broadcast_to(np.asarray(values, float), there.shape), there)

    def _put(self, name: str, labels: str, values: Values, seen: Mask) -> None:
        place = ",".join(f'{key}="{value}"' for key, value in self._labels.items())
        series = f"{name}{{{place}{',' if labels else ''}{labels}}}"
        self.rows.append({"series": series, "values": _text(values, seen, self.missed)})


def _text(values: Values, seen: Mask, missed: Mask) -> str:
    """Format samples for promtool: runs are shortened, the end of a series is marked stale."""
    # A missed scrape leaves no marker; the first scrape without the series does.
    shown = np.where(seen, values, np.inf)
    shown = np.where(missed, np.nan, shown)
    starts = np.flatnonzero(
        np.append(True, ~((shown[1:] == shown[:-1]) | (np.isnan(shown[1:]) & np.isnan(shown[:-1]))))
    )
    ends = np.append(starts[1:], len(shown))
    words, known = [], False
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        value, length = shown[start], end - start
        if np.isnan(value):
            words.append(f"_x{length}")
        elif np.isinf(value):
            words += ["stale"] if known else []
            rest = length - known
            words += [f"_x{rest}"] if rest else []
            known = False
        else:
            words.append(f"{value:.10g}" + (f"x{length - 1}" if length > 1 else ""))
            known = True
    return " ".join(words)
