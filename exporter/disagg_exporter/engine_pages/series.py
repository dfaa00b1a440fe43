"""How a kind of engine writes its page: which series mean what, in which spelling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from disagg_exporter.engine_pages.exposition.lines import SamplesByName
from disagg_exporter.model import KvQueue, Total


class Field(StrEnum):
    """The values of an `EnginePage` that come from series, by their names there."""

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
        """Only grows while its engine lives."""
        return self.endswith("_total")

    @property
    def averaged(self) -> bool:
        """Reported by each rank of the same thing, so that a mean is meant and not a sum."""
        return self in (self.KV_USAGE_RATIO, self.PREFILL_SECONDS_TOTAL, self.DECODE_SECONDS_TOTAL)


Value = Field | KvQueue | Total
"""What a series gives: a field of the page, a queue, or a count of requests."""


@dataclass(frozen=True, slots=True)
class Series:
    """The series, by their bare names (without the engine's prefix), that give one value.

    Several names are added up. Where `label` is named, only samples count in which it has one of
    `values`. `scale` turns the series' unit into ours. A `sparse` series writes a value only after
    its first event: absent beside its siblings is 0. Of several entries for one value the first
    that is on the page is taken.
    """

    gives: Value
    names: tuple[str, ...]
    label: str = ""
    values: tuple[str, ...] = ()
    scale: float = 1.0
    sparse: bool = False

    @property
    def is_counter(self) -> bool:
        """Whether its value only grows while its engine lives."""
        gives = self.gives
        return isinstance(gives, Total) or (isinstance(gives, Field) and gives.counter)


@dataclass(frozen=True)
class Adapter:
    """How one kind of engine writes its page.

    Args:
        kind: Our word for the engine.
        prefixes: The spellings of its name space.
        series: What means what.
        time_to_first_token, inter_token_latency, duration, prompt_tokens, output_tokens: Bare names
            of the histograms.
        rank_labels: Ranks that report the same step: only the lowest counts.
        breakdown_label: A label that is empty on a gauge's total and filled on its parts.
        required_label: Without it a sample is somebody else's.
        kv_cache_tokens: How many tokens its cache holds, from the samples by bare names.
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
    rank_labels: tuple[str, ...] = ()
    breakdown_label: str | None = None
    required_label: str | None = None
    kv_cache_tokens: Callable[[SamplesByName], float | None] | None = None
    facts: tuple[str, ...] = ()

    @cached_property
    def names(self) -> dict[str, str]:
        """Every wanted name as it may stand on a page, and its bare name."""
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
