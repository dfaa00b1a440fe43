"""What one page layout tells of requests: single values, and histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disagg_exporter.engine_pages.expressions import Samples, expression_of
from disagg_exporter.engine_pages.histograms import (
    BETWEEN_TOKENS_BOUNDS_SECONDS,
    DURATION_READ_BOUNDS_SECONDS,
    FIRST_TOKEN_READ_BOUNDS_SECONDS,
    LENGTH_BOUNDS_TOKENS,
    HistogramReader,
)
from disagg_exporter.engine_pages.series import Adapter, Field, Value
from disagg_exporter.model import ENDINGS, ServingCounts, Total


class ServingReader:
    """Reads the values of an adapter's series, and its histograms.

    Args:
        adapter: What means what.
        found: The samples of its kind under their bare names.

    Raises:
        PageError: A histogram is none.
    """

    def __init__(self, adapter: Adapter, found: Samples) -> None:
        self._expressions = tuple(
            one for series in adapter.series if (one := expression_of(series, adapter, found))
        )
        self._histograms = tuple(
            HistogramReader(name, found, bounds)
            for name, bounds in (
                (adapter.time_to_first_token, FIRST_TOKEN_READ_BOUNDS_SECONDS),
                (adapter.inter_token_latency, BETWEEN_TOKENS_BOUNDS_SECONDS),
                (adapter.duration, DURATION_READ_BOUNDS_SECONDS),
                (adapter.prompt_tokens, LENGTH_BOUNDS_TOKENS),
                (adapter.output_tokens, LENGTH_BOUNDS_TOKENS),
            )
        )

    def values(self, numbers: Sequence[float]) -> dict[Value, float]:
        """Return the single values.

        Raises:
            PageError: A counter is not a number from 0 up.
        """
        values: dict[Value, float] = {}
        for expression in self._expressions:
            if expression.gives not in values:
                value = expression.of(numbers)
                if value is not None:
                    values[expression.gives] = value
        return values

    def counts(self, numbers: Sequence[float], values: Mapping[Value, float]) -> ServingCounts:
        """Return what is counted, those counts included that follow from several values.

        Raises:
            PageError: A histogram is none.
        """
        totals = {key: value for key, value in values.items() if isinstance(key, Total)}
        return ServingCounts(
            _completed(totals, values), *(histogram.of(numbers) for histogram in self._histograms)
        )


def _completed(totals: dict[Total, float], values: Mapping[Value, float]) -> dict[Total, float]:
    """The totals of a page, with those that follow from several of its values."""
    finished = totals.get(Total.FINISHED_REQUESTS)
    if finished is None:
        return totals
    if Total.ENDED_STOP in totals:
        known = sum(totals.get(ending, 0.0) for ending in ENDINGS.values())
        totals[Total.ENDED_OTHER] = max(finished - known, 0.0)
    running, waiting = values.get(Field.RUNNING), values.get(Field.WAITING)
    if running is not None and waiting is not None:
        inside = running + waiting + values.get(Field.DEFERRED, 0.0)
        totals[Total.ARRIVED_REQUESTS] = finished + inside
    return totals
