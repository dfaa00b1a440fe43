"""Texts of figures that matplotlib has written as SVG."""

from __future__ import annotations

import html
import re
from pathlib import Path

_TEXT = re.compile(r"<!-- (.*?) -->", re.DOTALL)


def texts_of(path: Path) -> list[str]:
    """Return all texts of a figure: titles, axis labels and ticks, legend entries, notes.

    Letters are drawn as paths; each text is in a comment in front of them.
    """
    svg = path.read_text(encoding="utf-8")
    assert "<svg" in svg[:2000]
    return [html.unescape(text) for text in _TEXT.findall(svg)]
