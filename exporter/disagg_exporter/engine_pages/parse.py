"""Parses the text of an engine's page into the few values we use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from disagg_exporter.engine_pages.adapters import ADAPTERS, KINDS
from disagg_exporter.engine_pages.exposition.layout import SeriesKey, SeriesKeys
from disagg_exporter.engine_pages.exposition.lines import (
    PageError,
    Sample,
    SamplesByName,
    SeriesFilter,
    UnknownPageError,
    check_whole,
    scan,
)
from disagg_exporter.engine_pages.histograms import (
    BETWEEN_TOKENS_BOUNDS_SECONDS,
    DURATION_READ_BOUNDS_SECONDS,
    FIRST_TOKEN_READ_BOUNDS_SECONDS,
    LENGTH_BOUNDS_TOKENS,
    HistogramReader,
)
from disagg_exporter.engine_pages.series import (
    LARGEST,
    Adapter,
    Field,
    IndexedKey,
    Samples,
    Value,
    expression_of,
)
from disagg_exporter.model import ENDINGS, EnginePage, KvQueue, ServingCounts, Total


class ServingReader:
    """Reads the values and histograms of an adapter's series from pages of one layout.

    Args:
        adapter: The meaning of its series.
        found: The samples of its kind by their bare names.

    Raises:
        PageError: A histogram is invalid.
    """

    def __init__(self, adapter: Adapter, found: Samples) -> None:
        self._expressions = tuple(
            one for series in adapter.series if (one := expression_of(series, adapter, found))
        )
        self._histograms = tuple(
            HistogramReader(name, found, bounds, ends_at_longest=ends)
            for name, bounds, ends in (
                (adapter.time_to_first_token, FIRST_TOKEN_READ_BOUNDS_SECONDS, False),
                (adapter.inter_token_latency, BETWEEN_TOKENS_BOUNDS_SECONDS, False),
                (adapter.duration, DURATION_READ_BOUNDS_SECONDS, False),
                (adapter.prompt_tokens, LENGTH_BOUNDS_TOKENS, adapter.lengths_end_at_longest),
                (adapter.output_tokens, LENGTH_BOUNDS_TOKENS, adapter.lengths_end_at_longest),
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
        """Return the counts, including those that follow from several values.

        Raises:
            PageError: A histogram is invalid.
        """
        totals = {key: value for key, value in values.items() if isinstance(key, Total)}
        return ServingCounts(
            _completed(totals, values), *(histogram.of(numbers) for histogram in self._histograms)
        )


class LayoutReader:
    """Reads the pages of one layout.

    Args:
        layout: The series keys of their wanted values, in page order.

    Raises:
        PageError: They are not from a known engine, or have a series twice.
    """

    def __init__(self, layout: Sequence[SeriesKey]) -> None:
        adapter, found = _recognized(layout)
        self._adapter = adapter
        self._reader = ServingReader(adapter, found)
        self._facts = {name: found[name] for name in adapter.facts if name in found}
        labels = [key.labels for placed in found.values() for _, key in placed]
        seen = {
            label: {own[label] for own in labels if label in own}
            for label in ("model_name", "engine", "dp_rank")
        }
        # If a page names several models, none of them is the engine's.
        names = seen["model_name"]
        self._model_name = next(iter(names)) if len(names) == 1 else None
        self._ranks = max(len(seen["engine"] | seen["dp_rank"]), 1)
        self._last: tuple[Sequence[float], EnginePage] | None = None

    def page(self, numbers: Sequence[float], t_ns: int) -> EnginePage:
        """Return the page with these values; an idle engine's equal those of the last page.

        Raises:
            PageError: A counter is not a number from 0 up, or a histogram is invalid.
        """
        if self._last is None or self._last[0] != numbers:
            self._last = numbers, self._derived(numbers, t_ns)
        return replace(self._last[1], t_ns=t_ns)

    def _derived(self, numbers: Sequence[float], t_ns: int) -> EnginePage:
        values = self._reader.values(numbers)
        fields: dict[str, Any] = {
            key.value: value for key, value in values.items() if isinstance(key, Field)
        }
        awake = fields.pop(Field.AWAKE, None)
        return EnginePage(
            kind=self._adapter.kind,
            t_ns=t_ns,
            model_name=self._model_name,
            kv_cache_tokens=self._kv_cache_tokens(numbers),
            asleep=None if awake is None else awake == 0,
            kv_queues={key: value for key, value in values.items() if isinstance(key, KvQueue)},
            serving=self._reader.counts(numbers, values),
            ranks=self._ranks,
            **fields,
        )

    def _kv_cache_tokens(self, numbers: Sequence[float]) -> float | None:
        if self._adapter.kv_cache_tokens is None:
            return None
        found: SamplesByName = {
            name: [Sample(key.labels, numbers[index]) for index, key in placed]
            for name, placed in self._facts.items()
        }
        tokens = self._adapter.kv_cache_tokens(found)
        return tokens if tokens is not None and 0 < tokens <= LARGEST else None


def _recognized(layout: Sequence[SeriesKey]) -> tuple[Adapter, Samples]:
    """Return the adapter of the engine, and its samples by their bare names."""
    by_name: dict[str, list[IndexedKey]] = {}
    for index, key in enumerate(layout):
        by_name.setdefault(key.name, []).append((index, key))
    for adapter in ADAPTERS:
        ours: dict[str, list[IndexedKey]] = {}
        for name, placed in by_name.items():
            bare = adapter.names.get(name)
            if bare is None:
                continue
            if adapter.required_label is not None:
                placed = [one for one in placed if adapter.required_label in one[1].labels]
            if placed and bare in ours:
                twice = "is on the page twice, in two spellings"
                raise PageError(f"{bare} {twice}", cause=f"a series {twice}")
            if placed:
                ours[bare] = placed
        if ours:
            return adapter, ours
    raise UnknownPageError(f"no series of a known engine on the page (known: {', '.join(KINDS)})")


def _completed(totals: dict[Total, float], values: Mapping[Value, float]) -> dict[Total, float]:
    """Return a page's totals, including those derived from several values."""
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


# A page may begin with a brace, too: that of a quoted name, which no colon follows.
_JSON = re.compile(rb"\s*(?:\[|\{\s*(?:\}|\"[^\"]*\"\s*:))")
_WANTED = SeriesFilter(name for adapter in ADAPTERS for name in adapter.names)


def parse_page(text: bytes, t_ns: int, keys: SeriesKeys | None = None) -> EnginePage:
    """Parse the page of any known kind of engine.

    Ranks and engine indexes are summed (KV use and forward seconds averaged: ranks have equal
    caches and work in parallel). A gauge that is not a number from 0 up is absent.

    Args:
        text: The page.
        t_ns: When it was requested.
        keys: Series keys of this engine's earlier pages.

    Raises:
        UnknownPageError: The page is not from a known engine.
        PageError: The page is empty, or cut off, has an invalid line among
            those we need, a sample twice, or a counter that is not a number from 0 up.
    """
    if text.lstrip()[:1] == b"<":
        raise PageError("this is an HTML page, not a metrics page")
    if _JSON.match(text):
        raise UnknownPageError(
            "no series of a known engine on the page: it is JSON, as TensorRT-LLM's is at this "
            "path (`engine: trtllm` in the node file)"
        )
    check_whole(text)
    keys = SeriesKeys() if keys is None else keys
    layout, numbers = scan(text, _WANTED, keys, "engine's")
    return keys.derive(layout, LayoutReader).page(numbers, t_ns)
