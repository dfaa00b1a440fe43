"""Tables that drop their least important columns on a narrow terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.cells import cell_len

from disagg_cluster.top.screen.lines import Glyphs, Line, Span, clean, fit

Row = TypeVar("Row")
_LEAST_NAME = 8


@dataclass(frozen=True, slots=True)
class TableColumn(Generic[Row]):
    """One column: its title, the text of each row, and its layout.

    If the columns do not fit, the one with the highest `dropped_at` is dropped first; 0 is always
    kept. `drawn` draws into cells; a column with a `stretch` weight gets a share of the remaining
    width.
    """

    title: str
    text: Callable[[Row], str] = lambda _: ""
    dropped_at: int = 0
    right: bool = False
    style: Callable[[Row], str] = lambda _: ""
    stretch: int = 0
    drawn: Callable[[Row, int], Line] | None = None
    least: int = 0


def table(
    columns: Sequence[TableColumn[Row]],
    rows: Sequence[Row],
    width: int,
    glyphs: Glyphs,
    selected: Row | None = None,
) -> list[Line]:
    """The header and the rows, each at most `width` cells."""
    shown = list(columns)
    while (natural := _natural(shown, rows, glyphs)) and _whole(natural, 1) > width:
        droppable = [column for column in shown if column.dropped_at]
        if not droppable:
            break
        shown.remove(max(droppable, key=lambda column: column.dropped_at))
    gap = 2 if _whole(natural, 2) <= width else 1
    widths = _stretched(shown, natural, width - _whole(natural, gap))
    over = sum(widths) + gap * (len(widths) - 1) - width
    if over > 0:
        widths[0] = max(_LEAST_NAME, widths[0] - over)
    space = Span(" " * gap)
    lines = [
        _joined(
            [
                (Span(fit(column.title, size, glyphs, right=column.right), "title"),)
                for column, size in zip(shown, widths, strict=True)
            ],
            space,
        )
    ]
    for row in rows:
        cells = [
            _cell(column, row, size, glyphs) for column, size in zip(shown, widths, strict=True)
        ]
        line = _joined(cells, space)
        if selected is not None and row is selected:
            line = tuple(Span(span.text, f"selected {span.style}".strip()) for span in line)
        lines.append(line)
    return lines


def _natural(columns: Sequence[TableColumn[Row]], rows: Sequence[Row], glyphs: Glyphs) -> list[int]:
    return [
        max(column.least, *(cell_len(clean(text, glyphs)) for text in _texts(column, rows)))
        for column in columns
    ]


def _texts(column: TableColumn[Row], rows: Sequence[Row]) -> list[str]:
    return [column.title, *map(column.text, rows)]


def _whole(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def _stretched(columns: Sequence[TableColumn[Row]], natural: list[int], spare: int) -> list[int]:
    weight = sum(column.stretch for column in columns)
    if spare <= 0 or not weight:
        return list(natural)
    widths, given = list(natural), 0
    last = max(place for place, column in enumerate(columns) if column.stretch)
    for place, column in enumerate(columns):
        part = spare - given if place == last else spare * column.stretch // weight
        if column.stretch:
            widths[place] += part
            given += part
    return widths


def _cell(column: TableColumn[Row], row: Row, size: int, glyphs: Glyphs) -> Line:
    if column.drawn is not None:
        return column.drawn(row, size)
    return (Span(fit(column.text(row), size, glyphs, right=column.right), column.style(row)),)


def _joined(cells: Sequence[Line], space: Span) -> Line:
    spans: list[Span] = []
    for number, cell in enumerate(cells):
        if number:
            spans.append(space)
        spans.extend(cell)
    return tuple(spans)
