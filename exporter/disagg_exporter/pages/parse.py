"""The text of an engine's page to the few values we use."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from disagg_exporter.model import EnginePage, Histogram, ServingCounts, Total
from disagg_exporter.pages.adapters import ADAPTERS, KINDS
from disagg_exporter.pages.heads import Heads
from disagg_exporter.pages.histograms import (
    BETWEEN_TOKENS_BOUNDS_SECONDS,
    FIRST_TOKEN_BOUNDS_SECONDS,
    histogram,
)
from disagg_exporter.pages.lines import Found, PageError, Sample, Wanted, find
from disagg_exporter.pages.series import Adapter, Field, Series

# More than this is no count of anything, and sums of such numbers overflow.
_LARGEST = 2.0**63

_WANTED = Wanted(name for adapter in ADAPTERS for name in adapter.names)


def parse_page(text: bytes, t_ns: int, heads: Heads | None = None) -> EnginePage:
    """Read an engine's page, whichever kind of engine it is.

    Ranks and engine indexes are summed (KV use and forward seconds averaged: ranks have equal
    caches and work side by side). A gauge that is not a number from 0 up is absent.

    Args:
        text: The page.
        t_ns: When it was asked for.
        heads: What is remembered of this engine's earlier pages; it makes the look cheap.

    Raises:
        PageError: The page is no page of a known engine, is cut off, holds garbage among the
            lines we need, a sample twice, or a counter that is not a number from 0 up.
    """
    if text.lstrip()[:1] == b"<":
        raise PageError("this is an HTML page, not a metrics page")
    if not text.endswith(b"\n"):
        raise PageError("the page is cut off: its last line has no end")
    found = find(text, _WANTED, Heads() if heads is None else heads, "engine's")
    for adapter in ADAPTERS:
        if ours := _ours(adapter, found):
            return _page(adapter, ours, t_ns)
    raise PageError(f"no series of a known engine on the page (known: {', '.join(KINDS)})")


def _ours(adapter: Adapter, found: Found) -> Found:
    """The samples of one kind of engine, under their bare names."""
    ours: Found = {}
    for name, samples in found.items():
        bare = adapter.names.get(name)
        if bare is None:
            continue
        if adapter.required_label is not None:
            samples = [s for s in samples if adapter.required_label in s.labels]
        if samples and bare in ours:
            raise PageError(f"{bare} is on the page twice, in two spellings")
        if samples:
            ours[bare] = samples
    return ours


def _page(adapter: Adapter, found: Found, t_ns: int) -> EnginePage:
    values: dict[Field | Total, float] = {}
    for series in adapter.series:
        if series.gives not in values:
            value = _value(series, adapter, found)
            if value is not None:
                values[series.gives] = value
    awake = values.get(Field.AWAKE)
    return EnginePage(
        kind=adapter.kind,
        t_ns=t_ns,
        model_name=_model_name(found),
        running=values.get(Field.RUNNING),
        waiting=values.get(Field.WAITING),
        deferred=values.get(Field.DEFERRED),
        kv_usage_ratio=values.get(Field.KV_USAGE_RATIO),
        computed_tokens_total=values.get(Field.COMPUTED_TOKENS_TOTAL),
        external_tokens_total=values.get(Field.EXTERNAL_TOKENS_TOTAL),
        generation_tokens_total=values.get(Field.GENERATION_TOKENS_TOTAL),
        prefill_seconds_total=values.get(Field.PREFILL_SECONDS_TOTAL),
        decode_seconds_total=values.get(Field.DECODE_SECONDS_TOTAL),
        steps_total=values.get(Field.STEPS_TOTAL),
        kv_cache_tokens=_kv_cache_tokens(adapter, found),
        asleep=None if awake is None else awake == 0,
        serving=ServingCounts(
            {key: value for key, value in values.items() if isinstance(key, Total)},
            _histogram(adapter.time_to_first_token, found, FIRST_TOKEN_BOUNDS_SECONDS),
            _histogram(adapter.inter_token_latency, found, BETWEEN_TOKENS_BOUNDS_SECONDS),
        ),
        ranks=max(len(_told(found, "engine") | _told(found, "dp_rank")), 1),
    )


def _histogram(
    name: str | None, found: Found, bounds_seconds: tuple[float, ...]
) -> Histogram | None:
    return None if name is None else histogram(found, name, bounds_seconds)


def _told(found: Found, label: str) -> set[str]:
    """The values that a label has on the page."""
    return {
        sample.labels[label]
        for samples in found.values()
        for sample in samples
        if label in sample.labels
    }


def _model_name(found: Found) -> str | None:
    models = _told(found, "model_name")
    # Several models on one page are nobody's name.
    return models.pop() if len(models) == 1 else None


def _kv_cache_tokens(adapter: Adapter, found: Found) -> float | None:
    tokens = adapter.kv_cache_tokens(found) if adapter.kv_cache_tokens else None
    return tokens if tokens is not None and 0 < tokens <= _LARGEST else None


def _value(series: Series, adapter: Adapter, found: Found) -> float | None:
    present = [name for name in series.names if name in found]
    if not present:
        return None
    counter = isinstance(series.gives, Total) or series.gives.counter
    samples = [
        sample
        for name in present
        for sample in _one_rank(_matching(series, adapter, found[name], counter), adapter)
    ]
    if not samples:
        return 0.0 if series.sparse else None
    values = [sample.value * series.scale for sample in samples]
    bad = [value for value in values if not 0 <= value <= _LARGEST]
    if bad and counter:
        raise PageError(f"{present[0]} is {bad[0]}, which no count can be")
    if bad:
        return None
    return _together(series.gives, samples, values)


def _together(
    gives: Field | Total, samples: Sequence[Sample], values: Sequence[float]
) -> float | None:
    if gives is Field.KV_USAGE_RATIO:
        ratio = fmean(values)
        return ratio if ratio <= 1 else None
    if isinstance(gives, Field) and gives.averaged:
        ranks = len({sample.labels.get("dp_rank") for sample in samples})
        return math.fsum(values) / ranks
    return math.fsum(values)


def _matching(
    series: Series, adapter: Adapter, samples: Iterable[Sample], counter: bool
) -> list[Sample]:
    matching = [
        s for s in samples if not series.label or s.labels.get(series.label) in series.values
    ]
    parts = adapter.breakdown_label
    if parts is None or counter or not any(s.labels.get(parts) == "" for s in matching):
        return matching
    return [sample for sample in matching if sample.labels.get(parts) == ""]


def _one_rank(samples: list[Sample], adapter: Adapter) -> list[Sample]:
    """Of ranks that tell the same, the lowest."""
    if not adapter.rank_labels:
        return samples
    lowest: dict[tuple[tuple[str, str], ...], tuple[list[int], Sample]] = {}
    for sample in samples:
        ranks = [_rank(sample.labels.get(label, "0")) for label in adapter.rank_labels]
        rest = tuple(sorted(p for p in sample.labels.items() if p[0] not in adapter.rank_labels))
        if rest not in lowest or ranks < lowest[rest][0]:
            lowest[rest] = (ranks, sample)
    return [sample for _, sample in lowest.values()]


def _rank(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 9 else 0
