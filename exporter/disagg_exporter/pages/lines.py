"""The lines of a metrics page that are wanted, as samples; all others are never parsed.

A page holds some 800 samples and we want a tenth. What stands left of a value is the same at each
look, so it is parsed once and remembered.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from disagg_exporter.errors import DisaggError

# What a page may make us work. A rank has some hundred wanted lines of 100 bytes, so this is room
# for a hundred ranks; the parser's time grows with the square of a line.
MAX_WANTED_BYTES = 1024 * 1024
MAX_LINE_BYTES = 4096

MAX_WANTED_LINES = 10_000
MAX_LINES = 200_000

_ANNOUNCES = b"\n# TYPE "
_ENDINGS = (b"", b"_total", b"_bucket", b"_sum", b"_count")


class PageError(DisaggError):
    """A page that cannot be believed; its text says what is wrong with it."""


class Wanted:
    """Names of samples as they stand on a page, and of the families they can belong to."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(name.encode() for name in names)
        self.families = frozenset(
            name.removesuffix(ending) for name in self.names for ending in _ENDINGS
        )


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


def find(text: bytes, wanted: Wanted, heads: Heads, what: str) -> Found:
    """Return the wanted samples of a page.

    Args:
        text: The page.
        wanted: The names that samples must have.
        heads: What is remembered of this engine's pages.
        what: Whose lines these are, for the message.

    Raises:
        PageError: A wanted line is garbage, too long, or not UTF-8; a sample is there twice; or
            the wanted lines are too many.
    """
    heads.tidy()
    found: Found = {}
    seen: set[int] = set()
    for line in _wanted_lines(text, wanted):
        try:
            start, value = _split(line)
            head = heads.parse(start)
            if head.name.encode() not in wanted.names:
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


def _wanted_lines(text: bytes, wanted: Wanted) -> Iterator[bytes]:
    if text.count(b"\n") > MAX_LINES:
        raise PageError(f"the page has more than {MAX_LINES} lines")
    names, total, count = wanted.names, 0, 0
    for line in chain.from_iterable(map(io.BytesIO, _parts(text, wanted))):
        # The cheap questions first: most lines answer no.
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


def _parts(text: bytes, wanted: Wanted) -> Iterator[bytes]:
    """The page without the families that surely are not wanted, by the lines that announce them.

    Such a family is passed over as a whole only if its last sample is its own, too: what follows
    it unannounced might be wanted.
    """
    first, *announced = text.split(_ANNOUNCES)
    yield first
    for part in announced:
        announced_as, _, samples = part.partition(b"\n")
        family = announced_as.partition(b" ")[0]
        end = samples.rfind(b"\n# HELP ")
        last = samples.rfind(b"\n", 0, end if end >= 0 else -1) + 1
        if family in wanted.families or not samples.startswith(family, last):
            yield samples


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
