"""Rates and latencies between readings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disagg_cluster.top.readings.values import LiveReading
from disagg_cluster.top.view.reading_history import LEAST_RATE_SECONDS
from disagg_exporter.model import Histogram
from disagg_exporter.model.waits import merged, quantile, since

_PART = 0.95


def increase_rate(value: float | None, before: float | None, seconds: float) -> float | None:
    """A counter's increase per second; a decrease means a restart at 0."""
    if value is None or before is None or seconds < LEAST_RATE_SECONDS:
        return None
    return (value - before if value >= before else value) / seconds


def p95_between(later: Histogram | None, earlier: Histogram | None) -> float | None:
    """The 95th percentile of latencies between two readings; None if there were none."""
    if later is None:
        return None
    return quantile(later if earlier is None else since(later, earlier), _PART)


def arrivals_per_second(earlier: Sequence[LiveReading], newest: LiveReading) -> float | None:
    """Users' requests, each source's and node's since the oldest reading that has its count."""
    rates = [rate for rate in _arrival_rates(earlier, newest) if rate is not None]
    return sum(rates) if rates else None


def _arrival_rates(earlier: Sequence[LiveReading], newest: LiveReading) -> Iterator[float | None]:
    for key, value in newest.arrivals.items():
        known = next((each for each in earlier if key in each.arrivals), None)
        if known is not None:
            passed = newest.at_seconds - known.at_seconds
            yield increase_rate(value, known.arrivals[key], passed)


def users_first_token_p95(earlier: Sequence[LiveReading], newest: LiveReading) -> float | None:
    """Users' waits for first tokens, likewise; None if there were none."""
    waits = []
    for key, later in newest.users_first_token.items():
        known = next(
            (each.users_first_token for each in earlier if key in each.users_first_token), None
        )
        if known is not None:
            waits.append(since(later, known[key]))
    return quantile(merged(waits), _PART)
