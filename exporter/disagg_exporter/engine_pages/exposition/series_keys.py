"""The two sides of a sample's line: its series key, the same at each scrape, and its value."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar, cast

from prometheus_client.parser import text_string_to_metric_families

from disagg_exporter.engine_pages.exposition.layout_cache import (
    MAX_WANTED_LINES,
    LayoutCache,
    remember,
)

# What the client's parser throws at malformed lines, and float() at endless digits.
MALFORMED = (ValueError, IndexError, OverflowError)


_Identity = tuple[str, tuple[tuple[str, str], ...]]


class SeriesKey(NamedTuple):
    """Name and labels of a sample; equal ones have the same number, in whichever order written."""

    name: str
    labels: Mapping[str, str]
    number: int


Layout = tuple[SeriesKey, ...]
"""The series keys of the wanted samples of a page, in its order."""

T = TypeVar("T")


class SeriesKeys:
    """Parsed series keys of one engine's pages so far, and the layout of the last page.

    For pages of one engine, of which the same is wanted each time.
    """

    def __init__(self) -> None:
        self._parsed: dict[bytes, SeriesKey] = {}
        self._numbers: dict[_Identity, int] = {}
        self._cache: LayoutCache | None = None
        self._last: Layout = ()
        self._read: tuple[list[bytes], list[float]] = [], []
        self._derived: tuple[Layout, object] | None = None

    def parse(self, key: bytes) -> SeriesKey:
        """Return the name and the labels; raises what the client's parser does."""
        known = self._parsed.get(key)
        if known is None:
            name, labels, identity = _parsed(key)
            number = self._numbers.setdefault(identity, len(self._numbers))
            known = self._parsed[key] = SeriesKey(name, labels, number)
        return known

    def evict(self) -> None:
        """Drop all keys once they are more than any page has: something invents labels."""
        if len(self._parsed) > MAX_WANTED_LINES:
            self._parsed.clear()
            self._numbers.clear()

    def remember(
        self, text: bytes, starts: Sequence[bytes], may_be_wanted: Callable[[bytes], bool]
    ) -> Layout:
        """Keep the layout of a valid page; see `layout_cache`."""
        self._last = tuple(map(self.parse, starts))
        self._cache = remember(text, starts, may_be_wanted)
        return self._last

    def read(self, text: bytes) -> tuple[Layout, list[float]] | None:
        """Read a page by the layout of the one before; None if it has to be scanned."""
        tails = None if self._cache is None else self._cache.tails(text)
        if tails is None:
            return None
        if tails != self._read[0]:
            try:
                self._read = tails, list(map(number, tails))
            except MALFORMED:
                return None
        return self._last, self._read[1]

    def derive(self, layout: Layout, make: Callable[[Layout], T]) -> T:
        """Return what `make` derives from a layout; computed once as long as pages keep it."""
        if self._derived is None or self._derived[0] is not layout:
            self._derived = layout, make(layout)
        return cast("T", self._derived[1])


def split(line: bytes) -> tuple[bytes, bytes]:
    """Cut a line before its value."""
    key, brace, tail = line.rpartition(b"}")
    if not brace:
        key, _, tail = line.strip().replace(b"\t", b" ").partition(b" ")
    return key + brace, tail


def number(tail: bytes) -> float:
    """A value; a time may follow, of which we only ask that it is one."""
    if b"_" in tail:
        raise ValueError("a number with a line in it")
    try:
        return float(tail)
    except ValueError:
        number, time = tail.split()
        int(time)
        return float(number)


@lru_cache(maxsize=4096)  # engines of one kind and model have the same keys: they share them
def _parsed(key: bytes) -> tuple[str, Mapping[str, str], _Identity]:
    """The name, the labels, and both in an order of their own."""
    text = key.decode("utf-8")
    samples = [
        sample
        for family in text_string_to_metric_families(text + " 1\n")
        for sample in family.samples
    ]
    if len(samples) != 1:
        raise ValueError("not one sample")
    labels = {sys.intern(name): sys.intern(value) for name, value in samples[0].labels.items()}
    name = sys.intern(samples[0].name)
    return name, labels, (name, tuple(sorted(labels.items())))
