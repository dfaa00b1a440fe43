"""The lines of a metrics page that are wanted, as samples; all others are never parsed.

A page holds some 800 samples and we want a tenth. What stands left of a value is the same at each
look, so it is parsed once and remembered.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from disagg_exporter.errors import DisaggError

# What a page may make us work. A rank has some hundred wanted lines of 100 bytes, so this is room
# for a hundred ranks; the parser's time grows with the square of a line.
MAX_WANTED_BYTES = 1024 * 1024
MAX_LINE_BYTES = 4096

MAX_WANTED_LINES = 10_000
MAX_LINES = 200_000


class PageError(DisaggError):
    """A page that cannot be believed; its text says what is wrong with it."""


class Sample(NamedTuple):
    """One value of a series, with the labels it carries."""

    labels: Mapping[str, str]
    value: float


Found = dict[str, list[Sample]]
"""The wanted samples of a page by the names they have there."""


class _Head(NamedTuple):
    """What stands left of a value; equal ones have the same number, in whichever order written."""

    name: str
    labels: Mapping[str, str]
    number: int


class Heads:
    """What stood left of the values on one engine's pages so far, parsed."""

    def __init__(self) -> None:
        self._parsed: dict[bytes, _Head] = {}
        self._numbers: dict[tuple[str, frozenset[tuple[str, str]]], int] = {}

    def parse(self, head: bytes) -> _Head:
        """Return the name and the labels; raises what the client's parser does."""
        known = self._parsed.get(head)
        if known is None:
            name, labels = _parsed(head)
            key = (name, frozenset(labels.items()))
            number = self._numbers.setdefault(key, len(self._numbers))
            known = self._parsed[head] = _Head(name, labels, number)
        return known

    def tidy(self) -> None:
        """Forget all if it has become more than any page has: something invents labels."""
        if len(self._parsed) > MAX_WANTED_LINES:
            self._parsed.clear()
            self._numbers.clear()


def find(text: bytes, names: frozenset[bytes], heads: Heads, what: str) -> Found:
    """Return the samples of a page that have one of the names.

    Args:
        text: The page.
        names: As they stand on the page.
        heads: What is remembered of this engine's pages.
        what: Whose lines these are, for the message.

    Raises:
        PageError: A wanted line is garbage, too long, or not UTF-8; a sample is there twice; or
            the wanted lines are too many.
    """
    heads.tidy()
    found: Found = {}
    seen: set[int] = set()
    for line in _wanted(text, names):
        try:
            start, value = _split(line)
            head = heads.parse(start)
            if head.name.encode() not in names:
                raise ValueError(head.name)
        except UnicodeDecodeError:
            raise PageError(f"a line of the {what} series is not UTF-8") from None
        except (ValueError, IndexError, OverflowError) as error:
            # What the client's parser throws at malformed lines, and float() at endless digits.
            why = ascii(str(error))[:160]
            raise PageError(f"a line of the {what} series cannot be read: {why}") from error
        if head.number in seen:
            raise PageError(f"{head.name} is on the page twice with the same labels")
        seen.add(head.number)
        found.setdefault(head.name, []).append(Sample(head.labels, value))
    return found


def _wanted(text: bytes, names: frozenset[bytes]) -> Iterator[bytes]:
    if text.count(b"\n") > MAX_LINES:
        raise PageError(f"the page has more than {MAX_LINES} lines")
    total = count = 0
    for line in io.BytesIO(text):
        # The cheap questions first: a page has thousands of lines and most answer no.
        name, brace, _ = line.partition(b"{")
        if name not in names or not brace:
            if name[:1] == b"#" or (brace and not name[-1:].isspace()):
                continue
            parts = name.split(None, 1)
            if not parts or parts[0] not in names:
                continue
        total, count = total + len(line), count + 1
        if count > MAX_WANTED_LINES:
            raise PageError(f"the lines we need are more than {MAX_WANTED_LINES}")
        if len(line) > MAX_LINE_BYTES:
            raise PageError(f"a line is longer than {MAX_LINE_BYTES} bytes")
        if total > MAX_WANTED_BYTES:
            raise PageError(f"the lines we need are more than {MAX_WANTED_BYTES} bytes together")
        yield line


def _split(line: bytes) -> tuple[bytes, float]:
    """Cut a line before its value; a timestamp may follow, of which we only ask that it is one."""
    head, brace, tail = line.rpartition(b"}")
    if not brace:
        head, _, tail = line.strip().replace(b"\t", b" ").partition(b" ")
    number, *more = tail.split()
    if len(more) > 1 or b"_" in tail:
        raise ValueError("more than a value and a time")
    if more:
        int(more[0])
    return head + brace, float(number)


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
