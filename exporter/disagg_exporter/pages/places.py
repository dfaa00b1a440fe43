"""Where the wanted lines of a page stood, so that the next one like it is read without a walk.

From look to look a page changes in little but its numbers. Two pages that are equal without the
characters that numbers are written with have the same lines, in the same order. If besides each
wanted line is found again, byte for byte up to its value, the others are still unwanted: no name
among them can have become a wanted one by its digits alone, or the page was not remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from disagg_exporter.pages.limits import MAX_LINE_BYTES, MAX_WANTED_BYTES

# A shape is kept whole, for every engine; no engine's page is a tenth of this.
MAX_SHAPE_BYTES = 1024 * 1024

MAX_TAIL_BYTES = 64
"""What may follow a head: a value and a time."""

_OF_NUMBERS = b"0123456789.+-e"
# How much the numbers before a line may have become shorter in all.
_SLACK_BYTES = 1024


def without_numbers(text: bytes) -> bytes:
    """The shape of a line, a name or a page: all but the characters of numbers."""
    return text.translate(None, _OF_NUMBERS)


class _Place(NamedTuple):
    """One wanted line.

    `start` is how it begins, with the end of the line before it; `gap` is how far that is from the
    end of the wanted line before.
    """

    start: bytes
    gap: int


class Places:
    """The wanted lines of one page, in its order.

    Args:
        shape: The page without its numbers.
        places: Where the lines stood.
    """

    def __init__(self, shape: bytes, places: Sequence[_Place]) -> None:
        self._shape = shape
        self._places = tuple(places)

    def tails(self, text: bytes) -> list[bytes] | None:
        """What follows the remembered starts of the wanted lines; None if anything has moved."""
        if without_numbers(text) != self._shape:
            return None
        tails, end = [], 0
        for start, gap in self._places:
            at = end + gap
            if not text.startswith(start, at):
                at = text.find(start, max(at - _SLACK_BYTES, end))
                if at < 0:
                    return None
            begin = at + len(start)
            end = text.find(b"\n", begin)
            if end - begin > MAX_TAIL_BYTES:
                return None
            tails.append(text[begin:end])
        return tails


def remember(
    text: bytes, heads: Sequence[bytes], may_be_wanted: Callable[[bytes], bool]
) -> Places | None:
    """Remember a page that was walked through; None if the next must be walked through again.

    Args:
        text: The page.
        heads: What stands left of the values of the wanted lines, in the order of the page.
        may_be_wanted: Whether a line without its numbers is that of a wanted name.
    """
    shape = without_numbers(text)
    longest = [len(head) + MAX_TAIL_BYTES + 2 for head in heads]
    if max(longest, default=0) > MAX_LINE_BYTES or sum(longest) > MAX_WANTED_BYTES:
        return None
    if len(shape) > MAX_SHAPE_BYTES or sum(map(may_be_wanted, shape.split(b"\n"))) != len(heads):
        return None
    places, end = [], 0
    for head in heads:
        # A name without labels ends where its line has its first blank.
        start = b"\n" + (head if head.endswith(b"}") else head + b" ")
        at = text.find(start, end)
        if at < 0:
            return None
        places.append(_Place(start, at - end))
        end = text.find(b"\n", at + len(start))
    return Places(shape, places)
