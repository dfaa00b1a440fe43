"""Caches a page's series keys and the positions of its wanted lines, the same at each scrape.

Usually only numbers change, and such a page is read without a scan. If each wanted line is found
again, byte for byte up to its value, and the text between them is unchanged or differs only in
characters of numbers, the other lines are still unwanted: layouts in which a name could become a
wanted one by its digits alone are not remembered.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar, cast

from prometheus_client.parser import text_string_to_metric_families

# What the client's parser raises on malformed lines, and float() on too many digits.
MALFORMED = (ValueError, IndexError, OverflowError)

# A rank has some 130 wanted lines of 100 bytes, so there is room for a hundred ranks; the
# parser's time grows with the square of a line's length.
MAX_WANTED_BYTES = 2 * 1024 * 1024
MAX_LINE_BYTES = 4096

MAX_WANTED_LINES = 20_000
MAX_LINES = 200_000

# One page is kept per engine; none is larger than a fifth of this.
MAX_KEPT_BYTES = 1024 * 1024

MAX_TAIL_BYTES = 64
"""Limit for what follows a series key: a value and a timestamp."""

# Engines' keys have a hundred bytes: longer ones are not shared, as thousands of them are kept.
_MAX_SHARED_BYTES = 512

_OF_NUMBERS = b"0123456789.+-e"
# How much shorter the numbers between two wanted lines may become in all.
_SLACK_BYTES = 1024


def without_numbers(text: bytes) -> bytes:
    """Return the shape of a line, name or page: the text without the characters of numbers."""
    return text.translate(None, _OF_NUMBERS)


class LayoutCache:
    """The wanted lines of one page, in its order.

    Args:
        starts: The start of each, with the preceding end of line.
        gaps: The text before each start, and after the last line.
    """

    def __init__(self, starts: Sequence[bytes], gaps: Sequence[bytes]) -> None:
        self._starts, self._gaps = starts, list(gaps)
        # Computed only for gaps that change: an idle engine's page mostly stays the same. Hashes
        # of 64 bits, because the shapes of all engines' pages would take megabytes.
        self._shapes: dict[int, int] = {}

    def tails(self, text: bytes) -> list[bytes] | None:
        """Return what follows the start of each wanted line; None if the layout has changed."""
        if len(text) > MAX_KEPT_BYTES:
            return None
        tails, end = [], 0
        for number, start in enumerate(self._starts):
            gap = self._gaps[number]
            at = end + len(gap)
            if not (text.startswith(start, at) and text.startswith(gap, end)):
                at = text.find(start, max(at - _SLACK_BYTES, end))
                if at < 0 or not self._is_alike(number, text[end:at]):
                    return None
            begin = at + len(start)
            end = text.find(b"\n", begin)
            if end - begin > MAX_TAIL_BYTES:
                return None
            tails.append(text[begin:end])
        return tails if self._is_alike(len(self._starts), text[end:]) else None

    def _is_alike(self, number: int, gap: bytes) -> bool:
        """Return whether a gap changed only in its numbers; if so, keep it for the next page."""
        if gap == self._gaps[number]:
            return True
        shape = self._shapes.get(number)
        if shape is None:
            shape = self._shapes[number] = hash(without_numbers(self._gaps[number]))
        if hash(without_numbers(gap)) != shape:
            return False
        self._gaps[number] = gap
        return True


def remember(
    text: bytes, keys: Sequence[bytes], may_be_wanted: Callable[[bytes], bool]
) -> LayoutCache | None:
    """Return the layout of a scanned page; None if the next must be scanned again.

    Args:
        text: The page.
        keys: Series keys of the wanted lines, in page order.
        may_be_wanted: Whether a line's shape is that of a wanted name.
    """
    longest = [len(key) + MAX_TAIL_BYTES + 2 for key in keys]
    if max(longest, default=0) > MAX_LINE_BYTES or sum(longest) > MAX_WANTED_BYTES:
        return None
    lines = without_numbers(text).split(b"\n")
    if len(text) > MAX_KEPT_BYTES or sum(map(may_be_wanted, lines)) != len(keys):
        return None
    starts, gaps, end = list[bytes](), list[bytes](), 0
    for key in keys:
        # A name without labels ends at the first blank.
        start = b"\n" + (key if key.endswith(b"}") else key + b" ")
        at = text.find(start, end)
        if at < 0:
            return None
        starts.append(start)
        gaps.append(text[end:at])
        end = text.find(b"\n", at + len(start))
        # An unwanted line may begin the same; and the last line of a page may have no end.
        if not may_be_wanted(without_numbers(text[at + 1 : end])) or end < 0:
            return None
    return LayoutCache(starts, [*gaps, text[end:]])


_Identity = tuple[str, tuple[tuple[str, str], ...]]


class SeriesKey(NamedTuple):
    """Name and labels of a sample; equal ones share a number, in any order of labels."""

    name: str
    labels: Mapping[str, str]
    number: int


Layout = tuple[SeriesKey, ...]
"""The series keys of a page's wanted samples, in page order."""

