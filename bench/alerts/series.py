"""What a Prometheus scrapes of a node over days, as the input series of a promtool test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Mask = NDArray[np.bool_]

COMMIT_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Span:
    """Days that are scraped every so often. Days may be shorter than the sun's, events are not."""

    days: int
    day_seconds: int
    scrape_seconds: int

    @property
    def seconds(self) -> int:
        """Return how long it all takes."""
        return self.days * self.day_seconds

    @property
    def times(self) -> Values:
        """Return when Prometheus scrapes, in seconds from the start."""
        return np.arange(0, self.seconds + 1, self.scrape_seconds, dtype=np.float64)

    @property
    def minutes(self) -> Values:
        """Return the minutes of the span: what a node does it does for a minute."""
        return np.arange(0, self.seconds + 60, 60, dtype=np.float64)

    def at(self, day: int, part: float) -> float:
        """Return the second at which a part of a day has gone by."""
        return (day + part) * self.day_seconds


class Target:
    """A node's page as it is scraped, late by a moment that is the node's own."""

    def __init__(self, span: Span, labels: dict[str, str], late_seconds: Values | float) -> None:
        self._span = span
        self._labels = labels
        self.times = span.times
        self._read_at = self.times + late_seconds
        self.there: Mask = np.ones(len(self.times), bool)
        """Where the page answers."""
        self.missed: Mask = np.zeros(len(self.times), bool)
        """Where nobody scraped, so that nothing is known, not even that nothing was there."""
        self.begins_anew: list[float] = []
        """When the counters of the daemon begin anew."""
        self.rows: list[dict[str, str]] = []

    def between(self, start: float, end: float) -> Mask:
        """Tell the scrapes of a stretch of time."""
        return (self._read_at >= start) & (self._read_at < end)

    def gauge(
        self, name: str, labels: str, values: Values | float, there: Mask | None = None
    ) -> None:
        """Show a value for each scrape, or for each minute, or one for all."""
        shown = np.asarray(values, np.float64)
        if shown.ndim and len(shown) != len(self.times):
            shown = shown[(self._read_at // 60).astype(int)]
        seen = self.there if there is None else self.there & there
        self._put(name, labels, np.broadcast_to(shown, self.times.shape), seen)

    def counter(
        self, name: str, labels: str, rates: Values | float, there: Mask | None = None
    ) -> None:
        """Count at rates that are told for each minute, committed every five seconds."""
        minutes = self._span.minutes
        told = np.broadcast_to(np.asarray(rates, np.float64), minutes.shape)
        edges = np.append(minutes, minutes[-1] + 60)
        totals = np.concatenate([[0.0], np.cumsum(told * 60)])
        committed = np.clip(self._read_at // COMMIT_SECONDS - 1, 0, None) * COMMIT_SECONDS
        counted = np.interp(committed, edges, totals)
        begun = np.zeros(len(counted))
        for start in sorted(self.begins_anew):
            begun = np.where(self._read_at >= start, np.interp(start, edges, totals), begun)
        self.gauge(name, labels, np.maximum(counted - begun, 0.0), there)

    def told(self, name: str, labels: str, values: Values | float, there: Mask) -> None:
        """Show what others tell of the node, whether its page answers or not."""
        self._put(name, labels, np.broadcast_to(np.asarray(values, float), there.shape), there)

    def _put(self, name: str, labels: str, values: Values, seen: Mask) -> None:
        place = ",".join(f'{key}="{value}"' for key, value in self._labels.items())
        series = f"{name}{{{place}{',' if labels else ''}{labels}}}"
        self.rows.append({"series": series, "values": _text(values, seen, self.missed)})


def _text(values: Values, seen: Mask, missed: Mask) -> str:
    """Write samples as promtool reads them: runs are shortened, what ends is marked as stale."""
    # A missed scrape leaves no mark; the first one after a series has gone does.
    told = np.where(seen, values, np.inf)
    told = np.where(missed, np.nan, told)
    starts = np.flatnonzero(
        np.append(True, ~((told[1:] == told[:-1]) | (np.isnan(told[1:]) & np.isnan(told[:-1]))))
    )
    ends = np.append(starts[1:], len(told))
    words, known = [], False
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        value, length = told[start], end - start
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
