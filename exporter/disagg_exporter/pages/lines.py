"""The lines of a metrics page that are wanted, as samples; all others are never parsed.

A page holds some 800 samples and we want a tenth. What stands left of a value is the same at each
look, so it is parsed once and remembered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from disagg_exporter.errors import DisaggError

# What a page may make us work. A rank has some hundred wanted lines of 100 bytes, so this is room
# for a hundred ranks; the parser's time grows with the square of a line.
MAX_WANTED_BYTES = 1024 * 1024
MAX_LINE_BYTES = 4096

# A page of ours has a hundred heads; beyond this something invents names, and we begin anew.
MAX_HEADS = 10_000


class PageError(DisaggError):
    """A page that cannot be believed; its text says what is wrong with it."""


class Sample(NamedTuple):
    """One value of a series, with the labels it carries."""

    labels: Mapping[str, str]
    value: float


Found = dict[str, list[Sample]]
"""The wanted samples of a page by the names they have there."""

_Head = tuple[str, dict[str, str]]


class Heads:
    """What stood left of the values on one engine's pages so far, parsed."""

    def __init__(self) -> None:
        self._parsed: dict[bytes, _Head] = {}

    def __len__(self) -> int:
        return len(self._parsed)

    def parse(self, head: bytes) -> _Head:
        """Return the name and the labels; raises what the client's parser does."""
        known = self._parsed.get(head)
        if known is None:
            if len(self._parsed) >= MAX_HEADS:
                self._parsed.clear()
            known = self._parsed[head] = _parsed(head)
        return known


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
    found: Found = {}
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    for line in _wanted(text, names):
        try:
            head, value = _split(line)
            name, labels = heads.parse(head)
            if name.encode() not in names:
                raise ValueError(name)
        except UnicodeDecodeError:
            raise PageError(f"a line of the {what} series is not UTF-8") from None
        except (ValueError, IndexError, OverflowError) as error:
            # What the client's parser throws at malformed lines, and float() at endless digits.
            why = ascii(str(error))[:160]
            raise PageError(f"a line of the {what} series cannot be read: {why}") from error
        key = (name, tuple(sorted(labels.items())))
        if key in seen:
            raise PageError(f"{name} is on the page twice with the same labels")
        seen.add(key)
        found.setdefault(name, []).append(Sample(labels, value))
    return found


def _wanted(text: bytes, names: frozenset[bytes]) -> Iterator[bytes]:
    total = 0
    for line in text.split(b"\n"):
        # The cheap question first: a page has thousands of lines and most answer no.
        name, brace, _ = line.partition(b"{")
        if not brace or name not in names:
            parts = name.split(None, 1)
            if not parts or parts[0] not in names:
                continue
        total += len(line)
        if len(line) > MAX_LINE_BYTES:
            raise PageError(f"a line is longer than {MAX_LINE_BYTES} bytes")
        if total > MAX_WANTED_BYTES:
            raise PageError(f"the lines we need are more than {MAX_WANTED_BYTES} bytes together")
        yield line


def _split(line: bytes) -> tuple[bytes, float]:
    """Cut a line before its value; a timestamp may follow, of which we only ask that it is one."""
    if b"{" in line:
        head, brace, tail = line.rpartition(b"}")
        head += brace
        numbers = tail.split()
    else:
        head, *numbers = line.split()
    if len(numbers) not in (1, 2) or any(b"_" in number for number in numbers):
        raise ValueError("no value, or more than one")
    if len(numbers) == 2:
        int(numbers[1])
    return head, float(numbers[0])


def _parsed(head: bytes) -> _Head:
    text = head.decode("utf-8")
    samples = [
        sample
        for family in text_string_to_metric_families(text + " 1\n")
        for sample in family.samples
    ]
    if len(samples) != 1:
        raise ValueError("not one sample")
    return samples[0].name, dict(samples[0].labels)
