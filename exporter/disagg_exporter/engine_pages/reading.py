"""How pages of one layout are read: what stands left of the values says it once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from disagg_exporter.engine_pages.engines.adapters import ADAPTERS, KINDS
from disagg_exporter.engine_pages.engines.series import Adapter, Field
from disagg_exporter.engine_pages.exposition.histograms import (
    BETWEEN_TOKENS_BOUNDS_SECONDS,
    FIRST_TOKEN_BOUNDS_SECONDS,
    HistogramReading,
)
from disagg_exporter.engine_pages.exposition.lines import Found, PageError, Sample
from disagg_exporter.engine_pages.exposition.series_keys import Head
from disagg_exporter.engine_pages.expressions import LARGEST, Placed, Samples, term_of
from disagg_exporter.model import EnginePage, ServingCounts, Total


class Reading:
    """What is read from the pages of one layout.

    Args:
        layout: What stands left of their wanted values, in their order.

    Raises:
        PageError: They are no pages of a known engine, or tell something twice.
    """

    def __init__(self, layout: Sequence[Head]) -> None:
        adapter, found = _recognized(layout)
        self._adapter = adapter
        self._terms = tuple(
            term for series in adapter.series if (term := term_of(series, adapter, found))
        )
        self._first_token = _histogram(
            adapter.time_to_first_token, found, FIRST_TOKEN_BOUNDS_SECONDS
        )
        self._between_tokens = _histogram(
            adapter.inter_token_latency, found, BETWEEN_TOKENS_BOUNDS_SECONDS
        )
        self._facts = {name: found[name] for name in adapter.facts if name in found}
        labels = [head.labels for placed in found.values() for _, head in placed]
        told = {
            label: {own[label] for own in labels if label in own}
            for label in ("model_name", "engine", "dp_rank")
        }
        # Several models on one page are nobody's name.
        names = told["model_name"]
        self._model_name = next(iter(names)) if len(names) == 1 else None
        self._ranks = max(len(told["engine"] | told["dp_rank"]), 1)
        self._last: tuple[Sequence[float], EnginePage] | None = None

    def page(self, numbers: Sequence[float], t_ns: int) -> EnginePage:
        """Return the page with these values; of an engine at rest they are those of the last one.

        Raises:
            PageError: A counter is not a number from 0 up, or a histogram is none.
        """
        if self._last is None or self._last[0] != numbers:
            self._last = numbers, self._worked_out(numbers, t_ns)
        return replace(self._last[1], t_ns=t_ns)

    def _worked_out(self, numbers: Sequence[float], t_ns: int) -> EnginePage:
        values: dict[Field | Total, float] = {}
        for term in self._terms:
            if term.gives not in values:
                value = term.of(numbers)
                if value is not None:
                    values[term.gives] = value
        awake = values.get(Field.AWAKE)
        return EnginePage(
            kind=self._adapter.kind,
            t_ns=t_ns,
            model_name=self._model_name,
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
            kv_cache_tokens=self._kv_cache_tokens(numbers),
            asleep=None if awake is None else awake == 0,
            serving=ServingCounts(
                {key: value for key, value in values.items() if isinstance(key, Total)},
                self._first_token.of(numbers),
                self._between_tokens.of(numbers),
            ),
            ranks=self._ranks,
        )

    def _kv_cache_tokens(self, numbers: Sequence[float]) -> float | None:
        if self._adapter.kv_cache_tokens is None:
            return None
        found: Found = {
            name: [Sample(head.labels, numbers[place]) for place, head in placed]
            for name, placed in self._facts.items()
        }
        tokens = self._adapter.kv_cache_tokens(found)
        return tokens if tokens is not None and 0 < tokens <= LARGEST else None


def _recognized(layout: Sequence[Head]) -> tuple[Adapter, Samples]:
    """The kind of engine, and its samples under their bare names."""
    by_name: dict[str, list[Placed]] = {}
    for place, head in enumerate(layout):
        by_name.setdefault(head.name, []).append((place, head))
    for adapter in ADAPTERS:
        ours: dict[str, list[Placed]] = {}
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
    raise PageError(f"no series of a known engine on the page (known: {', '.join(KINDS)})")


def _histogram(
    name: str | None, found: Samples, bounds_seconds: tuple[float, ...]
) -> HistogramReading:
    buckets, sums = (
        [(place, head.labels) for place, head in found.get(f"{name}_{part}", ())]
        for part in ("bucket", "sum")
    )
    return HistogramReading(name or "", buckets, sums, bounds_seconds)
