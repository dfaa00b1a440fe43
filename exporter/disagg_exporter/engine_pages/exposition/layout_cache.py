"""Positions of the wanted lines of a page, so that the next one like it is read without a scan.

From scrape to scrape little changes but numbers. If each wanted line is found again, byte for byte
up to its value, and what stands between them is as it was, or equal but for the characters
that numbers are written with, the others are still unwanted: no name among them can have become a
wanted one by its digits alone, or the page was not remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

# A rank has some 130 wanted lines of 100 bytes, so this is room for a hundred ranks; the
# parser's time grows with the square of a line.
MAX_WANTED_BYTES = 2 * 1024 * 1024
MAX_LINE_BYTES = 4096

MAX_WANTED_LINES = 20_000
MAX_LINES = 200_000


# A page is kept whole, for every engine; no engine's page is a fifth of this.
MAX_KEPT_BYTES = 1024 * 1024

MAX_TAIL_BYTES = 64
"""What may follow a series key: a value and a time."""

_OF_NUMBERS = b"0123456789.+-e"
# How much the numbers from one wanted line to the next may have become shorter in all.
_SLACK_BYTES = 1024


def without_numbers(text: bytes) -> bytes:
    """The shape of a line, a name or a page: all but the characters of numbers."""
    return text.translate(None, _OF_NUMBERS)


class LayoutCache:
    """The wanted lines of one page, in its order.

    Args:
        starts: How each begins, with the end of the line before it.
        gaps: What stood before each of these, and after the last line.
    """

    def __init__(self, starts: Sequence[bytes], gaps: Sequence[bytes]) -> None:
        self._starts, self._gaps = starts, list(gaps)
        # Made for gaps that change: most of a page stays as it is as long as its engine rests.
        # Hashes of 64 bits, as the shapes of all engines' pages would be megabytes.
        self._shapes: dict[int, int] = {}

    def tails(self, text: bytes) -> list[bytes] | None:
        """What follows the remembered starts of the wanted lines; None if anything has moved."""
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
        """Whether a gap is as it was but for its numbers; if so, it is what the next is held to."""
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
    """Keep the layout of a scanned page; None if the next must be scanned again.

    Args:
        text: The page.
        keys: Series keys of the wanted lines, in the order of the page.
        may_be_wanted: Whether a line without its numbers is that of a wanted name.
    """
    longest = [len(key) + MAX_TAIL_BYTES + 2 for key in keys]
    if max(longest, default=0) > MAX_LINE_BYTES or sum(longest) > MAX_WANTED_BYTES:
        return None
    lines = without_numbers(text).split(b"\n")
    if len(text) > MAX_KEPT_BYTES or sum(map(may_be_wanted, lines)) != len(keys):
        return None
    starts, gaps, end = list[bytes](), list[bytes](), 0
    for key in keys:
        # A name without labels ends where its line has its first blank.
        start = b"\n" + (key if key.endswith(b"}") else key + b" ")
        at = text.find(start, end)
        if at < 0:
            return None
        starts.append(start)
        gaps.append(text[end:at])
        end = text.find(b"\n", at + len(start))
        # An unwanted line may begin like that; and a page may end without an end of its line.
        if not may_be_wanted(without_numbers(text[at + 1 : end])) or end < 0:
            return None
    return LayoutCache(starts, [*gaps, text[end:]])
