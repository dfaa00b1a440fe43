"""The series of each value on an engine's page, and how samples combine to a value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from disagg_exporter.engine_pages.exposition.layout import SeriesKey
from disagg_exporter.engine_pages.exposition.lines import SamplesByName, no_count
from disagg_exporter.model import KvQueue, Total

# No count is larger than this, nor a sum of counts: it is stored as an integer of 64 bits.
LARGEST = 2.0**62

IndexedKey = tuple[int, SeriesKey]
"""A sample's index among a page's wanted samples, and its key."""

Samples = Mapping[str, Sequence[IndexedKey]]
"""The samples of one kind of engine under their bare names."""


class Field(StrEnum):
    """The fields of an `EnginePage` that come from series, by name."""

    RUNNING = "running"
    WAITING = "waiting"
    DEFERRED = "deferred"
    KV_USAGE_RATIO = "kv_usage_ratio"
    COMPUTED_TOKENS_TOTAL = "computed_tokens_total"
    EXTERNAL_TOKENS_TOTAL = "external_tokens_total"
    GENERATION_TOKENS_TOTAL = "generation_tokens_total"
    PREFILL_SECONDS_TOTAL = "prefill_seconds_total"
    DECODE_SECONDS_TOTAL = "decode_seconds_total"
    STEPS_TOTAL = "steps_total"
    AWAKE = "awake"

    @property
    def counter(self) -> bool:
        """Whether it never falls while its engine runs."""
        return self.endswith("_total")

    @property
    def averaged(self) -> bool:
        """Whether each rank reports the same quantity, so that the mean is used, not the sum."""
        return self in (self.KV_USAGE_RATIO, self.PREFILL_SECONDS_TOTAL, self.DECODE_SECONDS_TOTAL)


Value = Field | KvQueue | Total
"""What a series provides: a field of the page, a queue, or a total."""


@dataclass(frozen=True, slots=True)
class Series:
    """The series, by their bare names (without the engine's prefix), that provide one value.

    Several names are summed. If `label` is set, only samples with one of `values` in it count.
    `scale` converts the series' unit to ours. A `sparse` series has no sample before its first
    event: if absent while its siblings are present, it is 0. Of several entries for one value the
    first that is on the page is used.
    """

    gives: Value
    names: tuple[str, ...]
    label: str = ""
    values: tuple[str, ...] = ()
    scale: float = 1.0
    sparse: bool = False

    @property
    def is_counter(self) -> bool:
        """Whether its value never falls while its engine runs."""
        gives = self.gives
        return isinstance(gives, Total) or (isinstance(gives, Field) and gives.counter)


@dataclass(frozen=True)
class Adapter:
    """The metric series of one kind of engine.

    Args:
        kind: Our name for the engine.
        prefixes: The spellings of its name prefix.
        series: The meaning of its series.
        time_to_first_token, inter_token_latency, duration, prompt_tokens, output_tokens: Bare names
            of the histograms.
        lengths_end_at_longest: The bounds of both lengths, 1, 2, 5, 10 and so on, end where the
            next would be beyond the longest request that the engine accepts.
        rank_labels: Ranks that report the same step: only the lowest counts.
        breakdown_label: A label that is empty on a gauge's total and filled on its parts.
        required_label: A sample without it belongs to another program.
        kv_cache_tokens: Returns its cache's size in tokens, from the samples by bare names.
        facts: Bare names that only `kv_cache_tokens` reads.
    """

    kind: str
    prefixes: tuple[str, ...]
    series: tuple[Series, ...]
    time_to_first_token: str | None = None
    inter_token_latency: str | None = None
    duration: str | None = None
    prompt_tokens: str | None = None
    output_tokens: str | None = None
    lengths_end_at_longest: bool = False
    rank_labels: tuple[str, ...] = ()
    breakdown_label: str | None = None
    required_label: str | None = None
    kv_cache_tokens: Callable[[SamplesByName], float | None] | None = None
    facts: tuple[str, ...] = ()

    @cached_property
    def names(self) -> dict[str, str]:
        """Every wanted name as it may appear on a page, and its bare name."""
        histograms = (
            *(self.time_to_first_token, self.inter_token_latency, self.duration),
            *(self.prompt_tokens, self.output_tokens),
        )
        bare = [
            *(name for series in self.series for name in series.names),
            *(f"{name}_{part}" for name in histograms if name for part in ("bucket", "sum")),
            *self.facts,
        ]
        return {prefix + name: name for prefix in self.prefixes for name in bare}


@dataclass(frozen=True, slots=True)
class Expression:
    """How samples of one layout combine to a value: their sum, divided by `parts`.

    `parts` counts the ranks that report the same quantity. A `sparse` value without samples is 0.
    A KV usage above 1 is absent.
    """

    gives: Value
    name: str
    indexes: tuple[int, ...]
    scale: float
    counter: bool
    parts: int
    sparse: bool

    def of(self, values: Sequence[float]) -> float | None:
        """Return the value; None if the page lacks it."""
        if not self.indexes:
            return 0.0 if self.sparse else None
        terms = [values[index] * self.scale for index in self.indexes]
        for value in (*terms, sum(terms)):
            if not 0 <= value <= LARGEST:
                if self.counter:
                    raise no_count(self.name, value)
                return None
        total = math.fsum(terms) / self.parts
        return None if self.gives is Field.KV_USAGE_RATIO and total > 1 else total


def expression_of(series: Series, adapter: Adapter, found: Samples) -> Expression | None:
    """Return how a page's samples combine to a series' value; None if it has none of them."""
    present = [name for name in series.names if name in found]
    if not present:
        return None
    counter = series.is_counter
    placed = [
        one
        for name in present
        for one in _one_rank(_matching(series, adapter, found[name], counter), adapter)
    ]
    indexes = tuple(index for index, _ in placed)
    parts = 1
    if series.gives is Field.KV_USAGE_RATIO:
        parts = len(placed)
    elif isinstance(series.gives, Field) and series.gives.averaged:
        parts = len({key.labels.get("dp_rank") for _, key in placed})
    scale, sparse = series.scale, series.sparse
    return Expression(series.gives, present[0], indexes, scale, counter, parts, sparse)


def _matching(
    series: Series, adapter: Adapter, placed: Iterable[IndexedKey], counter: bool
) -> list[IndexedKey]:
    matching = [
        one
        for one in placed
        if not series.label or one[1].labels.get(series.label) in series.values
    ]
    parts = adapter.breakdown_label
    if parts is None or counter or not any(key.labels.get(parts) == "" for _, key in matching):
        return matching
    return [one for one in matching if one[1].labels.get(parts) == ""]


def _one_rank(placed: list[IndexedKey], adapter: Adapter) -> list[IndexedKey]:
    """Return only the lowest rank's samples of ranks that report the same."""
    if not adapter.rank_labels:
        return placed
    lowest: dict[tuple[tuple[str, str], ...], tuple[list[int], IndexedKey]] = {}
    for one in placed:
        labels = one[1].labels
        ranks = [_rank(labels.get(label, "0")) for label in adapter.rank_labels]
        rest = tuple(sorted(pair for pair in labels.items() if pair[0] not in adapter.rank_labels))
        if rest not in lowest or ranks < lowest[rest][0]:
            lowest[rest] = (ranks, one)
    return [one for _, one in lowest.values()]


def _rank(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 9 else 0
