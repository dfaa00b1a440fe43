"""Reads the wanted lines of a metrics page as samples; others are never parsed.

A page has some 800 samples, of which we need a tenth. Series keys are the same at each scrape, so
they are parsed once and kept, and so are their positions.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from disagg_exporter.engine_pages.exposition.layout import (
    MALFORMED,
    MAX_LINE_BYTES,
    MAX_LINES,
    MAX_WANTED_BYTES,
    MAX_WANTED_LINES,
    Layout,
    SeriesKeys,
    number,
    split,
    without_numbers,
)
from disagg_exporter.errors import DisaggError


class PageError(DisaggError):
    """An invalid page; the message says why."""


class UnknownPageError(PageError):
    """A page of no known engine; the message names those that are known."""


def no_count(name: str, value: float) -> PageError:
    """Return the error of a counter that is negative, not a number or above 2^62."""
    # The cause has no name or value, so that another counter or value is not logged as new.
    return PageError(f"{name} is {value}, not a valid count", cause="a counter is invalid")


def check_whole(text: bytes) -> None:
    """Check that this is a page to its end.

    Raises:
        PageError: It is empty, compressed, or cut off.
    """
    if not text:
        raise PageError("the page is empty")
    # Some proxies compress whatever is asked for.
    if text.startswith(b"\x1f\x8b"):
        raise PageError("the page is compressed by gzip, which was not asked for")
    if not text.endswith(b"\n"):
        raise PageError("the page is cut off: its last line has no end")


class SeriesFilter:
    """The names of wanted samples as written on a page."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(name.encode() for name in names)
        self._shapes = frozenset(map(without_numbers, self.names))

    def may_be(self, shape: bytes) -> bool:
        """Return whether a line of this shape may be a wanted one."""
        return _name_of(shape, self._shapes) is not None


class Sample(NamedTuple):
    """One value of a series, with the labels it carries."""

    labels: Mapping[str, str]
    value: float


SamplesByName = dict[str, list[Sample]]
"""The wanted samples of a page by their names there."""


def find(text: bytes, wanted: SeriesFilter, keys: SeriesKeys, what: str) -> SamplesByName:
    """Return the wanted samples of a page.

    Args:
        text: The page.
        wanted: The names that samples must have.
        keys: Series keys and layout of this engine's pages so far.
        what: Whose series these are, for the message.

    Raises:
        PageError: A wanted line is invalid, too long, or not UTF-8; a sample is there twice; or
            there are too many wanted lines.
    """
    layout, numbers = scan(text, wanted, keys, what)
    found: SamplesByName = {}
    for key, value in zip(layout, numbers, strict=True):
        found.setdefault(key.name, []).append(Sample(key.labels, value))
    return found


def scan(
    text: bytes, wanted: SeriesFilter, keys: SeriesKeys, what: str
) -> tuple[Layout, list[float]]:
    """Return the wanted samples of a page as series keys and values; otherwise like `find`."""
    keys.evict()
    return keys.read(text) or _scan_lines(text, wanted, keys, what)


def _scan_lines(
    text: bytes, wanted: SeriesFilter, keys: SeriesKeys, what: str
) -> tuple[Layout, list[float]]:
    """Scan every line of a page."""
    numbers: list[float] = []
    starts: list[bytes] = []
    seen: set[int] = set()
    for line in _wanted_lines(text, wanted):
        try:
            start, tail = split(line)
            key, value = keys.parse(start), number(tail)
            if key.name.encode() not in wanted.names:
                raise ValueError(key.name)
        except UnicodeDecodeError:
            raise PageError(f"a line of the {what} series is not UTF-8") from None
        except MALFORMED as error:
            why = ascii(str(error))[:160]
            cause = f"a line of the {what} series cannot be read"
            raise PageError(f"{cause}: {why}", cause=cause) from error
        if key.number in seen:
            twice = "is on the page twice with the same labels"
            raise PageError(f"{key.name} {twice}", cause=f"a series {twice}")
        seen.add(key.number)
        numbers.append(value)
        starts.append(start)
    return keys.remember(text, starts, wanted.may_be), numbers


def _wanted_lines(text: bytes, wanted: SeriesFilter) -> Iterator[bytes]:
    if text.count(b"\n") > MAX_LINES:
        raise PageError(f"the page has more than {MAX_LINES} lines")
    total, count = 0, 0
    for line in io.BytesIO(text):
        if _name_of(line, wanted.names) is None:
            continue
        total, count = total + len(line), count + 1
        if count > MAX_WANTED_LINES:
            raise PageError(f"the lines we need are more than {MAX_WANTED_LINES}")
        if len(line) > MAX_LINE_BYTES:
            raise PageError(f"a line is longer than {MAX_LINE_BYTES} bytes")
        if total > MAX_WANTED_BYTES:
            raise PageError(f"the lines we need are more than {MAX_WANTED_BYTES} bytes together")
        yield line


def _name_of(line: bytes, names: frozenset[bytes]) -> bytes | None:
    """Return the name of a line if it is one of these."""
    # Cheap checks first: most lines fail them.
    name, brace, _ = line.partition(b"{")
    if name in names and brace:
        return name
    if name[:1] == b"#" or (brace and not name[-1:].isspace()):
        return None
    parts = name.split(None, 1)
    return parts[0] if parts and parts[0] in names else None
