"""The text of an engine's page to the few values we use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from disagg_exporter.engine_pages.adapters import ADAPTERS, KINDS
from disagg_exporter.engine_pages.exposition.lines import (
    PageError,
    Sample,
    SamplesByName,
    SeriesFilter,
    scan,
)
from disagg_exporter.engine_pages.exposition.series_keys import SeriesKey, SeriesKeys
from disagg_exporter.engine_pages.expressions import LARGEST, IndexedKey, Samples
from disagg_exporter.engine_pages.series import Adapter, Field
from disagg_exporter.engine_pages.serving_reader import ServingReader
from disagg_exporter.model import EnginePage, KvQueue


class LayoutReader:
    """What is read from the pages of one layout.

    Args:
        layout: What stands left of their wanted values, in their order.

    Raises:
        PageError: They are no pages of a known engine, or report something twice.
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
        # Several models on one page are nobody's name.
        names = seen["model_name"]
        self._model_name = next(iter(names)) if len(names) == 1 else None
        self._ranks = max(len(seen["engine"] | seen["dp_rank"]), 1)
        self._last: tuple[Sequence[float], EnginePage] | None = None

    def page(self, numbers: Sequence[float], t_ns: int) -> EnginePage:
        """Return the page with these values; of an engine at rest they are those of the last one.

        Raises:
            PageError: A counter is not a number from 0 up, or a histogram is none.
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
    """The kind of engine, and its samples under their bare names."""
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
    raise PageError(f"no series of a known engine on the page (known: {', '.join(KINDS)})")


_WANTED = SeriesFilter(name for adapter in ADAPTERS for name in adapter.names)


def parse_page(text: bytes, t_ns: int, keys: SeriesKeys | None = None) -> EnginePage:
    """Read an engine's page, whichever kind of engine it is.

    Ranks and engine indexes are summed (KV use and forward seconds averaged: ranks have equal
    caches and work side by side). A gauge that is not a number from 0 up is absent.

    Args:
        text: The page.
        t_ns: When it was asked for.
        keys: series keys of this engine's earlier pages.

    Raises:
        PageError: The page is no page of a known engine, is cut off, holds garbage among the
            lines we need, a sample twice, or a counter that is not a number from 0 up.
    """
    if text.lstrip()[:1] == b"<":
        raise PageError("this is an HTML page, not a metrics page")
    if not text.endswith(b"\n"):
        raise PageError("the page is cut off: its last line has no end")
    keys = SeriesKeys() if keys is None else keys
    layout, numbers = scan(text, _WANTED, keys, "engine's")
    return keys.derive(layout, LayoutReader).page(numbers, t_ns)