T = TypeVar("T")


class SeriesKeys:
    """Parsed series keys of one engine's pages so far, and the layout of the last page.

    The wanted names must be the same for each page.
    """

    def __init__(self) -> None:
        self._parsed: dict[bytes, SeriesKey] = {}
        self._parsed_bytes = 0
        self._numbers: dict[_Identity, int] = {}
        self._cache: LayoutCache | None = None
        self._last: Layout = ()
        self._read: tuple[list[bytes], list[float]] = [], []
        self._derived: tuple[Layout, object] | None = None

    def parse(self, key: bytes) -> SeriesKey:
        """Return the parsed key; raises what the client's parser raises."""
        known = self._parsed.get(key)
        if known is None:
            share = len(key) <= _MAX_SHARED_BYTES
            name, labels, identity = _shared(key) if share else _parsed(key)
            number = self._numbers.setdefault(identity, len(self._numbers))
            known = self._parsed[key] = SeriesKey(name, labels, number)
            self._parsed_bytes += len(key)
        return known

    def evict(self) -> None:
        """Drop all keys if there are more than a page may have: labels keep changing."""
        if len(self._parsed) > MAX_WANTED_LINES or self._parsed_bytes > MAX_WANTED_BYTES:
            self._parsed.clear()
            self._parsed_bytes = 0
            self._numbers.clear()

    def remember(
        self, text: bytes, starts: Sequence[bytes], may_be_wanted: Callable[[bytes], bool]
    ) -> Layout:
        """Keep the layout of a valid page; see the function `remember`."""
        self._last = tuple(map(self.parse, starts))
        self._cache = remember(text, starts, may_be_wanted)
        return self._last

    def read(self, text: bytes) -> tuple[Layout, list[float]] | None:
        """Read a page by the layout of the previous one; None if it must be scanned."""
        tails = None if self._cache is None else self._cache.tails(text)
        if tails is None:
            return None
        if tails != self._read[0]:
            # Most numbers are those of the page before.
            known = dict(zip(*self._read, strict=True))
            try:
                numbers = [known[tail] if tail in known else number(tail) for tail in tails]
            except MALFORMED:
                return None
            self._read = tails, numbers
        return self._last, self._read[1]

    def derive(self, layout: Layout, make: Callable[[Layout], T]) -> T:
        """Return what `make` derives from a layout; computed once while pages keep it."""
        if self._derived is None or self._derived[0] is not layout:
            self._derived = layout, make(layout)
        return cast("T", self._derived[1])


def split(line: bytes) -> tuple[bytes, bytes]:
    """Split a line into its series key and the rest."""
    key, brace, tail = line.rpartition(b"}")
    if not brace:
        key, _, tail = line.strip().replace(b"\t", b" ").partition(b" ")
    return key + brace, tail


def number(tail: bytes) -> float:
    """Return a value; an integer timestamp may follow it."""
    if b"_" in tail:
        raise ValueError("a number with a line in it")
    try:
        return float(tail)
    except ValueError:
        number, time = tail.split()
        int(time)
        return float(number)


def _parsed(key: bytes) -> tuple[str, Mapping[str, str], _Identity]:
    """Return the name, the labels, and both with the labels sorted."""
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


# Engines of one kind and model have the same keys: they share them.
_shared = lru_cache(maxsize=4096)(_parsed)
