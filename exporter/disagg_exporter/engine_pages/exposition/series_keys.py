"""The two sides of a sample's line: its head, which is the same at each look, and its value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

from prometheus_client.parser import text_string_to_metric_families

from disagg_exporter.engine_pages.exposition.layout_cache import (
    MAX_WANTED_LINES,
    LayoutCache,
    remember,
)

# What the client's parser throws at malformed lines, and float() at endless digits.
MALFORMED = (ValueError, IndexError, OverflowError)


class SeriesKey(NamedTuple):
    """What stands left of a value; equal ones have the same number, in whichever order written."""

    name: str
    labels: Mapping[str, str]
    number: int


Layout = tuple[SeriesKey, ...]
"""What stands left of the wanted values of a page, in its order."""

T = TypeVar("T")


class SeriesKeys:
    """What stood left of the values on one engine's pages so far, parsed, and where it stood.

    For pages of one engine, of which the same is wanted each time.
    """

    def __init__(self) -> None:
        self._parsed: dict[bytes, SeriesKey] = {}
        self._numbers: dict[tuple[str, frozenset[tuple[str, str]]], int] = {}
        self._places: LayoutCache | None = None
        self._last: Layout = ()
        self._read: tuple[list[bytes], list[float]] = [], []
        self._worked_out: tuple[Layout, object] | None = None

    def parse(self, head: bytes) -> SeriesKey:
        """Return the name and the labels; raises what the client's parser does."""
        known = self._parsed.get(head)
        if known is None:
            name, labels = _parsed(head)
            key = (name, frozenset(labels.items()))
            number = self._numbers.setdefault(key, len(self._numbers))
            known = self._parsed[head] = SeriesKey(name, labels, number)
        return known

    def tidy(self) -> None:
        """Forget all if it has become more than any page has: something invents labels."""
        if len(self._parsed) > MAX_WANTED_LINES:
            self._parsed.clear()
            self._numbers.clear()

    def remember(
        self, text: bytes, starts: Sequence[bytes], may_be_wanted: Callable[[bytes], bool]
    ) -> Layout:
        """Remember a sound page by what stands left of its wanted values; see `places`."""
        self._last = tuple(map(self.parse, starts))
        self._places = remember(text, starts, may_be_wanted)
        return self._last

    def read(self, text: bytes) -> tuple[Layout, list[float]] | None:
        """Read a page as the one before was; None if it has to be walked through."""
        tails = None if self._places is None else self._places.tails(text)
        if tails is None:
            return None
        if tails != self._read[0]:
            try:
                self._read = tails, list(map(number, tails))
            except MALFORMED:
                return None
        return self._last, self._read[1]

    def work_out(self, layout: Layout, make: Callable[[Layout], T]) -> T:
        """Return what `make` makes of a layout; made once as long as pages have the same."""
        if self._worked_out is None or self._worked_out[0] is not layout:
            self._worked_out = layout, make(layout)
        return cast("T", self._worked_out[1])


def split(line: bytes) -> tuple[bytes, bytes]:
    """Cut a line before its value."""
    head, brace, tail = line.rpartition(b"}")
    if not brace:
        head, _, tail = line.strip().replace(b"\t", b" ").partition(b" ")
    return head + brace, tail


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


def _parsed(head: bytes) -> tuple[str, dict[str, str]]:
    text = head.decode("utf-8")
    samples = [
        sample
        for family in text_string_to_metric_families(text + " 1\n")
        for sample in family.samples
    ]
    if len(samples) != 1:
        raise ValueError("not one sample")
    return samples[0].name, dict(samples[0].labels)
