"""A split of time as a bar: SVG without a style attribute, which our security policy forbids."""

from __future__ import annotations

from html import escape

from disagg_exporter.landing.view import Split
from disagg_exporter.model import Use

ABSENT = "-"
"""What stands for a value that is not known."""

WORDS = {
    Use.PREFILL: "prefill",
    Use.DECODE: "decode",
    Use.IDLE: "idle",
    Use.UNATTRIBUTED: "unattributed",
    Use.UNOBSERVED: "unobserved",
}

PATTERNS = """\
<svg class="defs" width="0" height="0" aria-hidden="true"><defs>
<pattern id="dots" width="6" height="6" patternUnits="userSpaceOnUse">
<rect width="6" height="6" class="unattributed"/><circle cx="2" cy="2" r="1.2" class="ink"/>
</pattern>
<pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse"
 patternTransform="rotate(45)">
<rect width="6" height="6" class="unobserved"/><rect width="2" height="6" class="ink"/>
</pattern></defs></svg>
"""
"""What the two unknown uses are drawn with, so that they differ by more than colour."""


def bar(split: Split, height: int) -> str:
    """The bar itself; a screen reader reads the words beside it instead."""
    parts, left = [], 0.0
    for use, ratio in split.ratios.items():
        if ratio > 0:
            parts.append(
                f'<rect class="{use.value}" x="{100 * left:.2f}%" width="{100 * ratio:.2f}%"'
                f' height="100%"/>'
            )
        left += ratio
    return (
        f'<svg class="bar" width="100%" height="{height}" aria-hidden="true" focusable="false">'
        f"{''.join(parts)}</svg>"
    )


def words(split: Split) -> str:
    """The same in words: every use that is there, in percent."""
    ratios = {use: ratio for use, ratio in split.ratios.items() if ratio >= 0.005}
    told = [f"{WORDS[use]} {percent(ratio)}" for use, ratio in ratios.items()]
    return escape(", ".join(told)) or "not known yet"


def legend() -> str:
    """What the colours mean."""
    items = "".join(
        f'<li><svg class="key" width="14" height="14" aria-hidden="true">'
        f'<rect class="{use.value}" width="100%" height="100%"/></svg>{word}</li>'
        for use, word in WORDS.items()
    )
    return f'<ul class="legend" aria-label="Colours of the bars">{items}</ul>'


def percent(ratio: float | None) -> str:
    """A ratio for people; what is not known is a hyphen."""
    if ratio is None:
        return ABSENT
    return f"{100 * ratio:.0f}%"
