"""Lines of styled text with an exact width in cells, safe for any name."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size


class Span(NamedTuple):
    """A piece of text and the name of its style; empty for plain text."""

    text: str
    style: str = ""


Line = tuple[Span, ...]


class Glyphs(NamedTuple):
    """The characters for drawing; styles only repeat what these show."""

    prefill: str
    decode: str
    idle: str
    unattributed: str
    unobserved: str
    levels: str
    more: str
    only_ascii: bool

    def of(self, use: str) -> str:
        """The character of a use of GPU time."""
        drawn = getattr(self, use)
        assert isinstance(drawn, str)
        return drawn


UNICODE = Glyphs("█", "▒", "·", "+", "?", "▁▂▃▄▅▆▇█", "…", only_ascii=False)
ASCII = Glyphs("#", "=", ".", "+", "?", "_.-:=+*#", "~", only_ascii=True)


def clean(text: str, glyphs: Glyphs) -> str:
    """External text without control characters; reduced to ASCII if requested."""
    if text.isascii() and text.isprintable():
        return text
    shown = "".join(each if each.isprintable() else "?" for each in text)
    if glyphs.only_ascii:
        shown = shown.replace("→", "->").replace("…", "~").encode("ascii", "replace").decode()
    return shown


def fit(text: str, width: int, glyphs: Glyphs, *, right: bool = False) -> str:
    """Text of exactly `width` cells; longer text ends with an ellipsis."""
    text = clean(text, glyphs)
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, max(width - 1, 0)) + glyphs.more[:width]
    return " " * (width - length) + text if right else text + " " * (width - length)


def width_of(line: Iterable[Span]) -> int:
    """Width of spans in cells."""
    return sum(cell_len(span.text) for span in line)


def fitted(line: Line, width: int, glyphs: Glyphs) -> Line:
    """A line of exactly `width` cells."""
    spans: list[Span] = []
    left = width
    for span in line:
        text = clean(span.text, glyphs)
        if cell_len(text) > left:
            # Drops trailing blanks before truncating.
            text = text.rstrip()
        length = cell_len(text)
        if length > left:
            spans.append(Span(fit(text, left, glyphs), span.style))
            return tuple(spans)
        spans.append(Span(text, span.style))
        left -= length
    return (*spans, Span(" " * left)) if left else tuple(spans)


def folded(line: Line, width: int) -> list[Line]:
    """The line with its last span wrapped under itself if it is too long."""
    if not line or width_of(line) <= width:
        return [line]
    *head, last = line
    indent = width_of(head)
    if indent > width // 2:
        return [line]
    # Blanks alone, such as an empty last cell of a wide table, are no line.
    first, *more = textwrap.wrap(last.text, width - indent) or [""]
    return [
        (*head, Span(first, last.style)),
        *((Span(" " * indent), Span(piece, last.style)) for piece in more),
    ]


def plain(line: Line) -> str:
    """The text of a line, without styles."""
    return "".join(span.text for span in line).rstrip()
