"""Rates and latencies between readings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from disagg_cluster.top.readings.values import EngineReading, LiveReading
from disagg_cluster.top.view.reading_history import LEAST_RATE_SECONDS
from disagg_exporter.model import Histogram
from disagg_exporter.model.waits import merged, quantile, since

_PART = 0.95


def tokens_per_second(
    engine: EngineReading, before: Sequence[tuple[float, EngineReading]], now_seconds: float
) -> float | None:
    """Tokens of an engine, since the oldest of its earlier readings that has any."""
    known = next(((at, each) for at, each in before if each.tokens), None)
    if known is None or not engine.tokens:
        return None
    at, each = known
    return _increase_rate(sum(engine.tokens.values()), sum(each.tokens.values()), now_seconds - at)


def p95_since(
    engine: EngineReading,
    before: Sequence[tuple[float, EngineReading]],
    waits_of: Callable[[EngineReading], Histogram | None],
) -> float | None:
    """The 95th percentile of an engine's latencies, likewise; None if there were none.

    Those of another role are of other tokens.
    """
    found = (waits_of(each) for _, each in before if each.role == engine.role)
    later, known = waits_of(engine), next((each for each in found if each is not None), None)
    return None if later is None or known is None else quantile(since(later, known), _PART)


def arrivals_per_second(earlier: Sequence[LiveReading], newest: LiveReading) -> float | None:
    """Users' requests, each source's and node's since the oldest reading that has its count."""
    rates = [rate for rate in _arrival_rates(earlier, newest) if rate is not None]
    return sum(rates) if rates else None


def _arrival_rates(earlier: Sequence[LiveReading], newest: LiveReading) -> Iterator[float | None]:
    for key, value in newest.arrivals.items():
        known = next((each for each in earlier if key in each.arrivals), None)
        if known is not None:
            passed = newest.at_seconds - known.at_seconds
            yield _increase_rate(value, known.arrivals[key], passed)


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


def _increase_rate(value: float, before: float, seconds: float) -> float | None:
    """A counter's increase per second; a decrease means a restart at 0."""
    if seconds < LEAST_RATE_SECONDS:
        return None
    return (value - before if value >= before else value) / seconds
