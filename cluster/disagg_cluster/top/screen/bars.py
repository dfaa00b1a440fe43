"""Draws GPU time as a stacked bar, and over time as a line of levels."""

from __future__ import annotations

from collections.abc import Sequence

from disagg_cluster.top.screen.lines import Glyphs, Line, Span
from disagg_cluster.top.screen.numbers import percent
from disagg_cluster.top.view.values import GpuTime, History, HistorySlot
from disagg_exporter.model import Use


def bar(time: GpuTime | None, width: int, glyphs: Glyphs) -> Line:
    """Each use's share of the time in cells; blank if unknown."""
    ratios = time.ratios if time is not None else {}
    spans, before, until = [], 0, 0.0
    for use, ratio in ratios.items():
        until += ratio
        end = round(width * until)
        if end > before:
            spans.append(Span(glyphs.of(use) * (end - before), use))
        before = max(before, end)
    return (*spans, Span(" " * (width - before))) if before < width else tuple(spans)


def legend(time: GpuTime | None, glyphs: Glyphs) -> Line:
    """The characters of the bars, with the shares of all devices."""
    ratios = time.ratios if time is not None else {}
    spans: list[Span] = []
    for use in Use:
        share = f" {percent(ratios[use])}" if use in ratios else ""
        spans += [Span(glyphs.of(use), use), Span(f" {use}{share}  ", "dim")]
    return tuple(spans)


def known_slots(history: History) -> int:
    """Number of slots from the oldest known one on."""
    known = [place for place, slot in enumerate(history) if slot is not None]
    return len(history) - known[0] if known else 0


def history_line(history: History, width: int, glyphs: Glyphs, known: int) -> Line:
    """Busy share over time, oldest first; styled by the phase with the larger share.

    Adjacent slots are merged so that the `known` newest ones fit; unknown ones are blank.
    """
    if width <= 0:
        return ()
    together = max(1, -(-known // width))
    # Starts with the newest, so that the last cell always covers a full group.
    ends = range(len(history), 0, -together)
    cells = [_cell(history[max(0, end - together) : end], glyphs) for end in ends][:width]
    cells += [Span(" ")] * (width - len(cells))
    return _merged(tuple(reversed(cells)))


def _cell(slots: Sequence[HistorySlot | None], glyphs: Glyphs) -> Span:
    known = [slot for slot in slots if slot is not None]
    if not known:
        return Span(" ")
    prefill = sum(slot.prefill_ratio for slot in known) / len(known)
    decode = sum(slot.decode_ratio for slot in known) / len(known)
    top = len(glyphs.levels) - 1
    level = glyphs.levels[min(top, max(0, round(top * (prefill + decode))))]
    if prefill + decode < 0.005:
        return Span(level, Use.IDLE)
    return Span(level, Use.PREFILL if prefill >= decode else Use.DECODE)


def _merged(cells: Line) -> Line:
    spans: list[Span] = []
    for cell in cells:
        if spans and spans[-1].style == cell.style:
            spans[-1] = Span(spans[-1].text + cell.text, cell.style)
        else:
            spans.append(cell)
    return tuple(spans)
