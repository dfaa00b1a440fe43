"""Which series of an engine's metrics page mean what: one small table per kind of engine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Field(StrEnum):
    """The values of an `EnginePage` that come from series, by their names there."""

    RUNNING = "running"
    WAITING = "waiting"
    DEFERRED = "deferred"
    KV_USAGE_RATIO = "kv_usage_ratio"
    COMPUTED_TOKENS_TOTAL = "computed_tokens_total"
    EXTERNAL_TOKENS_TOTAL = "external_tokens_total"
    GENERATION_TOKENS_TOTAL = "generation_tokens_total"

    @property
    def counter(self) -> bool:
        """Only grows while its engine lives."""
        return self.endswith("_total")


@dataclass(frozen=True, slots=True)
class Series:
    """A series by its bare name (without the engine's prefix) that gives one field.

    Only samples that carry `label` count, where one is named. Of several series for one field
    the first that is on the page is taken.
    """

    field: Field
    name: str
    label: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Adapter:
    """How one kind of engine writes its page. `prefixes` are the spellings of its name space."""

    kind: str
    prefixes: tuple[str, ...]
    series: tuple[Series, ...]

    @property
    def names(self) -> frozenset[str]:
        """Every name on a page that is wanted, in every spelling."""
        return frozenset(prefix + series.name for prefix in self.prefixes for series in self.series)

    def bare_name(self, name: str) -> str:
        """Return a wanted name without its prefix."""
        return next(name.removeprefix(p) for p in self.prefixes if name.startswith(p))


_BY_SOURCE = "prompt_tokens_by_source_total"

VLLM = Adapter(
    kind="vllm",
    # A page asked for as OpenMetrics, or passed on by some routers, has the colon renamed.
    prefixes=("vllm:", "vllm_"),
    series=(
        Series(Field.RUNNING, "num_requests_running"),
        # The plain gauge also counts requests that wait for KV to arrive, which no room helps.
        Series(Field.WAITING, "num_requests_waiting_by_reason", ("reason", "capacity")),
        Series(Field.WAITING, "num_requests_waiting"),
        Series(Field.DEFERRED, "num_requests_waiting_by_reason", ("reason", "deferred")),
        Series(Field.KV_USAGE_RATIO, "kv_cache_usage_perc"),
        Series(Field.KV_USAGE_RATIO, "gpu_cache_usage_perc"),
        # prompt_tokens_total would count transferred tokens on a decode engine: better nothing.
        Series(Field.COMPUTED_TOKENS_TOTAL, _BY_SOURCE, ("source", "local_compute")),
        Series(Field.EXTERNAL_TOKENS_TOTAL, _BY_SOURCE, ("source", "external_kv_transfer")),
        Series(Field.GENERATION_TOKENS_TOTAL, "generation_tokens_total"),
    ),
)

ADAPTERS = (VLLM,)
